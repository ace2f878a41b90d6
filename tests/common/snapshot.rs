//! All keys with their contents, so that a test can say that nothing changed, or exactly what did.

use super::ask;
use redis::ConnectionLike;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Bytes that print as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok(text) => write!(f, "{text:?}"),
            Err(_) => write!(f, "b\"{}\"", self.0.escape_ascii()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    String(Bytes),
    List(Vec<Bytes>),
    Set(BTreeSet<Bytes>),
    Zset(BTreeMap<Bytes, f64>),
    Hash(BTreeMap<Bytes, Bytes>),
    /// Any other type, as DUMP gives it.
    Other(String, Bytes),
}

#[derive(Clone, Debug, PartialEq)]
struct Key {
    contents: Contents,
    /// Absolute expiry in ms of the key and of its fields, when asked for.
    expires_at: Option<i64>,
    fields_expire_at: BTreeMap<Bytes, i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    keys: BTreeMap<Bytes, Key>,
    with_ttls: bool,
}

impl Snapshot {
    /// All keys and their contents, without expiry times.
    pub fn of(con: &mut impl ConnectionLike) -> Snapshot {
        Snapshot::take(con, false)
    }

    /// The same with the expiry times of keys and of hash fields.
    pub fn with_ttls(con: &mut impl ConnectionLike) -> Snapshot {
        Snapshot::take(con, true)
    }

    fn take(con: &mut impl ConnectionLike, with_ttls: bool) -> Snapshot {
        let names: Vec<Vec<u8>> = ask!(con, "KEYS", "*");
        let mut keys = BTreeMap::new();
        for name in names {
            let Some(contents) = contents_of(con, &name) else {
                continue;
            };
            let mut key = Key { contents, expires_at: None, fields_expire_at: BTreeMap::new() };
            if with_ttls {
                let at: i64 = ask!(con, "PEXPIRETIME", &name);
                key.expires_at = (at >= 0).then_some(at);
                if let Contents::Hash(fields) = &key.contents {
                    key.fields_expire_at = field_expiries(con, &name, fields.keys());
                }
            }
            keys.insert(Bytes(name), key);
        }
        Snapshot { keys, with_ttls }
    }

    /// The names of the keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        self.keys.keys().map(|key| lossy(&key.0)).collect()
    }

    pub fn contents(&self, key: &str) -> Option<&Contents> {
        let key = self.keys.get(&Bytes(key.into()))?;
        Some(&key.contents)
    }

    /// A list's elements, left to right; empty if there is no such list.
    pub fn list(&self, key: &str) -> Vec<String> {
        match self.contents(key) {
            Some(Contents::List(items)) => items.iter().map(|item| lossy(&item.0)).collect(),
            _ => Vec::new(),
        }
    }

    /// A sorted set's members and scores; empty if there is no such set.
    pub fn zset(&self, key: &str) -> BTreeMap<String, f64> {
        match self.contents(key) {
            Some(Contents::Zset(members)) => members.iter().map(|(m, score)| (lossy(&m.0), *score)).collect(),
            _ => BTreeMap::new(),
        }
    }

    /// A hash's fields; empty if there is no such hash.
    pub fn hash(&self, key: &str) -> BTreeMap<String, String> {
        match self.contents(key) {
            Some(Contents::Hash(fields)) => fields.iter().map(|(f, v)| (lossy(&f.0), lossy(&v.0))).collect(),
            _ => BTreeMap::new(),
        }
    }

    /// What differs, a line each: `-` was, `+` is.
    pub fn diff(&self, after: &Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        for name in self.keys.keys().chain(after.keys.keys()).collect::<BTreeSet<_>>() {
            let (before, after) = (self.keys.get(name), after.keys.get(name));
            if before == after {
                continue;
            }
            let before = before.map(Key::flat).unwrap_or_default();
            let after = after.map(Key::flat).unwrap_or_default();
            for part in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
                let (was, is) = (before.get(part), after.get(part));
                if was != is {
                    let show =
                        |sign, value: Option<&String>| value.map(|value| format!("{sign} {name:?} {} {value}", part.1));
                    lines.extend(show('-', was));
                    lines.extend(show('+', is));
                }
            }
        }
        lines
    }

    /// Panics with the difference unless both are the same.
    #[track_caller]
    pub fn assert_same(&self, after: &Snapshot) {
        const SHOWN: usize = 60;
        let diff = self.diff(after);
        if !diff.is_empty() {
            let more = match diff.len().saturating_sub(SHOWN) {
                0 => String::new(),
                n => format!("\n… and {n} more"),
            };
            let shown = &diff[..diff.len().min(SHOWN)];
            panic!("the keys differ (- was, + is):\n{}{more}", shown.join("\n"));
        }
    }

    /// Panics with the changes if anything changed since.
    #[track_caller]
    pub fn assert_unchanged(&self, con: &mut impl ConnectionLike) {
        self.assert_same(&Snapshot::take(con, self.with_ttls));
    }
}

impl Key {
    /// One entry per element, so that a difference shows the element and not the whole key.
    fn flat(&self) -> BTreeMap<(usize, String), String> {
        let mut flat = BTreeMap::new();
        match &self.contents {
            Contents::String(value) => {
                flat.insert((0, "string".into()), short(value));
            }
            Contents::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    flat.insert((i, format!("list [{i}]")), short(item));
                }
            }
            Contents::Set(members) => {
                for member in members {
                    flat.insert((0, format!("set {}", short(member))), String::new());
                }
            }
            Contents::Zset(members) => {
                for (member, score) in members {
                    flat.insert((0, format!("zset {}", short(member))), format!("{score}"));
                }
            }
            Contents::Hash(fields) => {
                for (field, value) in fields {
                    flat.insert((0, format!("hash {}", short(field))), short(value));
                }
            }
            Contents::Other(kind, dump) => {
                flat.insert((0, kind.clone()), short(dump));
            }
        }
        if let Some(at) = self.expires_at {
            flat.insert((0, "expires at".into()), at.to_string());
        }
        for (field, at) in &self.fields_expire_at {
            flat.insert((0, format!("hash {} expires at", short(field))), at.to_string());
        }
        flat
    }
}

fn contents_of(con: &mut impl ConnectionLike, key: &[u8]) -> Option<Contents> {
    let kind: String = ask!(con, "TYPE", key);
    Some(match kind.as_str() {
        // It expired in the meantime.
        "none" => return None,
        "string" => Contents::String(Bytes(ask!(con, "GET", key))),
        "list" => {
            let items: Vec<Vec<u8>> = ask!(con, "LRANGE", key, 0, -1);
            Contents::List(items.into_iter().map(Bytes).collect())
        }
        "set" => {
            let members: Vec<Vec<u8>> = ask!(con, "SMEMBERS", key);
            Contents::Set(members.into_iter().map(Bytes).collect())
        }
        "zset" => {
            let members: Vec<(Vec<u8>, f64)> = ask!(con, "ZRANGE", key, 0, -1, "WITHSCORES");
            Contents::Zset(members.into_iter().map(|(m, s)| (Bytes(m), s)).collect())
        }
        "hash" => {
            let fields: Vec<(Vec<u8>, Vec<u8>)> = ask!(con, "HGETALL", key);
            Contents::Hash(fields.into_iter().map(|(f, v)| (Bytes(f), Bytes(v))).collect())
        }
        _ => Contents::Other(kind, Bytes(ask!(con, "DUMP", key))),
    })
}

/// Empty on servers whose fields do not expire.
fn field_expiries<'a>(
    con: &mut impl ConnectionLike,
    key: &[u8],
    fields: impl Iterator<Item = &'a Bytes>,
) -> BTreeMap<Bytes, i64> {
    let fields: Vec<&Bytes> = fields.collect();
    let names: Vec<&[u8]> = fields.iter().map(|field| field.0.as_slice()).collect();
    let times = super::cmd!(con, "HPEXPIRETIME", key, "FIELDS", names.len(), names);
    let times: Vec<i64> = match times {
        Ok(times) => redis::from_redis_value(times).expect("times"),
        Err(_) => return BTreeMap::new(),
    };
    let all = fields.into_iter().cloned().zip(times);
    all.filter(|(_, at)| *at >= 0).collect()
}

fn short(bytes: &Bytes) -> String {
    const SHOWN: usize = 200;
    if bytes.0.len() <= SHOWN {
        return format!("{bytes:?}");
    }
    let start = Bytes(bytes.0[..SHOWN].to_vec());
    // Equal starts must not hide that the rest differs.
    let sum = bytes.0.iter().fold(0u32, |sum, b| sum.wrapping_mul(31).wrapping_add((*b).into()));
    format!("{start:?}… ({} bytes, sum {sum:08x})", bytes.0.len())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
