//! Permission checks that the server does not make. It checks the keys among the arguments when a command is called; the
//! module checks keys that are not arguments, and clients that may have lost their permission while they waited.

use std::cell::OnceCell;
use std::ffi::c_int;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use redis_module::raw;
use smallvec::SmallVec;

use super::api::api;
use super::{Invocation, OwnedStr, StrRef};

/// What a command does to a derived key.
#[derive(Clone, Copy)]
pub enum Access {
    Read,
    ReadWrite,
    /// A list that gets ids pushed.
    Insert,
    /// A list that ids are removed from.
    Delete,
}

pub struct User<'c> {
    call: &'c Invocation<'c>,
    who: Who,
    /// Asked for once.
    has_selectors: OnceCell<bool>,
}

enum Who {
    Known(NonNull<raw::RedisModuleUser>),
    /// There is no user: another module made the call, which the server trusts.
    NoUser,
    /// The user was deleted after the client logged in.
    Gone,
}

impl<'c> User<'c> {
    pub fn of(call: &'c Invocation<'c>) -> Self {
        // SAFETY: the context is alive, the names are freed by their handles. GetCurrentUserName reads through the
        // client's user without a null check, so it is only called where there is a user.
        let who = unsafe {
            let id = api!(RedisModule_GetClientId(call.ctx()));
            let name = OwnedStr::take(api!(RedisModule_GetClientUserNameById(call.ctx(), id))).or_else(|| {
                // A script's client is not in the server's index of clients.
                call.has_user().then(|| OwnedStr::take(api!(RedisModule_GetCurrentUserName(call.ctx())))).flatten()
            });
            match name {
                None => Who::NoUser,
                Some(name) => {
                    let user = api!(RedisModule_GetModuleUserFromUserName(name.as_ref().raw()));
                    NonNull::new(user).map_or(Who::Gone, Who::Known)
                }
            }
        };
        User { call, who, has_selectors: OnceCell::new() }
    }

    /// Whether the caller may run the command with these arguments. The server has asked before the first run; a
    /// client that waited since may have lost the permission.
    pub fn may_run(&self, command: &str) -> bool {
        let user = match self.who {
            Who::Known(user) => user,
            Who::NoUser => return true,
            Who::Gone => return false,
        };
        let command = OwnedStr::new(command.as_bytes());
        let mut words: SmallVec<[*mut raw::RedisModuleString; 16]> = SmallVec::new();
        words.push(command.as_ref().raw());
        words.extend(self.call.args().iter().map(|arg| arg.raw()));
        let allowed = may_run(user, &mut words);
        if !allowed {
            // SAFETY: user, context and string are alive.
            unsafe {
                api!(RedisModule_ACLAddLogEntry(
                    self.call.ctx(),
                    user.as_ptr(),
                    command.as_ref().raw(),
                    raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CMD,
                ));
            }
        }
        allowed
    }

    /// Also writes the refusal into ACL LOG, as the server does for arguments.
    pub fn may(&self, access: Access, key: StrRef) -> bool {
        let user = match self.who {
            Who::Known(user) => user,
            Who::NoUser => return true,
            Who::Gone => return false,
        };
        let flags = match access {
            Access::Read => raw::REDISMODULE_CMD_KEY_ACCESS,
            Access::ReadWrite => raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE,
            Access::Insert => raw::REDISMODULE_CMD_KEY_INSERT,
            Access::Delete => raw::REDISMODULE_CMD_KEY_DELETE,
        } as c_int;
        // SAFETY: user, key and context are alive.
        unsafe {
            let allowed = api!(RedisModule_ACLCheckKeyPermissions(user.as_ptr(), key.raw(), flags)) == OK
                && (!self.has_selectors.get_or_init(|| has_selectors(user))
                    || self.one_selector_grants(user, key, flags));
            if !allowed {
                api!(RedisModule_ACLAddLogEntry(
                    self.call.ctx(),
                    user.as_ptr(),
                    key.raw(),
                    raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_KEY,
                ));
            }
            allowed
        }
    }

    /// Whether one and the same selector grants the command and the key: the server's check of a key alone accepts any
    /// selector. So the server is asked about this command with this key as its only key, which `probed_key` reports.
    /// Commands in a namespace have no keys as arguments, so there only the command is checked again.
    fn one_selector_grants(&self, user: NonNull<raw::RedisModuleUser>, key: StrRef, flags: c_int) -> bool {
        // As many arguments as the call has: Redis 8 checks their number.
        let mut words: SmallVec<[*mut raw::RedisModuleString; 16]> =
            self.call.argv().iter().map(|word| word.raw()).collect();
        let Some(first_argument) = words.get_mut(1) else { return true };
        *first_argument = key.raw();
        PROBE_FLAGS.store(flags, Ordering::Relaxed);
        PROBE.store(words.as_mut_ptr(), Ordering::Release);
        let granted = may_run(user, &mut words);
        PROBE.store(null_mut(), Ordering::Release);
        granted
    }
}

/// The arguments of our own permission probe, while it runs, and what its key is needed for.
static PROBE: AtomicPtr<*mut raw::RedisModuleString> = AtomicPtr::new(null_mut());
static PROBE_FLAGS: AtomicI32 = AtomicI32::new(0);

/// What the derived key is needed for, if these are the arguments of our own permission probe and not a client's call.
pub(super) fn probed_key(argv: *mut *mut raw::RedisModuleString) -> Option<c_int> {
    (PROBE.load(Ordering::Acquire) == argv).then(|| PROBE_FLAGS.load(Ordering::Relaxed))
}

const OK: c_int = raw::REDISMODULE_OK as c_int;

fn may_run(user: NonNull<raw::RedisModuleUser>, words: &mut [*mut raw::RedisModuleString]) -> bool {
    // SAFETY: user and strings are alive; the server only reads them.
    unsafe {
        api!(RedisModule_ACLCheckCommandPermissions(user.as_ptr(), words.as_mut_ptr(), words.len() as c_int)) == OK
    }
}

/// By the brackets in the user's description. A key pattern with a bracket counts too, which only makes the check
/// stricter.
fn has_selectors(user: NonNull<raw::RedisModuleUser>) -> bool {
    // SAFETY: the user is alive; the string is ours to free.
    let description = unsafe { OwnedStr::take(api!(RedisModule_GetModuleUserACLString(user.as_ptr()))) };
    description.is_none_or(|description| description.bytes().contains(&b'('))
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        if let Who::Known(user) = self.who {
            // SAFETY: the handle was made by GetModuleUserFromUserName and is freed once; the ACL user itself stays.
            unsafe {
                api!(RedisModule_FreeModuleUser(user.as_ptr()));
            }
        }
    }
}
