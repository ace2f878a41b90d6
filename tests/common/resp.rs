//! A connection that speaks RESP by hand: for byte-exact assertions, and for commands that block.

use super::{deadline, Server};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply, with all the types that the protocol has.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    /// `$-1`
    NilBulk,
    /// `*-1`
    NilArray,
    Array(Vec<Reply>),
    /// RESP3 `_`
    Null,
    Double(String),
    Bool(bool),
    BigNumber(String),
    BlobError(Vec<u8>),
    Verbatim(Vec<u8>),
    Map(Vec<(Reply, Reply)>),
    Set(Vec<Reply>),
    Push(Vec<Reply>),
}

impl Reply {
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(bytes.as_ref().to_vec())
    }

    /// Bytes of a string reply, if it is one.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Simple(text) | Reply::Error(text) => Some(text.as_bytes()),
            Reply::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// One reply from the start of the buffer with its length, or `None` if the buffer does not hold all of it yet.
pub fn parse(buffer: &[u8]) -> Option<(Reply, usize)> {
    let end = buffer.windows(2).position(|pair| pair == b"\r\n")?;
    let line = String::from_utf8_lossy(&buffer[1..end]).into_owned();
    let at = end + 2;
    let number = || -> i64 { line.parse().unwrap_or_else(|_| panic!("no number: {line:?}")) };
    let reply = match buffer[0] {
        b'+' => Reply::Simple(line),
        b'-' => Reply::Error(line),
        b':' => Reply::Int(number()),
        b'_' => Reply::Null,
        b',' => Reply::Double(line),
        b'#' => Reply::Bool(line == "t"),
        b'(' => Reply::BigNumber(line),
        b'$' if number() < 0 => Reply::NilBulk,
        b'*' if number() < 0 => Reply::NilArray,
        kind @ (b'$' | b'!' | b'=') => {
            let length = number() as usize;
            let body = buffer.get(at..at + length + 2)?[..length].to_vec();
            let reply = match kind {
                b'$' => Reply::Bulk(body),
                b'!' => Reply::BlobError(body),
                _ => Reply::Verbatim(body),
            };
            return Some((reply, at + length + 2));
        }
        kind @ (b'*' | b'~' | b'>' | b'%') => {
            let count = number() as usize * if kind == b'%' { 2 } else { 1 };
            let mut at = at;
            let mut items = Vec::new();
            for _ in 0..count {
                let (item, length) = parse(buffer.get(at..).filter(|rest| !rest.is_empty())?)?;
                items.push(item);
                at += length;
            }
            let reply = match kind {
                b'*' => Reply::Array(items),
                b'~' => Reply::Set(items),
                b'>' => Reply::Push(items),
                _ => {
                    let mut items = items.into_iter();
                    let mut pairs = Vec::new();
                    while let (Some(key), Some(value)) = (items.next(), items.next()) {
                        pairs.push((key, value));
                    }
                    Reply::Map(pairs)
                }
            };
            return Some((reply, at));
        }
        other => panic!("no RESP type begins with {:?}", other as char),
    };
    Some((reply, at))
}

/// Arguments as they go over the wire.
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// A raw connection.
pub struct Raw {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Raw {
    pub fn connect(server: &Server) -> Raw {
        Raw::try_connect(server.port()).expect("a connection to the server")
    }

    pub fn try_connect(port: u16) -> io::Result<Raw> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(deadline()))?;
        Ok(Raw { stream, buffer: Vec::new() })
    }

    /// How long a read waits before it fails.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.stream.set_read_timeout(Some(timeout)).expect("timeout");
    }

    /// Sends a command and does not wait: `raw.send(&["BLMOVE", "a", "b", "RIGHT", "LEFT", "0"])`.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.send_bytes(&encode(args));
    }

    /// The same for arguments of mixed kinds: `raw.send_cmd(&command!("LPUSH", "p", 5))`.
    pub fn send_cmd(&mut self, command: &redis::Cmd) {
        self.send_bytes(&command.get_packed_command());
    }

    /// Sends bytes as they are. A server that has gone away shows when its answer is read.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// One reply, byte by byte as it came.
    pub fn read_raw(&mut self) -> Vec<u8> {
        match self.try_read_raw() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => panic!("the server closed the connection"),
            Err(e) => panic!("no reply: {e}"),
        }
    }

    /// One reply; `None` when the server closed the connection.
    pub fn try_read_raw(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some((_, length)) = parse(&self.buffer) {
                return Ok(Some(self.buffer.drain(..length).collect()));
            }
            match self.fill() {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// One reply.
    pub fn read(&mut self) -> Reply {
        parse(&self.read_raw()).expect("a whole reply").0
    }

    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(args);
        self.read()
    }

    pub fn call_cmd(&mut self, command: &redis::Cmd) -> Reply {
        self.send_cmd(command);
        self.read()
    }

    pub fn call_raw<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Vec<u8> {
        self.send(args);
        self.read_raw()
    }

    /// True when no reply comes within the time given: the command blocks.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        self.set_timeout(time);
        let silent = self.buffer.is_empty() && matches!(self.fill(), Err(e) if is_timeout(&e));
        self.set_timeout(deadline());
        silent
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 64 * 1024];
        let n = self.stream.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..n]);
        Ok(n)
    }
}

pub fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
