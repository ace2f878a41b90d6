//! The client: one thread, one epoll loop over all connections. It does less per message than the server does, so that the
//! server is what gets measured.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Commands as they go over the wire.
#[derive(Default)]
pub struct Wire {
    pub bytes: Vec<u8>,
    pub replies: usize,
}

impl Wire {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.replies = 0;
    }

    pub fn command(&mut self, args: &[&[u8]]) {
        self.begin(args.len());
        for arg in args {
            self.arg(arg);
        }
    }

    /// A command of `args` arguments, the name included; they follow one by one.
    pub fn begin(&mut self, args: usize) {
        self.head(b'*', args);
        self.replies += 1;
    }

    pub fn arg(&mut self, arg: impl AsRef<[u8]>) {
        let arg = arg.as_ref();
        self.head(b'$', arg.len());
        self.bytes.extend_from_slice(arg);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub fn args<T: AsRef<[u8]>>(&mut self, args: impl IntoIterator<Item = T>) {
        for arg in args {
            self.arg(arg);
        }
    }

    fn head(&mut self, kind: u8, number: usize) {
        self.bytes.push(kind);
        // Most lengths have one or two digits.
        if number < 10 {
            self.bytes.push(b'0' + number as u8);
        } else if number < 100 {
            self.bytes.extend_from_slice(&[b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]);
        } else {
            self.bytes.extend_from_slice(number.to_string().as_bytes());
        }
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// `send!(wire, "LREM", key, "-1", id)`: one command of text or bytes.
macro_rules! send {
    ($wire:expr, $($arg:expr),+ $(,)?) => {
        $wire.command(&[$(AsRef::<[u8]>::as_ref(&$arg)),+])
    };
}
pub(crate) use send;

pub struct Conn {
    stream: TcpStream,
    inbox: Vec<u8>,
    filled: usize,
    parsed: usize,
    /// Values that the reply being read still lacks.
    open: usize,
    /// Replies complete since the last request, and how many it will have.
    replies: usize,
    awaited: usize,
    outbox: Vec<u8>,
    sent: usize,
}

impl Conn {
    pub fn open(port: u16) -> Conn {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("nodelay");
        Conn {
            stream,
            inbox: vec![0; 32 << 10],
            filled: 0,
            parsed: 0,
            open: 0,
            replies: 0,
            awaited: 0,
            outbox: Vec::new(),
            sent: 0,
        }
    }

    /// Sends everything in one write, waits for every reply and returns them; an error reply stops the benchmark.
    pub fn run(&mut self, wire: &Wire) -> &[u8] {
        self.forget_replies();
        // The server never stops reading because its replies wait, so this cannot lock up.
        self.stream.write_all(&wire.bytes).expect("the server reads");
        while self.replies < wire.replies {
            assert!(self.receive().expect("the server answers") > 0, "the server hung up");
            self.parse();
        }
        &self.inbox[..self.parsed]
    }

    fn forget_replies(&mut self) {
        (self.filled, self.parsed, self.open, self.replies) = (0, 0, 0, 0);
    }

    fn receive(&mut self) -> io::Result<usize> {
        if self.filled == self.inbox.len() {
            self.inbox.resize(2 * self.filled, 0);
        }
        let count = self.stream.read(&mut self.inbox[self.filled..])?;
        self.filled += count;
        Ok(count)
    }

    /// Goes on from where the last call stopped for want of bytes.
    fn parse(&mut self) {
        while self.parsed < self.filled {
            let rest = &self.inbox[self.parsed..self.filled];
            let Some(line) = rest.iter().position(|byte| *byte == b'\n') else {
                return;
            };
            let number = || parse_number(&rest[1..line - 1]);
            let (used, inner) = match rest[0] {
                b'-' | b'!' => panic!("the server replied {:?}", String::from_utf8_lossy(&rest[..line])),
                b'$' => match number() {
                    -1 => (line + 1, 0),
                    length => (line + 1 + length as usize + 2, 0),
                },
                b'*' => (line + 1, number().max(0) as usize),
                _ => (line + 1, 0),
            };
            if used > rest.len() {
                return;
            }
            self.parsed += used;
            self.open = self.open.max(1) - 1 + inner;
            if self.open == 0 {
                self.replies += 1;
            }
        }
    }

    /// False while the socket is full.
    fn flush(&mut self) -> bool {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) => panic!("the server reads: {e}"),
            }
        }
        true
    }
}

fn parse_number(digits: &[u8]) -> i64 {
    match digits.split_first() {
        Some((b'-', digits)) => -parse_number(digits),
        _ => digits.iter().fold(0, |n, digit| 10 * n + i64::from(digit - b'0')),
    }
}

/// The bulk strings of replies, in their order, however deep they stand.
pub fn bulks(mut replies: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || loop {
        let line = replies.iter().position(|byte| *byte == b'\n')?;
        let (kind, number) = (replies[0], &replies[1..line - 1]);
        replies = &replies[line + 1..];
        if kind == b'$' {
            let length = parse_number(number);
            if length >= 0 {
                let bulk = &replies[..length as usize];
                replies = &replies[length as usize + 2..];
                return Some(bulk);
            }
        }
    })
}

/// What the loop asks for whenever a connection is free.
pub trait Script {
    /// Writes the connection's next request, given the replies to its last one (none at first). False when the connection
    /// has no more to do.
    fn next(&mut self, conn: usize, replies: &[u8], out: &mut Wire) -> bool;

    /// Ends the run although connections still wait.
    fn is_done(&self) -> bool;
}

/// Runs the script over the connections until it is done, and says how long it took.
pub fn drive(conns: &mut [Conn], script: &mut impl Script) -> Duration {
    let poll = Epoll::new();
    let mut wire = Wire::default();
    for (index, conn) in conns.iter_mut().enumerate() {
        conn.stream.set_nonblocking(true).expect("nonblocking");
        poll.add(conn.stream.as_raw_fd(), index);
    }
    let start = Instant::now();
    for (index, conn) in conns.iter_mut().enumerate() {
        next_request(conn, index, script, &poll, &mut wire);
    }
    let mut ready = Vec::with_capacity(64);
    while !script.is_done() {
        poll.wait(&mut ready);
        for index in &ready {
            let conn = &mut conns[*index];
            if conn.sent < conn.outbox.len() && conn.flush() {
                poll.want_write(conn.stream.as_raw_fd(), *index, false);
            }
            match conn.receive() {
                Ok(0) => panic!("the server hung up"),
                Ok(_) => conn.parse(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => panic!("the server answers: {e}"),
            }
            if conn.replies == conn.awaited {
                next_request(conn, *index, script, &poll, &mut wire);
            }
        }
    }
    start.elapsed()
}

fn next_request(conn: &mut Conn, index: usize, script: &mut impl Script, poll: &Epoll, wire: &mut Wire) {
    wire.clear();
    if !script.next(index, &conn.inbox[..conn.parsed], wire) {
        conn.awaited = usize::MAX;
        return;
    }
    conn.forget_replies();
    conn.awaited = wire.replies;
    conn.sent = 0;
    std::mem::swap(&mut conn.outbox, &mut wire.bytes);
    if !conn.flush() {
        poll.want_write(conn.stream.as_raw_fd(), index, true);
    }
}

struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> Epoll {
        // SAFETY: takes no pointer; a descriptor that is not -1 is ours alone.
        unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert!(fd >= 0, "epoll: {}", io::Error::last_os_error());
            Epoll(OwnedFd::from_raw_fd(fd))
        }
    }

    fn add(&self, fd: i32, index: usize) {
        self.control(libc::EPOLL_CTL_ADD, fd, index, libc::EPOLLIN);
    }

    fn want_write(&self, fd: i32, index: usize, on: bool) {
        let write = if on { libc::EPOLLOUT } else { 0 };
        self.control(libc::EPOLL_CTL_MOD, fd, index, libc::EPOLLIN | write);
    }

    fn control(&self, action: i32, fd: i32, index: usize, events: i32) {
        let mut event = libc::epoll_event { events: events as u32, u64: index as u64 };
        // SAFETY: both descriptors are open, and the event outlives the call.
        let status = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), action, fd, &mut event) };
        assert_eq!(status, 0, "epoll: {}", io::Error::last_os_error());
    }

    fn wait(&self, ready: &mut Vec<usize>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the kernel writes at most as many events as the array holds.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, 60_000) };
        let interrupted = count < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        assert!(count > 0 || interrupted, "the server was silent for a minute");
        ready.clear();
        ready.extend(events[..count.max(0) as usize].iter().map(|event| event.u64 as usize));
    }
}
