//! Registration. A command describes itself once (`Spec`); its arity, key positions, key specs, ACL categories and
//! COMMAND DOCS are all derived from that description.

use std::ffi::{c_int, CString};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::api::api;
use super::entry::{self, Handler};
use super::log;
use super::{Call, OwnedStr};

pub struct Spec {
    pub name: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
    /// Flags as RedisModule_CreateCommand takes them.
    pub flags: &'static str,
    /// ACL categories, for servers that let a module say so (7.2 and later).
    pub categories: &'static str,
    pub args: &'static [Arg],
}

pub struct Arg {
    pub name: &'static str,
    pub kind: Kind,
    pub need: Need,
}

#[derive(Clone, Copy)]
pub enum Kind {
    /// A key and what the command does with it.
    Key(KeyUse),
    Text,
    Integer,
    Double,
    /// A word that stands for itself.
    Word(&'static str),
    /// A word followed by an argument.
    Option(&'static str, Plain),
    /// Several arguments that come together.
    Group(&'static [Arg]),
}

#[derive(Clone, Copy)]
pub enum Plain {
    Text,
    Integer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Required,
    Optional,
    /// One or more.
    Several,
}

/// Key use, in the words of the server's key specs. What a command tells of a key's content needs read permission;
/// what it changes needs write permission.
#[derive(Clone, Copy)]
pub enum KeyUse {
    Read,
    /// Removes; tells nothing.
    Remove,
    /// Removes and tells.
    Take,
    /// Changes and adds; tells nothing.
    Update,
    /// Changes and tells.
    ReadUpdate,
    /// Adds; tells nothing.
    Insert,
}

impl KeyUse {
    fn flags(self) -> u64 {
        use raw::{
            REDISMODULE_CMD_KEY_ACCESS as ACCESS, REDISMODULE_CMD_KEY_DELETE as DELETE,
            REDISMODULE_CMD_KEY_INSERT as INSERT, REDISMODULE_CMD_KEY_RO as RO, REDISMODULE_CMD_KEY_RW as RW,
            REDISMODULE_CMD_KEY_UPDATE as UPDATE,
        };
        u64::from(match self {
            KeyUse::Read => RO | ACCESS,
            KeyUse::Remove => RW | DELETE,
            KeyUse::Take => RW | ACCESS | DELETE,
            KeyUse::Update => RW | UPDATE,
            KeyUse::ReadUpdate => RW | ACCESS | UPDATE,
            KeyUse::Insert => RW | INSERT,
        })
    }
}

pub const fn key(name: &'static str, key_use: KeyUse) -> Arg {
    required(name, Kind::Key(key_use))
}

pub const fn required(name: &'static str, kind: Kind) -> Arg {
    Arg {
        name,
        kind,
        need: Need::Required,
    }
}

pub const fn optional(name: &'static str, kind: Kind) -> Arg {
    Arg {
        name,
        kind,
        need: Need::Optional,
    }
}

pub const fn several(name: &'static str, kind: Kind) -> Arg {
    Arg {
        name,
        kind,
        need: Need::Several,
    }
}

impl Spec {
    /// As COMMAND INFO tells it: the least number of words, negative where more may follow.
    fn arity(&self) -> c_int {
        let least = 1 + self.args.iter().map(Arg::least_words).sum::<c_int>();
        let open = self.args.iter().any(|arg| arg.need != Need::Required);
        if open {
            -least
        } else {
            least
        }
    }

    /// Keys come first, one after the other.
    fn keys(&self) -> impl Iterator<Item = KeyUse> + '_ {
        self.args.iter().map_while(|arg| match arg.kind {
            Kind::Key(key_use) => Some(key_use),
            _ => None,
        })
    }
}

impl Arg {
    fn least_words(&self) -> c_int {
        if self.need == Need::Optional {
            return 0;
        }
        match self.kind {
            Kind::Group(args) => args.iter().map(Arg::least_words).sum(),
            Kind::Option(..) => 2,
            _ => 1,
        }
    }
}

/// A command of the table: its description and its code.
pub trait Command {
    const SPEC: Spec;
    fn run<'c>(call: &'c Call<'c>) -> Result<(), crate::error::Error>;
}

pub struct Entry {
    spec: &'static Spec,
    handler: Handler,
}

impl Entry {
    pub const fn of<C: Command + 'static>() -> Self {
        Entry {
            spec: const { &C::SPEC },
            handler: entry::handler::<C>,
        }
    }
}

pub(super) fn register(ctx: *mut raw::RedisModuleCtx, table: &[Entry]) -> Result<(), String> {
    for entry in table {
        register_one(ctx, entry).map_err(|what| format!("{}: {what}", entry.spec.name))?;
    }
    Ok(())
}

fn register_one(ctx: *mut raw::RedisModuleCtx, entry: &Entry) -> Result<(), String> {
    let spec = entry.spec;
    let name = c_string(spec.name);
    let flags = c_string(spec.flags);
    let key_count = spec.keys().count() as c_int;
    let ok = raw::REDISMODULE_OK as c_int;
    // SAFETY: the context is that of the load; all strings are NUL-terminated and copied by the server; `Docs` keeps
    // what its arrays point to alive until the server has copied it.
    unsafe {
        if api!(RedisModule_CreateCommand(
            ctx,
            name.as_ptr(),
            Some(entry.handler),
            flags.as_ptr(),
            1,
            key_count,
            1
        )) != ok
        {
            return Err("the server refused the command (is another module using the name?)".into());
        }
        let command = api!(RedisModule_GetCommand(ctx, name.as_ptr()));
        let mut docs = Docs::default();
        if api!(RedisModule_SetCommandInfo(command, &docs.command_info(spec))) != ok {
            return Err("the server refused the description".into());
        }
        // Known since 7.2. Before, a module's command has no category, and users name it.
        if let Some(set_categories) = raw::RedisModule_SetCommandACLCategories {
            let categories = c_string(spec.categories);
            if set_categories(command, categories.as_ptr()) != ok {
                log::warning(&format!(
                    "rmq: ACL categories '{}' not set for {}",
                    spec.categories, spec.name
                ));
            }
        }
    }
    Ok(())
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("the table has no NUL")
}

/// The C arrays of one description, and the strings that they point to.
#[derive(Default)]
struct Docs {
    strings: Vec<CString>,
    key_specs: Vec<raw::RedisModuleCommandKeySpec>,
    args: Vec<Box<[raw::RedisModuleCommandArg]>>,
}

impl Docs {
    fn command_info(&mut self, spec: &Spec) -> raw::RedisModuleCommandInfo {
        for (index, key_use) in spec.keys().enumerate() {
            self.key_specs.push(key_spec(index as c_int + 1, key_use.flags()));
        }
        // SAFETY: an all-zero key spec (and argument, below) is the API's end mark.
        self.key_specs.push(unsafe { std::mem::zeroed() });
        let mut next_key = 0;
        let args = self.args_of(spec.args, &mut next_key);
        raw::RedisModuleCommandInfo {
            version: &INFO_VERSION,
            summary: self.text(spec.summary),
            complexity: self.text(spec.complexity),
            since: self.text(crate::SINCE),
            history: null_mut(),
            tips: null(),
            arity: spec.arity(),
            key_specs: self.key_specs.as_mut_ptr(),
            args,
        }
    }

    fn text(&mut self, text: &str) -> *const std::ffi::c_char {
        let text = c_string(text);
        // The heap block that a CString points to stays where it is when the vector grows.
        let pointer = text.as_ptr();
        self.strings.push(text);
        pointer
    }

    fn args_of(&mut self, args: &[Arg], next_key: &mut c_int) -> *mut raw::RedisModuleCommandArg {
        let mut list = Vec::with_capacity(args.len() + 1);
        for arg in args {
            // SAFETY: zero is a valid value for every field (null pointers, type 0, flags 0).
            let mut entry: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
            entry.name = self.text(arg.name);
            entry.key_spec_index = -1;
            entry.flags = match arg.need {
                Need::Required => raw::REDISMODULE_CMD_ARG_NONE,
                Need::Optional => raw::REDISMODULE_CMD_ARG_OPTIONAL,
                Need::Several => raw::REDISMODULE_CMD_ARG_MULTIPLE,
            } as c_int;
            entry.type_ = match arg.kind {
                Kind::Key(_) => {
                    entry.key_spec_index = *next_key;
                    *next_key += 1;
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY
                }
                Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                Kind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                Kind::Double => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
                Kind::Word(token) => {
                    entry.token = self.text(token);
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN
                }
                Kind::Option(token, plain) => {
                    entry.token = self.text(token);
                    match plain {
                        Plain::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                        Plain::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                    }
                }
                Kind::Group(inner) => {
                    entry.subargs = self.args_of(inner, next_key);
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK
                }
            };
            list.push(entry);
        }
        // SAFETY: the end mark.
        list.push(unsafe { std::mem::zeroed() });
        self.args.push(list.into_boxed_slice());
        self.args.last_mut().expect("just pushed").as_mut_ptr()
    }
}

/// How the structures below are laid out; the C header's own constant is static there, and so not linked.
static INFO_VERSION: raw::RedisModuleCommandInfoVersion = raw::RedisModuleCommandInfoVersion {
    version: 1,
    sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
    sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
    sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
};

fn key_spec(position: c_int, flags: u64) -> raw::RedisModuleCommandKeySpec {
    // SAFETY: zero is valid for every field; the unions are then set as their type fields say.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.flags = flags;
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = position;
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
        lastkey: 0,
        keystep: 1,
        limit: 0,
    };
    spec
}

static FIELD_EXPIRY: AtomicBool = AtomicBool::new(false);

/// Whether the server can expire one field of a hash: asked for the command, once, at load.
pub fn server_has_field_expiry() -> bool {
    FIELD_EXPIRY.load(Ordering::Relaxed)
}

pub(super) fn look_for_field_expiry(ctx: *mut raw::RedisModuleCtx) {
    FIELD_EXPIRY.store(server_has(ctx, "HPEXPIREAT"), Ordering::Relaxed);
}

/// The plain commands that effects are made of, and those that the module runs. A server may have them renamed or
/// switched off (rename-command): effects would then not be sent, and nobody would notice before a failover.
const PLAIN: [&str; 13] = [
    "HSET",
    "HDEL",
    "LPUSH",
    "RPUSH",
    "RPOP",
    "LMOVE",
    "LREM",
    "LSET",
    "ZADD",
    "ZREM",
    "PEXPIREAT",
    "LPOS",
    "EXISTS",
];

pub(super) fn look_for_plain_commands(ctx: *mut raw::RedisModuleCtx) -> Result<(), String> {
    match PLAIN.iter().find(|name| !server_has(ctx, name)) {
        Some(name) => Err(format!(
            "the server's {name} is renamed or switched off, and the module needs it"
        )),
        None => Ok(()),
    }
}

fn server_has(ctx: *mut raw::RedisModuleCtx, command: &str) -> bool {
    let name = OwnedStr::new(command.as_bytes());
    let mut keys: c_int = 0;
    // SAFETY: argv is one string, which is alive; errno is this thread's. The name alone is too little for any of the
    // commands asked for, so that no array comes back; if one did, it would be ours to free.
    unsafe {
        *libc::__errno_location() = 0;
        let positions = api!(RedisModule_GetCommandKeys(ctx, &mut name.as_ref().raw(), 1, &mut keys));
        if !positions.is_null() {
            api!(RedisModule_Free(positions.cast()));
            return true;
        }
        *libc::__errno_location() != libc::ENOENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Spec = Spec {
        name: "T",
        summary: "",
        complexity: "",
        flags: "",
        categories: "",
        args: &[
            key("a", KeyUse::Update),
            key("b", KeyUse::Read),
            required("batch", Kind::Integer),
            several(
                "pair",
                Kind::Group(&[required("id", Kind::Text), required("payload", Kind::Text)]),
            ),
            optional("count", Kind::Option("COUNT", Plain::Integer)),
        ],
    };

    #[test]
    fn arity_counts_required_words_and_is_negative_where_more_may_follow() {
        assert_eq!(TICK.arity(), -6);
    }

    #[test]
    fn keys_are_the_leading_key_arguments() {
        assert_eq!(TICK.keys().count(), 2);
    }
}
