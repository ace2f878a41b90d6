//! The peer: the Lua scripts that the module replaces, loaded from their own package.

use super::process::in_repository;
use super::{cmd, ok, text};
use redis::{ConnectionLike, RedisResult, ServerErrorKind, ToRedisArgs, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Does not compile on the Lua 5.1 of the server, because of `goto`.
const DOES_NOT_COMPILE: &str = "handle_parse_error";

struct Script {
    source: String,
    sha: String,
}

/// The peer's scripts, loaded into a server.
pub struct Peer {
    scripts: BTreeMap<String, Script>,
}

impl Peer {
    /// Loads every script that compiles; a script's name is its file's, without `.lua`.
    pub fn load(con: &mut impl ConnectionLike) -> Peer {
        let mut scripts = BTreeMap::new();
        for (name, source) in sources() {
            if name != DOES_NOT_COMPILE {
                let sha = text(ok!(con, "SCRIPT", "LOAD", &source));
                scripts.insert(name, Script { source, sha });
            }
        }
        Peer { scripts }
    }

    pub fn names(&self) -> Vec<&str> {
        self.scripts.keys().map(String::as_str).collect()
    }

    /// `peer.call(&mut con, "complete_message", &["m", "p", "e"], ("id",))`: arguments are a tuple, a slice or a value.
    pub fn call(
        &self,
        con: &mut impl ConnectionLike,
        name: &str,
        keys: &[&str],
        args: impl ToRedisArgs,
    ) -> RedisResult<Value> {
        let script = &self.scripts[name];
        let result = cmd!(con, "EVALSHA", &script.sha, keys.len(), keys, &args);
        match result {
            // The server was restarted.
            Err(e) if e.kind() == ServerErrorKind::NoScript.into() => {
                cmd!(con, "EVAL", &script.source, keys.len(), keys, &args)
            }
            other => other,
        }
    }

    pub fn sha(&self, name: &str) -> &str {
        &self.scripts[name].sha
    }
}

/// The text of every script of the peer, by name, those that do not compile included.
pub fn sources() -> BTreeMap<String, String> {
    let folder = std::env::var_os("RMQ_PEER")
        .map_or_else(|| in_repository(".servers/peer/mx_rmq/resources/lua_scripts"), PathBuf::from);
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "lua") {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                found.insert(name, fs::read_to_string(&path).expect("a readable script"));
            }
        }
    }
    assert!(
        !found.is_empty(),
        "no Lua scripts of the peer in {folder:?}: run `scripts/servers.sh peer`, or set RMQ_PEER to their folder"
    );
    found
}
