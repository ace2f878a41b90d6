//! The server's function table. A function that a server lacks is a `None`, whatever version number that server
//! reports; so the load asks for each function the module needs, once, and every later use may rely on it.

use redis_module::raw;

/// Calls an API function that `missing()` has checked at load.
macro_rules! api {
    ($name:ident ( $($arg:expr),* $(,)? )) => {
        // SAFETY: the table is written once, by the server's init call, before any command can run, and `missing()` has
        // found every function in it.
        (redis_module::raw::$name.unwrap_unchecked())($($arg),*)
    };
}
pub(super) use api;

macro_rules! first_missing {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: the table is filled in by the server before this is called, on the one thread that runs modules,
            // and never written again.
            if unsafe { (&raw const raw::$name).read() }.is_none() {
                return Some(stringify!($name));
            }
        )*
    };
}

/// The first required API function that this server does not offer.
pub fn missing() -> Option<&'static str> {
    first_missing!(
        RedisModule_Alloc,
        RedisModule_Free,
        RedisModule_CreateCommand,
        RedisModule_GetCommand,
        RedisModule_SetCommandInfo,
        RedisModule_SetModuleOptions,
        RedisModule_GetServerVersion,
        RedisModule_RegisterInfoFunc,
        RedisModule_InfoAddSection,
        RedisModule_InfoAddFieldULongLong,
        RedisModule_RegisterNumericConfig,
        RedisModule_LoadConfigs,
        RedisModule_Log,
        RedisModule_WrongArity,
        RedisModule_ReplyWithError,
        RedisModule_ReplyWithSimpleString,
        RedisModule_ReplyWithStringBuffer,
        RedisModule_ReplyWithString,
        RedisModule_ReplyWithLongLong,
        RedisModule_ReplyWithArray,
        RedisModule_ReplyWithNull,
        RedisModule_ReplyWithNullArray,
        RedisModule_Replicate,
        RedisModule_GetServerInfo,
        RedisModule_ServerInfoGetFieldUnsigned,
        RedisModule_FreeServerInfo,
        RedisModule_NotifyKeyspaceEvent,
        RedisModule_GetContextFlags,
        RedisModule_GetSelectedDb,
        RedisModule_DbSize,
        RedisModule_GetClientId,
        RedisModule_GetClientUserNameById,
        RedisModule_GetCurrentUserName,
        RedisModule_GetModuleUserFromUserName,
        RedisModule_FreeModuleUser,
        RedisModule_GetModuleUserACLString,
        RedisModule_ACLCheckKeyPermissions,
        RedisModule_ACLCheckCommandPermissions,
        RedisModule_ACLAddLogEntry,
        RedisModule_CreateString,
        RedisModule_CreateStringFromLongLong,
        RedisModule_FreeString,
        RedisModule_RetainString,
        RedisModule_StringPtrLen,
        RedisModule_OpenKey,
        RedisModule_CloseKey,
        RedisModule_KeyType,
        RedisModule_ValueLength,
        RedisModule_GetExpire,
        RedisModule_SetAbsExpire,
        RedisModule_HashGet,
        RedisModule_HashSet,
        RedisModule_ScanCursorCreate,
        RedisModule_ScanCursorDestroy,
        RedisModule_ScanKey,
        RedisModule_ListPush,
        RedisModule_ListPop,
        RedisModule_ListGet,
        RedisModule_ListDelete,
        RedisModule_ZsetAdd,
        RedisModule_ZsetRem,
        RedisModule_ZsetScore,
        RedisModule_ZsetFirstInScoreRange,
        RedisModule_ZsetRangeNext,
        RedisModule_ZsetRangeCurrentElement,
        RedisModule_ZsetRangeStop,
        RedisModule_Call,
        RedisModule_CallReplyType,
        RedisModule_CallReplyInteger,
        RedisModule_CallReplyStringPtr,
        RedisModule_CallReplyLength,
        RedisModule_CallReplyArrayElement,
        RedisModule_FreeCallReply,
        RedisModule_GetCommandKeys,
        RedisModule_IsKeysPositionRequest,
        RedisModule_KeyAtPosWithFlags,
        RedisModule_BlockClientOnKeys,
        RedisModule_GetBlockedClientPrivateData,
        RedisModule_GetDetachedThreadSafeContext,
        RedisModule_FreeThreadSafeContext,
        RedisModule_SelectDb,
        RedisModule_SignalKeyAsReady,
        RedisModule_AvoidReplicaTraffic,
        RedisModule_CreateTimer,
        RedisModule_StopTimer,
        RedisModule_ReplyWithMap,
        RedisModule_ServerInfoGetFieldC,
    );
    None
}
