//! Replication seen from the other side: a tap on the stream, and a real replica.

use super::resp::{encode, is_timeout, parse, Raw, Reply};
use super::{deadline, eventually, Builder, Server};
use redis::ConnectionLike;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::{Duration, Instant};

/// A command as it was propagated, argument by argument.
pub type Propagated = Vec<Vec<u8>>;

/// Attached to a server as a replica; receives every command that it propagates.
pub struct ReplicaTap {
    socket: TcpStream,
    commands: Receiver<Propagated>,
}

impl ReplicaTap {
    /// Attaches and takes the full synchronisation; what is written after this returns is received.
    pub fn attach(server: &Server) -> ReplicaTap {
        let socket = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        socket.set_nodelay(true).expect("nodelay");
        let mut stream = Stream { socket, buffer: Vec::new() };
        stream.socket.set_read_timeout(Some(deadline())).unwrap();

        stream.send(&["REPLCONF", "listening-port", "1"]);
        stream.expect_line("+OK");
        stream.send(&["REPLCONF", "capa", "eof", "capa", "psync2"]);
        stream.expect_line("+OK");
        stream.send(&["PSYNC", "?", "-1"]);
        let resync = stream.expect_line("+FULLRESYNC");
        let offset = resync.rsplit(' ').next().and_then(|n| n.parse().ok());
        stream.skip_rdb();

        let (found, commands) = channel();
        let socket = stream.socket.try_clone().expect("a second handle");
        let offset: u64 = offset.expect("FULLRESYNC ends in an offset");
        std::thread::spawn(move || stream.listen(offset, &found));
        ReplicaTap { socket, commands }
    }

    /// All commands propagated so far, in order, without PING, SELECT and REPLCONF.
    ///
    /// The end is marked by a PUBLISH, which is propagated but touches no key.
    pub fn commands_until_marker(&self, con: &mut impl ConnectionLike) -> Vec<Propagated> {
        let marker = unique_marker();
        super::ok!(con, "PUBLISH", "rmq-tap-marker", &marker);
        self.commands_until(&["PUBLISH", "rmq-tap-marker", &marker])
    }

    /// The same on a cluster node, where PUBLISH takes another way: the marker is a SET of the key given, which
    /// must belong to that node.
    pub fn commands_until_key_marker(&self, con: &mut impl ConnectionLike, key: &str) -> Vec<Propagated> {
        let marker = unique_marker();
        super::ok!(con, "SET", key, &marker);
        self.commands_until(&["SET", key, &marker])
    }

    /// The same as lines: `["MULTI", "LREM p 1 a", "EXEC"]`.
    pub fn lines_until_marker(&self, con: &mut impl ConnectionLike) -> Vec<String> {
        let commands = self.commands_until_marker(con);
        commands.iter().map(|command| line(command)).collect()
    }

    fn commands_until(&self, marker: &[&str]) -> Vec<Propagated> {
        let mut received = Vec::new();
        loop {
            let command = self.commands.recv_timeout(deadline()).unwrap_or_else(|e| {
                panic!("the replication stream ended before the marker ({e}); received {received:?}")
            });
            if command.iter().map(Vec::as_slice).eq(marker.iter().map(|m| m.as_bytes())) {
                return received;
            }
            let name = command[0].to_ascii_uppercase();
            if !matches!(name.as_slice(), b"PING" | b"SELECT" | b"REPLCONF") {
                received.push(command);
            }
        }
    }
}

impl Drop for ReplicaTap {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn unique_marker() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{n}", std::process::id())
}

/// A command as one line. An argument that is empty, has a blank or is not printable is quoted and escaped.
pub fn line<A: AsRef<[u8]>>(command: &[A]) -> String {
    let word = |arg: &A| {
        let bytes = arg.as_ref();
        if !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic) {
            String::from_utf8_lossy(bytes).into_owned()
        } else {
            format!("\"{}\"", bytes.escape_ascii())
        }
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The replica's end of the connection.
struct Stream {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Stream {
    fn send(&mut self, args: &[&str]) {
        let _ = self.socket.write_all(&encode(args));
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 64 * 1024];
        let n = self.socket.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..n]);
        Ok(n)
    }

    fn must_fill(&mut self) {
        match self.fill() {
            Ok(0) => panic!("the server closed the connection of its replica"),
            Ok(_) => {}
            Err(e) => panic!("the server is silent towards its replica: {e}"),
        }
    }

    /// A server that is busy sends empty lines as a sign of life.
    fn skip_empty_lines(&mut self) {
        let empty = self.buffer.iter().take_while(|b| **b == b'\n').count();
        self.buffer.drain(..empty);
    }

    fn expect_line(&mut self, start: &str) -> String {
        loop {
            self.skip_empty_lines();
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let line = String::from_utf8_lossy(&line[..end]).into_owned();
                assert!(line.starts_with(start), "{start} was expected, not {line:?}");
                return line;
            }
            self.must_fill();
        }
    }

    /// The snapshot comes either with its length or, when it is streamed, with the mark that ends it.
    fn skip_rdb(&mut self) {
        let header = self.expect_line("$");
        if let Some(mark) = header.strip_prefix("$EOF:") {
            let mark = mark.as_bytes();
            let mut searched = 0;
            loop {
                let at = self.buffer[searched..].windows(mark.len()).position(|w| w == mark);
                if let Some(at) = at {
                    self.buffer.drain(..searched + at + mark.len());
                    return;
                }
                searched = self.buffer.len().saturating_sub(mark.len());
                self.must_fill();
            }
        }
        let mut left: usize = header[1..].parse().expect("the length of the snapshot");
        loop {
            let here = left.min(self.buffer.len());
            self.buffer.drain(..here);
            left -= here;
            if left == 0 {
                return;
            }
            self.must_fill();
        }
    }

    /// Hands on commands and acknowledges them: without that a server holds back a streamed synchronisation, and
    /// drops the replica in the end.
    fn listen(mut self, mut offset: u64, found: &Sender<Propagated>) {
        let often = Duration::from_millis(200);
        let _ = self.socket.set_read_timeout(Some(often));
        let mut acknowledged = None;
        loop {
            let mut asked = false;
            self.skip_empty_lines();
            while let Some((reply, length)) = parse(&self.buffer) {
                self.buffer.drain(..length);
                offset += length as u64;
                if let Reply::Array(args) = reply {
                    let command: Propagated = args.iter().map(|arg| arg.bytes().unwrap_or_default().to_vec()).collect();
                    asked |= command[0].eq_ignore_ascii_case(b"REPLCONF");
                    if found.send(command).is_err() {
                        return;
                    }
                }
                self.skip_empty_lines();
            }
            if asked || acknowledged.is_none_or(|at: Instant| at.elapsed() >= often) {
                self.send(&["REPLCONF", "ACK", &offset.to_string()]);
                acknowledged = Some(Instant::now());
            }
            match self.fill() {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if is_timeout(&e) => {}
                Err(_) => return,
            }
        }
    }
}

/// A real replica. It is a `Server`: `replica.digest()`, `replica.con()`.
pub struct Replica {
    server: Server,
    primary_port: u16,
}

impl Replica {
    /// A replica without the module, in sync when this returns.
    pub fn of(primary: &Server) -> Replica {
        Replica::started_as(Server::builder().without_module(), primary)
    }

    /// A replica with the module: for failover.
    pub fn with_module_of(primary: &Server) -> Replica {
        Replica::started_as(Server::builder(), primary)
    }

    pub fn started_as(builder: Builder, primary: &Server) -> Replica {
        let primary_port = primary.port();
        let server = builder.config_line(&format!("replicaof 127.0.0.1 {primary_port}")).start();
        let replica = Replica { server, primary_port };
        replica.wait_synced();
        replica
    }

    /// Waits until the replica has all that the primary has replied to by now.
    pub fn wait_synced(&self) {
        let wanted = replication_field(self.primary_port, "master_repl_offset");
        let wanted: u64 = wanted.parse().expect("an offset");
        let synced = || {
            let here = |field| replication_field(self.server.port(), field);
            here("master_link_status") == "up" && here("slave_repl_offset").parse().is_ok_and(|at: u64| at >= wanted)
        };
        if !eventually(deadline(), synced) {
            panic!("the replica did not catch up; its log:\n{}", self.server.log());
        }
    }

    /// REPLICAOF NO ONE.
    pub fn promote(&self) {
        super::ok!(self.server.con(), "REPLICAOF", "NO", "ONE");
    }
}

impl Deref for Replica {
    type Target = Server;
    fn deref(&self) -> &Server {
        &self.server
    }
}

fn replication_field(port: u16, field: &str) -> String {
    let mut raw = Raw::try_connect(port).expect("a connection");
    let info = raw.call(&["INFO", "replication"]);
    let info = String::from_utf8_lossy(info.bytes().unwrap_or_default()).into_owned();
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(String::from));
    value.unwrap_or_default()
}
