//! Registration. A command describes itself once (`Spec`); its arity, key positions, key specs, ACL categories and
//! COMMAND DOCS are all derived from that description.

use std::ffi::{c_int, CString};
use std::ptr::{null, null_mut};

use redis_module::raw;

use super::api::api;
use super::entry::{self, Handler};
use super::log;
use super::Invocation;

pub struct Spec {
    pub name: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
    /// Flags as RedisModule_CreateCommand takes them. With `getkeys-api` the server asks the module which keys a call has:
    /// for a key that may be absent (`Kind::KeyOrNone`), and for permission on derived keys (`acl`).
    pub flags: &'static str,
    /// ACL categories, for servers where a module can set them (7.2 and later).
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
    /// The same; an empty name means none, needs no permission and belongs to no slot.
    KeyOrNone(KeyUse),
    /// The namespace: no key, but clients and the server route by it.
    Namespace,
    Text,
    Integer,
    Double,
    /// A keyword without value.
    Word(&'static str),
    /// A keyword with a value.
    Option(&'static str, ValueType),
    /// Several arguments that come together.
    Group(&'static [Arg]),
    /// One of several.
    OneOf(&'static [Arg]),
}

#[derive(Clone, Copy)]
pub enum ValueType {
    Text,
    Integer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Required,
    Optional,
    /// One or more.
    Several,
    /// None or more.
    Any,
}

/// Key use, in the words of the server's key specs. What a command returns of a key's content needs read permission;
/// what it changes needs write permission.
#[derive(Clone, Copy)]
pub enum KeyUse {
    Read,
    /// Removes; returns nothing.
    Remove,
    /// Removes and returns.
    Take,
    /// Changes and adds; returns nothing.
    Update,
    /// Adds; returns nothing.
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
            KeyUse::Insert => RW | INSERT,
        })
    }
}

pub const NAMESPACE: Arg = required("namespace", Kind::Namespace);

pub const fn key(name: &'static str, key_use: KeyUse) -> Arg {
    required(name, Kind::Key(key_use))
}

pub const fn key_or_none(name: &'static str, key_use: KeyUse) -> Arg {
    required(name, Kind::KeyOrNone(key_use))
}

pub const fn required(name: &'static str, kind: Kind) -> Arg {
    Arg { name, kind, need: Need::Required }
}

pub const fn optional(name: &'static str, kind: Kind) -> Arg {
    Arg { name, kind, need: Need::Optional }
}

pub const fn any(name: &'static str, kind: Kind) -> Arg {
    Arg { name, kind, need: Need::Any }
}

pub const fn several(name: &'static str, kind: Kind) -> Arg {
    Arg { name, kind, need: Need::Several }
}

impl Spec {
    /// As COMMAND INFO shows it: the least number of words, negative where more may follow.
    fn arity(&self) -> c_int {
        // Where a keyword has to follow, the command itself says which one is missing.
        let keyword = |arg: &Arg| arg.need != Need::Optional && matches!(arg.kind, Kind::Option(..) | Kind::OneOf(_));
        let before = self.args.iter().take_while(|arg| !keyword(arg));
        let least = 1 + before.map(Arg::least_words).sum::<c_int>();
        let open = self.args.iter().any(Arg::may_take_more);
        if open {
            -least
        } else {
            least
        }
    }

    /// Keys come first, one after the other.
    pub(super) const fn keys(&self) -> &'static [Arg] {
        let mut count = 0;
        while count < self.args.len() && matches!(self.args[count].kind, Kind::Key(_) | Kind::KeyOrNone(_)) {
            count += 1;
        }
        self.args.split_at(count).0
    }

    fn is_in_namespace(&self) -> bool {
        self.args.first().is_some_and(|arg| matches!(arg.kind, Kind::Namespace))
    }

    /// Whether a call may block its client. The flag is the last one.
    pub(super) const fn waits(&self) -> bool {
        matches!(self.flags.as_bytes(), [.., b'b', b'l', b'o', b'c', b'k', b'i', b'n', b'g'])
    }

    pub(super) const fn writes(&self) -> bool {
        matches!(self.flags.as_bytes(), [b'w', b'r', b'i', b't', b'e', ..])
    }
}

impl Arg {
    pub(super) fn key_flags(&self) -> u64 {
        match self.kind {
            Kind::Key(key_use) | Kind::KeyOrNone(key_use) => key_use.flags(),
            _ => 0,
        }
    }

    /// Whether the number of its words varies.
    fn may_take_more(&self) -> bool {
        let inside = match self.kind {
            Kind::Group(args) => args.iter().any(Arg::may_take_more),
            Kind::OneOf(_) => true,
            _ => false,
        };
        inside || self.need != Need::Required
    }

    fn least_words(&self) -> c_int {
        if matches!(self.need, Need::Optional | Need::Any) {
            return 0;
        }
        match self.kind {
            Kind::Group(args) => args.iter().map(Arg::least_words).sum(),
            Kind::OneOf(args) => args.iter().map(Arg::least_words).min().unwrap_or(0),
            Kind::Option(..) => 2,
            _ => 1,
        }
    }
}

/// A command of the table: its description and its code.
pub trait Command {
    const SPEC: Spec;
    fn run<'c>(call: &'c Invocation<'c>) -> Result<(), crate::error::Error>;
}

/// A row of the module's table of commands.
pub struct Entry {
    spec: &'static Spec,
    handler: Handler,
}

impl Entry {
    pub(super) fn spec(&self) -> &'static Spec {
        self.spec
    }

    pub const fn of<C: Command + 'static>() -> Self {
        Entry { spec: const { &C::SPEC }, handler: entry::handler::<C> }
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
    let routed = if spec.is_in_namespace() { 1 } else { spec.keys().len() as c_int };
    let ok = raw::REDISMODULE_OK as c_int;
    // SAFETY: the context is that of the load; all strings are NUL-terminated and copied by the server; `Docs` keeps
    // what its arrays point to alive until the server has copied it.
    unsafe {
        if api!(RedisModule_CreateCommand(ctx, name.as_ptr(), Some(entry.handler), flags.as_ptr(), 1, routed, 1)) != ok
        {
            return Err("the server refused the command (is another module using the name?)".into());
        }
        let command = api!(RedisModule_GetCommand(ctx, name.as_ptr()));
        let mut docs = Docs::default();
        if api!(RedisModule_SetCommandInfo(command, &docs.command_info(spec))) != ok {
            return Err("the server refused the description".into());
        }
        // Since 7.2. Before, a module's command has no category, and ACL rules have to name it.
        if let Some(set_categories) = raw::RedisModule_SetCommandACLCategories {
            let categories = c_string(spec.categories);
            if set_categories(command, categories.as_ptr()) != ok {
                log::warning(&format!("rmq: ACL categories '{}' not set for {}", spec.categories, spec.name));
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
        for (index, key) in spec.keys().iter().enumerate() {
            // Without this flag the server reads the key specs and does not ask.
            let asks = if spec.flags.contains("getkeys-api") { raw::REDISMODULE_CMD_KEY_VARIABLE_FLAGS } else { 0 };
            self.key_specs.push(key_spec(index as c_int + 1, key.key_flags() | u64::from(asks)));
        }
        if spec.is_in_namespace() {
            // NOT_KEY alone is refused by the server; it wants one of the other flags beside it.
            let use_flag = if spec.writes() { raw::REDISMODULE_CMD_KEY_RW } else { raw::REDISMODULE_CMD_KEY_RO };
            let flags = raw::REDISMODULE_CMD_KEY_NOT_KEY | use_flag;
            self.key_specs.push(key_spec(1, u64::from(flags)));
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
                Need::Any => raw::REDISMODULE_CMD_ARG_OPTIONAL | raw::REDISMODULE_CMD_ARG_MULTIPLE,
            } as c_int;
            entry.type_ = match arg.kind {
                Kind::Key(_) | Kind::KeyOrNone(_) => {
                    entry.key_spec_index = *next_key;
                    *next_key += 1;
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY
                }
                Kind::Namespace | Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                Kind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                Kind::Double => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
                Kind::Word(token) => {
                    entry.token = self.text(token);
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN
                }
                Kind::Option(token, value) => {
                    entry.token = self.text(token);
                    match value {
                        ValueType::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                        ValueType::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                    }
                }
                Kind::Group(inner) => {
                    entry.subargs = self.args_of(inner, next_key);
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK
                }
                Kind::OneOf(inner) => {
                    entry.subargs = self.args_of(inner, next_key);
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF
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
    spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 };
    spec
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
            several("pair", Kind::Group(&[required("id", Kind::Text), required("payload", Kind::Text)])),
            optional("count", Kind::Option("COUNT", ValueType::Integer)),
        ],
    };

    #[test]
    fn arity_counts_required_words_and_is_negative_where_more_may_follow() {
        assert_eq!(TICK.arity(), -6);
    }

    #[test]
    fn a_missing_keyword_is_left_to_the_command() {
        const INNER: Spec = Spec {
            args: &[required(
                "which",
                Kind::OneOf(&[
                    required("count", Kind::Option("COUNT", ValueType::Integer)),
                    several("id", Kind::Option("IDS", ValueType::Text)),
                ]),
            )],
            ..TICK
        };
        assert_eq!(INNER.arity(), -1);
    }

    #[test]
    fn keys_are_the_leading_key_arguments() {
        assert_eq!(TICK.keys().len(), 2);
    }
}
