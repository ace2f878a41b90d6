//! Calling commands and taking replies apart.
//!
//! ```ignore
//! ok!(con, "LPUSH", "p", "a");                          // Value; panics on an error
//! let n: i64 = ask!(con, "LLEN", "p");                  // converted to what is asked for
//! assert_eq!(err!(con, "LPUSH", "h", "a"), "WRONGTYPE Operation against …");
//! let result = cmd!(con, "RMQ.COMPLETE", "m", "p", "e", id, 5, b"\0".as_slice()); // RedisResult<Value>
//! ```

use redis::{Cmd, ConnectionLike, RedisError, RedisResult, Value};

/// A command from arguments of any kind: text, bytes, numbers, and slices or vectors of them.
macro_rules! command {
    ($name:expr $(, $arg:expr)* $(,)?) => {{
        #[allow(unused_mut)]
        let mut command = redis::Cmd::new();
        command.arg($name);
        $(command.arg($arg);)*
        command
    }};
}

/// Sends a command on a connection (plain or cluster): `RedisResult<Value>`.
macro_rules! send {
    ($con:expr, $command:expr) => {{
        #[allow(unused_imports)]
        use redis::ConnectionLike as _;
        $crate::common::commands::top_error($con.req_command($command))
    }};
}

/// Calls a command: `RedisResult<Value>`.
macro_rules! cmd {
    ($con:expr, $($arg:expr),+ $(,)?) => {
        $crate::common::send!($con, &$crate::common::command!($($arg),+))
    };
}

/// Calls a command that must succeed: its `Value`.
macro_rules! ok {
    ($con:expr, $($arg:expr),+ $(,)?) => {{
        let command = $crate::common::command!($($arg),+);
        let result = $crate::common::send!($con, &command);
        result.unwrap_or_else(|e| $crate::common::commands::failed(&command, &e))
    }};
}

/// Calls a command that must succeed, and converts its reply to the type that the caller expects.
macro_rules! ask {
    ($con:expr, $($arg:expr),+ $(,)?) => {
        redis::from_redis_value($crate::common::ok!($con, $($arg),+)).expect("a reply of the type asked for")
    };
}

/// Calls a command that must fail: its error as the server sent it, such as `ERR batch must be …`.
macro_rules! err {
    ($con:expr, $($arg:expr),+ $(,)?) => {{
        let command = $crate::common::command!($($arg),+);
        let result = $crate::common::send!($con, &command);
        $crate::common::commands::error_of(&command, result)
    }};
}

pub(crate) use {ask, cmd, command, err, ok, send};

#[track_caller]
pub fn failed(command: &Cmd, error: &RedisError) -> Value {
    panic!("{}\n  gave the error: {}", line_of(command), error_text(error))
}

/// The error of a command that must fail.
#[track_caller]
pub fn error_of(command: &Cmd, result: RedisResult<Value>) -> String {
    match result {
        Ok(value) => panic!("{}\n  should fail, but replied {value:?}", line_of(command)),
        Err(e) => error_text(&e),
    }
}

/// Calls a command given as a list of arguments, for tests that build them.
pub fn call<A: AsRef<[u8]>>(con: &mut impl ConnectionLike, args: &[A]) -> RedisResult<Value> {
    let mut command = Cmd::new();
    for arg in args {
        command.arg(arg.as_ref());
    }
    top_error(con.req_command(&command))
}

/// An error reply is an `Err`; errors inside of an array (EXEC) stay where they are.
pub fn top_error(result: RedisResult<Value>) -> RedisResult<Value> {
    match result {
        Ok(Value::ServerError(e)) => Err(e.into()),
        other => other,
    }
}

/// The error as the server sent it: the client splits it into code and detail.
pub fn error_text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_string(),
        (None, _) => format!("(not from the server) {error}"),
    }
}

/// A command as one readable line.
pub fn line_of(command: &Cmd) -> String {
    let args: Vec<Vec<u8>> = command
        .args_iter()
        .map(|arg| match arg {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => b"<cursor>".to_vec(),
        })
        .collect();
    super::replica::line(&args)
}

/// A bulk (or simple) string's bytes.
#[track_caller]
pub fn bulk(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        Value::Okay => b"OK".to_vec(),
        Value::Int(n) => n.to_string().into_bytes(),
        other => panic!("a string was expected, not {other:?}"),
    }
}

/// A string reply as text; bytes that are no UTF-8 are replaced.
#[track_caller]
pub fn text(value: Value) -> String {
    String::from_utf8_lossy(&bulk(value)).into_owned()
}

/// The elements of an array or set reply.
#[track_caller]
pub fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        other => panic!("an array was expected, not {other:?}"),
    }
}

/// An array of strings, as text.
#[track_caller]
pub fn strings(value: Value) -> Vec<String> {
    items(value).into_iter().map(text).collect()
}

/// An array of arrays of strings: what DELAYTICK and TIMEOUTS reply.
#[track_caller]
pub fn rows(value: Value) -> Vec<Vec<Vec<u8>>> {
    let row = |row| items(row).into_iter().map(bulk).collect();
    items(value).into_iter().map(row).collect()
}

/// The same as text.
#[track_caller]
pub fn text_rows(value: Value) -> Vec<Vec<String>> {
    items(value).into_iter().map(strings).collect()
}

/// The server's clock, in milliseconds.
pub fn server_time_ms(con: &mut impl ConnectionLike) -> i64 {
    let (seconds, micros): (i64, i64) = ask!(con, "TIME");
    seconds * 1000 + micros / 1000
}

/// The elements of a list, as text.
pub fn list(con: &mut impl ConnectionLike, key: &str) -> Vec<String> {
    strings(ok!(con, "LRANGE", key, 0, -1))
}

/// A counter of INFO rmq.
pub fn counter(server: &super::Server, name: &str) -> u64 {
    server.info("rmq")[&format!("rmq_{name}")].parse().unwrap()
}
