//! Connections for workers: to one server, or to whichever node of a cluster owns the namespace.

use super::Link;
use crate::common::{error_text, top_error};
use redis::{Cmd, Connection, ConnectionLike, RedisResult, Value};
use std::collections::HashMap;
use std::time::Duration;

/// How long WAIT waits for a replica.
const WAIT_MS: usize = 300;

/// What makes a reply safe from the failure that the test brings about.
#[derive(Clone, Copy, PartialEq)]
pub enum Safe {
    /// The reply itself.
    AtOnce,
    /// A replica that has it.
    Replicated,
    /// The kernel that has it: with appendfsync everysec the server may reply before it has written to the file.
    Written,
}

/// A connection to one server.
pub struct Single {
    con: Connection,
    safe: Safe,
}

impl Single {
    pub fn link(con: Connection, safe: Safe) -> Box<dyn Link> {
        Box::new(Single { con, safe })
    }
}

impl Link for Single {
    fn call(&mut self, command: &Cmd) -> RedisResult<Value> {
        top_error(self.con.req_command(command))
    }

    fn is_sure(&self) -> bool {
        self.safe == Safe::AtOnce
    }

    fn confirmed(&mut self) -> bool {
        match self.safe {
            Safe::AtOnce => true,
            Safe::Replicated => replicas_have_it(&mut self.con, 1),
            Safe::Written => {
                let info: RedisResult<String> = redis::cmd("INFO").arg("persistence").query(&mut self.con);
                info.is_ok_and(|info| info.contains("aof_buffer_length:0\r"))
            }
        }
    }
}

fn replicas_have_it(con: &mut Connection, replicas: usize) -> bool {
    // WAIT counts from the connection's last command. Redis 7.0 does not count what a client that was blocked got when
    // it was served, so another command goes first.
    let mut pipe = redis::pipe();
    pipe.cmd("PING").ignore().cmd("WAIT").arg(replicas).arg(WAIT_MS);
    let have: RedisResult<(usize,)> = pipe.query(con);
    have.is_ok_and(|(have,)| have >= replicas)
}

/// A connection to the node that owns a namespace: it follows MOVED and ASK, and waits for a replica of that node.
pub struct Routed {
    cons: HashMap<u16, Connection>,
    owner: u16,
    last: u16,
}

impl Routed {
    /// Starts at any node.
    pub fn link(port: u16) -> Box<dyn Link> {
        Box::new(Routed { cons: HashMap::new(), owner: port, last: port })
    }

    fn con(&mut self, port: u16) -> RedisResult<&mut Connection> {
        use std::collections::hash_map::Entry;
        match self.cons.entry(port) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
                let con = client.get_connection_with_timeout(Duration::from_secs(2))?;
                con.set_read_timeout(Some(Duration::from_secs(30)))?;
                Ok(entry.insert(con))
            }
        }
    }
}

impl Link for Routed {
    fn call(&mut self, command: &Cmd) -> RedisResult<Value> {
        const REDIRECTIONS: usize = 5;
        let (mut port, mut asking) = (self.owner, false);
        for _ in 0..REDIRECTIONS {
            self.last = port;
            let con = self.con(port)?;
            if asking {
                top_error(con.req_command(&redis::cmd("ASKING")))?;
            }
            let error = match top_error(con.req_command(command)) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let text = error_text(&error);
            // 'MOVED 3999 127.0.0.1:6381'
            let target = text.rsplit(':').next().and_then(|port| port.parse().ok());
            match (text.split(' ').next(), target) {
                (Some("MOVED"), Some(target)) => {
                    (port, asking) = (target, false);
                    self.owner = target;
                }
                (Some("ASK"), Some(target)) => (port, asking) = (target, true),
                // A replica of Redis 8 does not redirect by a namespace: clients then look for the owner, as here by a key.
                (Some("READONLY"), _) => {
                    let Some(redis::Arg::Simple(name)) = command.args_iter().nth(1) else { return Err(error) };
                    let moved = top_error(con.req_command(redis::cmd("EXISTS").arg(name)));
                    let target = moved.err().and_then(|moved| error_text(&moved).rsplit(':').next()?.parse().ok());
                    let Some(target) = target else { return Err(error) };
                    (port, asking, self.owner) = (target, false, target);
                }
                _ => return Err(error),
            }
        }
        Err((redis::ErrorKind::Io, "too many redirections").into())
    }

    fn is_sure(&self) -> bool {
        false
    }

    fn confirmed(&mut self) -> bool {
        let last = self.last;
        self.con(last).is_ok_and(|con| replicas_have_it(con, 1))
    }
}
