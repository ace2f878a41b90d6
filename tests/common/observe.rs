//! What other clients see of a command: WATCH and keyspace notifications.

use super::resp::{Raw, Reply};
use super::Server;
use redis::{Connection, ConnectionLike, ToRedisArgs, Value};

/// Watches keys on a connection of its own.
pub struct Watcher {
    con: Connection,
}

impl Watcher {
    pub fn on<K: ToRedisArgs>(server: &Server, keys: &[K]) -> Watcher {
        let mut con = server.con();
        super::ok!(con, "WATCH", keys);
        Watcher { con }
    }

    /// True when a transaction of this watcher still succeeds.
    pub fn untouched(mut self) -> bool {
        super::ok!(self.con, "MULTI");
        super::ok!(self.con, "PING");
        super::ok!(self.con, "EXEC") != Value::Nil
    }

    pub fn touched(self) -> bool {
        !self.untouched()
    }
}

/// Collects keyspace notifications in their order.
pub struct Events {
    raw: Raw,
}

const MARKER: &str = "rmq-events-marker";

impl Events {
    /// Turns all notifications on and listens from here.
    pub fn subscribe(server: &Server) -> Events {
        super::ok!(server.con(), "CONFIG", "SET", "notify-keyspace-events", "KEA");
        let mut raw = Raw::connect(server);
        raw.call(&["SUBSCRIBE", MARKER]);
        raw.call(&["PSUBSCRIBE", "__keyevent@*__:*"]);
        Events { raw }
    }

    /// The `(event, key)` pairs since the last call.
    pub fn until_marker(&mut self, con: &mut impl ConnectionLike) -> Vec<(String, String)> {
        super::ok!(con, "PUBLISH", MARKER, "");
        let mut events = Vec::new();
        loop {
            let Reply::Array(message) = self.raw.read() else {
                panic!("a published message was expected");
            };
            let text = |i: usize| String::from_utf8_lossy(message[i].bytes().unwrap_or_default()).into_owned();
            match text(0).as_str() {
                "message" => return events,
                "pmessage" => {
                    let channel = text(2);
                    let event = channel.split_once("__:").expect("an event channel").1;
                    events.push((event.to_string(), text(3)));
                }
                other => panic!("a message was expected, not {other}"),
            }
        }
    }

    /// The same as `event key` lines: `["lrem processing", "del processing"]`.
    pub fn lines_until_marker(&mut self, con: &mut impl ConnectionLike) -> Vec<String> {
        let events = self.until_marker(con).into_iter();
        events.map(|(event, key)| format!("{event} {key}")).collect()
    }
}
