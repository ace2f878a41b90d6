//! Permission that the server does not look after. It checks the arguments of a command when that is called; a derived
//! key comes out of a hash, and a client may wait for longer than it keeps its permission, so there the module asks on
//! behalf of the caller.

use std::ffi::c_int;
use std::ptr::NonNull;

use redis_module::raw;
use smallvec::SmallVec;

use super::api::api;
use super::{Call, OwnedStr, StrRef};

/// What a command does to a derived key.
#[derive(Clone, Copy)]
pub enum Access {
    /// A list that gets ids pushed.
    Insert,
    /// A list that ids are removed from.
    Delete,
}

pub struct User<'c> {
    call: &'c Call<'c>,
    who: Who,
}

enum Who {
    Known(NonNull<raw::RedisModuleUser>),
    /// Nobody stands behind the call: another module made it, which the server trusts.
    Nobody,
    /// A name without a user: deleted since it logged in.
    Gone,
}

impl<'c> User<'c> {
    pub fn of(call: &'c Call<'c>) -> Self {
        // SAFETY: the context is alive, the names are freed by their handles. GetCurrentUserName reads through the
        // client's user without a look, so it is only asked where a user is known to be there.
        let who = unsafe {
            let id = api!(RedisModule_GetClientId(call.ctx()));
            let name = OwnedStr::take(api!(RedisModule_GetClientUserNameById(call.ctx(), id))).or_else(|| {
                // A script's client is not in the server's index of clients.
                call.has_user()
                    .then(|| OwnedStr::take(api!(RedisModule_GetCurrentUserName(call.ctx()))))
                    .flatten()
            });
            match name {
                None => Who::Nobody,
                Some(name) => {
                    let user = api!(RedisModule_GetModuleUserFromUserName(name.as_ref().raw()));
                    NonNull::new(user).map_or(Who::Gone, Who::Known)
                }
            }
        };
        User { call, who }
    }

    /// Whether the caller may run the command with these arguments. The server has asked before the first run; a
    /// client that waited since may have lost the permission.
    pub fn may_run(&self, command: &str) -> bool {
        let user = match self.who {
            Who::Known(user) => user,
            Who::Nobody => return true,
            Who::Gone => return false,
        };
        let command = OwnedStr::new(command.as_bytes());
        let mut words: SmallVec<[*mut raw::RedisModuleString; 16]> = SmallVec::new();
        words.push(command.as_ref().raw());
        words.extend(self.call.args().iter().map(|arg| arg.raw()));
        // SAFETY: user, context and the strings are alive; the server only reads them.
        unsafe {
            let allowed = api!(RedisModule_ACLCheckCommandPermissions(
                user.as_ptr(),
                words.as_mut_ptr(),
                words.len() as c_int
            )) == raw::REDISMODULE_OK as c_int;
            if !allowed {
                api!(RedisModule_ACLAddLogEntry(
                    self.call.ctx(),
                    user.as_ptr(),
                    command.as_ref().raw(),
                    raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CMD,
                ));
            }
            allowed
        }
    }

    /// Also writes the refusal into ACL LOG, as the server does for arguments.
    pub fn may(&self, access: Access, key: StrRef) -> bool {
        let user = match self.who {
            Who::Known(user) => user,
            Who::Nobody => return true,
            Who::Gone => return false,
        };
        let flags = match access {
            Access::Insert => raw::REDISMODULE_CMD_KEY_INSERT,
            Access::Delete => raw::REDISMODULE_CMD_KEY_DELETE,
        };
        // SAFETY: user, key and context are alive.
        unsafe {
            let allowed = api!(RedisModule_ACLCheckKeyPermissions(
                user.as_ptr(),
                key.raw(),
                flags as c_int
            )) == raw::REDISMODULE_OK as c_int;
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
