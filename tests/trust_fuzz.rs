//! Arbitrary calls, a million by default (RMQ_CALLS): any number of arguments, any bytes, any numbers, huge ones, the
//! same key twice, options in any order, over RESP2 and RESP3, inside MULTI and Lua. The server lives, nothing panics,
//! an error changes no key, and memory returns to where it was. Whether something changed is told by DEBUG DIGEST in
//! every fourth batch of calls, and by WATCH, which is much cheaper, in the others.
//!
//! A batch begins with empty keys, so a failure prints all that is needed to repeat it.

mod common;
#[path = "trust_model/wire.rs"]
mod wire;

use common::*;
use wire::{line, words, Command, Wire};

/// Calls in a batch.
const BATCH: usize = 60;

/// What an argument is meant to be.
#[derive(Clone, Copy)]
enum Arg {
    /// By the name that the key has here.
    Key(&'static str),
    Id,
    Bytes,
    Number,
    Lease,
    Queue,
    /// Words that an option is made of.
    Option(&'static str, Option<&'static Arg>),
}

use Arg::{Bytes, Id, Key, Lease, Number, Option as Opt, Queue};

const MAP: Arg = Key("map");
const DELAYS: Arg = Key("delays");
const EXPIRES: Arg = Key("expires");
const PENDING: Arg = Key("q:pending");
const PROCESSING: Arg = Key("q:processing");
const DLQ: Arg = Key("dlq");
const DLQ_MAP: Arg = Key("dlq-map");

/// Each command with arguments that it would take; options are left out, repeated and shuffled.
const SHAPES: &[(&str, &[Arg])] = &[
    ("RMQ.COMPLETE", &[MAP, PROCESSING, EXPIRES, Id, Id, Id]),
    (
        "RMQ.RETRY",
        &[MAP, DELAYS, EXPIRES, PROCESSING, Id, Bytes, Number, Bytes],
    ),
    ("RMQ.DELAYTICK", &[DELAYS, MAP, Number]),
    (
        "RMQ.TIMEOUTS",
        &[
            EXPIRES,
            MAP,
            Number,
            Number,
            Opt("ALL", None),
            Opt("CLAIM", Some(&Number)),
        ],
    ),
    (
        "RMQ.PARSEERR",
        &[
            Key("errors-map"),
            Key("errors"),
            PROCESSING,
            EXPIRES,
            MAP,
            Id,
            Bytes,
            Bytes,
            Bytes,
            Bytes,
            Number,
            Number,
            Number,
        ],
    ),
    (
        "RMQ.PUBLISH",
        &[MAP, PENDING, Opt("URGENT", None), Id, Bytes, Id, Bytes],
    ),
    (
        "RMQ.SCHEDULE",
        &[MAP, DELAYS, Id, Bytes, Queue, Number, Opt("AT", None)],
    ),
    (
        "RMQ.RESERVE",
        &[
            PENDING,
            PROCESSING,
            MAP,
            EXPIRES,
            Number,
            Opt("COUNT", Some(&Number)),
            Opt("BLOCK", Some(&Number)),
        ],
    ),
    ("RMQ.ACK", &[MAP, PROCESSING, EXPIRES, Id, Lease, Id, Lease]),
    (
        "RMQ.NACK",
        &[
            MAP,
            DELAYS,
            EXPIRES,
            PROCESSING,
            Id,
            Lease,
            Number,
            Opt("PAYLOAD", Some(&Bytes)),
        ],
    ),
    ("RMQ.EXTEND", &[EXPIRES, Id, Lease, Number]),
    (
        "RMQ.DEADLETTER",
        &[
            DLQ_MAP,
            DLQ,
            EXPIRES,
            MAP,
            PROCESSING,
            Id,
            Bytes,
            Bytes,
            Opt("LEASE", Some(&Lease)),
        ],
    ),
    ("RMQ.REDRIVE", &[DLQ, DLQ_MAP, MAP, Number]),
    ("RMQ.NEXTDELAY", &[DELAYS]),
];

/// Every name that a key has here, the derived ones and the empty one too.
const KEYS: &[&str] = &[
    "map",
    "delays",
    "expires",
    "q:pending",
    "q:processing",
    "dlq",
    "dlq-map",
    "errors",
    "errors-map",
    "text",
    "missing",
    "",
    ":pending",
    ":processing",
    "r:pending",
    "r:processing",
];

const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1.5",
    "abc",
    "",
    "1e3",
    "1e-5",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "18446744073709551616",
    "9223372036854775807",
    "-9223372036854775808",
    "1000000000000",
    "1000000000001",
    "9007199254740993",
    "36500",
    " 1",
    "1 ",
    "+1",
    "0x10",
    "*",
    "1\0",
    "00000000000000000000000000000000001",
];

struct Fuzzer {
    rng: Rng,
}

impl Fuzzer {
    fn id(&mut self) -> Vec<u8> {
        match self.rng.below(30) {
            0 => b"".to_vec(),
            1 => b"a:queue".to_vec(),
            2 => b"a:attempts".to_vec(),
            3 => b"*".to_vec(),
            4 => b"\0\r\n%s\xff".to_vec(),
            5 => self.bytes(),
            n => vec![b'a' + (n % 8) as u8],
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.rng.below(20_000) {
            0 => 1_000_000,
            1..=20 => 5000 + self.rng.below(20_000),
            21..=2000 => self.rng.below(300),
            _ => self.rng.below(10),
        };
        match self.rng.below(4) {
            0 => vec![b'"'; length],
            1 => "é\u{1F600}".repeat(length / 6 + 1).into_bytes(),
            _ if length > 1000 => vec![self.rng.next_u64() as u8; length],
            _ => self.rng.bytes(length),
        }
    }

    fn number(&mut self) -> Vec<u8> {
        if self.rng.chance(12) {
            return self.rng.pick(NUMBERS).as_bytes().to_vec();
        }
        (1 + self.rng.below(20)).to_string().into_bytes()
    }

    fn key(&mut self) -> Vec<u8> {
        if self.rng.chance(2) {
            return self.bytes();
        }
        self.rng.pick(KEYS).as_bytes().to_vec()
    }

    fn queue(&mut self) -> Vec<u8> {
        let queue = *self.rng.pick(&["q", "q", "q", "r", "", "text", "map", "\r\n"]);
        queue.as_bytes().to_vec()
    }

    /// A deadline that `plain` may have set, so that it is a lease now and then.
    fn lease(&mut self) -> Vec<u8> {
        match self.rng.below(6) {
            0 => self.bytes(),
            1 => self.number(),
            n => format!("{}.5", 1000 * n % 3000).into_bytes(),
        }
    }

    fn arg(&mut self, arg: &Arg, words: &mut Command) {
        let odd = self.rng.below(100);
        match arg {
            Key(name) if odd < 97 => words.push(name.as_bytes().to_vec()),
            Key(..) => words.push(self.key()),
            _ if odd < 2 => words.push(self.key()),
            _ if odd < 4 => words.push(self.bytes()),
            Id => words.push(self.id()),
            Bytes => words.push(self.bytes()),
            Number => words.push(self.number()),
            Lease => words.push(self.lease()),
            Queue => words.push(self.queue()),
            Opt(word, value) => {
                for _ in 0..*self.rng.pick(&[0, 0, 0, 1, 1, 1, 1, 1, 1, 2]) {
                    let word = if self.rng.chance(50) {
                        word.to_lowercase()
                    } else {
                        word.to_string()
                    };
                    words.push(word.into_bytes());
                    if let Some(value) = value {
                        self.arg(value, words);
                    }
                }
            }
        }
    }

    /// A call that may or may not make sense.
    fn call(&mut self) -> Command {
        let (name, shape) = *self.rng.pick(SHAPES);
        let mut call = vec![name.as_bytes().to_vec()];
        for arg in shape {
            self.arg(arg, &mut call);
        }
        match self.rng.below(100) {
            0..=4 => call.truncate(1 + self.rng.below(call.len())),
            5..=7 => {
                let index = self.rng.below(call.len() - 1) + 1;
                call.remove(index);
            }
            8..=10 => {
                let word = match self.rng.below(3) {
                    0 => self.key(),
                    1 => self.number(),
                    _ => self.bytes(),
                };
                let index = self.rng.below(call.len()) + 1;
                call.insert(index, word);
            }
            11..=13 => {
                let (one, other) = (self.rng.below(call.len() - 1) + 1, self.rng.below(call.len() - 1) + 1);
                call.swap(one, other);
            }
            14..=15 => {
                let index = self.rng.below(call.len() - 1) + 1;
                let copy = call[index].clone();
                let other = self.rng.below(call.len() - 1) + 1;
                call[other] = copy;
            }
            16 => self.rng.shuffle(&mut call[1..]),
            17 => {
                let more = self.rng.below(300);
                for _ in 0..more {
                    let id = self.id();
                    call.push(id);
                }
            }
            18 => {
                let count = self.rng.below(12);
                call.truncate(1);
                for _ in 0..count {
                    let word = self.bytes();
                    call.push(word);
                }
            }
            _ => {}
        }
        call
    }

    /// What users do with plain commands, wrong types included.
    fn plain(&mut self) -> Command {
        let (id, queue) = (self.id(), self.queue());
        let field = [id.as_slice(), b":queue"].concat();
        let score = format!("{}.5", 1000 * self.rng.below(3));
        let list = *self
            .rng
            .pick(&["q:pending", "q:processing", "r:pending", "dlq", "errors", ":pending"]);
        match self.rng.below(12) {
            0..=3 => words(&[b"HSET", b"map".as_slice(), &id, b"payload", &field, &queue]),
            4 => words(&[b"HSET", b"dlq-map".as_slice(), &id, b"payload", &field, &queue]),
            5..=6 => words(&[b"RPUSH", list.as_bytes(), &id, b"a", &id]),
            7 => words(&[b"ZADD", b"expires".as_slice(), score.as_bytes(), &id, b"1000.5", b"a"]),
            8 => words(&[b"ZADD", b"delays".as_slice(), score.as_bytes(), &id, b"9e12", b"b"]),
            9 => words(&[b"DEL", self.key().as_slice()]),
            10 => words(&[b"RENAME", self.key().as_slice(), &self.key()]),
            // Mostly too late to matter; now and then it plants a wrong type.
            _ => match self.rng.below(4) {
                0 => words(&[b"SET", self.key().as_slice(), b"text"]),
                1 => words(&[b"SADD", self.key().as_slice(), b"member"]),
                2 => words(&[b"HSET", b"map".as_slice(), &id, b"1", &field, b""]),
                _ => words(&[b"SET", b"text".as_slice(), b"1"]),
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Plain,
    Multi,
    Lua,
}

/// How a batch finds out whether a call changed anything.
#[derive(Clone, Copy, PartialEq)]
enum Proof {
    /// DEBUG DIGEST after each call.
    Digest,
    /// WATCH of every key before each call, and an EXEC after it.
    Watch,
}

/// A call in a batch, and where its replies stand.
struct Sent {
    call: Command,
    way: Way,
    reply: usize,
    /// Replies that differ if the call changed something.
    before: usize,
    after: usize,
}

/// The error that a call ended with, if it did. The replies of one call, whichever way it went.
fn error_of(way: Way, replies: &[Reply]) -> Option<String> {
    let own = |reply: &Reply| match reply {
        Reply::Error(text) => Some(text.clone()),
        Reply::BlobError(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    match way {
        Way::Plain | Way::Lua => own(&replies[0]),
        Way::Multi => own(&replies[1]).or_else(|| match &replies[2] {
            Reply::Array(results) => own(&results[0]),
            other => panic!("EXEC replied {other:?}"),
        }),
    }
}

/// A client that waits for ever would end the run; one that waits a moment is welcome, but not often.
fn shorten_waits(call: &mut Command, may_wait: bool) {
    if !call[0].eq_ignore_ascii_case(b"RMQ.RESERVE") {
        return;
    }
    for index in 1..call.len().saturating_sub(1) {
        if call[index].eq_ignore_ascii_case(b"BLOCK") {
            call[index + 1] = if may_wait { b"1".to_vec() } else { b"-1".to_vec() };
        }
    }
}

fn batch_of(fuzzer: &mut Fuzzer, proof: Proof) -> (Vec<Command>, Vec<Sent>) {
    let mut watch = words(&["WATCH"]);
    watch.extend(KEYS.iter().map(|key| key.as_bytes().to_vec()));
    let digest = words(&["DEBUG", "DIGEST"]);
    // The last two replies are what an EXEC of nothing gives where nothing changed.
    let mut commands = vec![
        words(&["FLUSHALL"]),
        digest.clone(),
        words(&["MULTI"]),
        words(&["EXEC"]),
    ];
    let (mut digest_before, empty_exec) = (1, 3);
    let mut sent = Vec::with_capacity(BATCH);
    for _ in 0..BATCH {
        if fuzzer.rng.chance(35) {
            for _ in 0..1 + fuzzer.rng.below(3) {
                commands.push(fuzzer.plain());
            }
            if proof == Proof::Digest {
                digest_before = commands.len();
                commands.push(digest.clone());
            }
        }
        let mut call = fuzzer.call();
        let way = match (fuzzer.rng.below(5), proof) {
            (0, _) => Way::Lua,
            // It would end the WATCH.
            (1, Proof::Digest) => Way::Multi,
            _ => Way::Plain,
        };
        if way == Way::Plain {
            shorten_waits(&mut call, fuzzer.rng.below(500) == 0);
        }
        if proof == Proof::Watch {
            commands.push(watch.clone());
        }
        let reply = commands.len();
        match way {
            Way::Plain => commands.push(call.clone()),
            Way::Multi => commands.extend([words(&["MULTI"]), call.clone(), words(&["EXEC"])]),
            Way::Lua => {
                let mut eval = words(&["EVAL", "return redis.pcall(unpack(ARGV))", "0"]);
                eval.extend(call.iter().cloned());
                commands.push(eval);
            }
        }
        let before = match proof {
            Proof::Digest => {
                commands.push(digest.clone());
                std::mem::replace(&mut digest_before, commands.len() - 1)
            }
            Proof::Watch => {
                commands.extend([words(&["MULTI"]), words(&["EXEC"])]);
                empty_exec
            }
        };
        sent.push(Sent {
            call,
            way,
            reply,
            before,
            after: commands.len() - 1,
        });
    }
    (commands, sent)
}

#[derive(Default)]
struct Tally {
    calls: usize,
    errors: usize,
    changes: usize,
}

fn check(commands: &[Command], sent: &[Sent], replies: &[Reply], tally: &mut Tally) {
    let story = |until: usize| {
        let shown: Vec<String> = commands[..until]
            .iter()
            .filter(|command| command[0] != b"DEBUG" && command[0] != b"WATCH")
            .map(line)
            .collect();
        shown.join("\n")
    };
    for one in sent {
        let changed = replies[one.before] != replies[one.after];
        tally.calls += 1;
        tally.changes += usize::from(changed);
        let Some(error) = error_of(one.way, &replies[one.reply..]) else {
            continue;
        };
        tally.errors += 1;
        assert!(
            !changed,
            "an error changed the keys: {error}\n{:?} {}\nall of it:\n{}",
            one.way,
            line(&one.call),
            story(one.after)
        );
        let known = ["ERR ", "WRONGTYPE ", "NOMSG "]
            .iter()
            .any(|code| error.starts_with(code));
        assert!(
            known && !error.contains("internal"),
            "{}\n  gave {error}\nall of it:\n{}",
            line(&one.call),
            story(one.after)
        );
    }
}

fn run_batches(server: &Server, fuzzer: &mut Fuzzer, calls: usize, tally: &mut Tally) {
    let mut wires = [Wire::connect(server), Wire::connect(server)];
    wires[1].pipeline(&[words(&["HELLO", "3"])]).expect("RESP3");
    let until = tally.calls + calls;
    while tally.calls < until {
        let proof = if fuzzer.rng.chance(25) {
            Proof::Digest
        } else {
            Proof::Watch
        };
        let (commands, sent) = batch_of(fuzzer, proof);
        let wire = &mut wires[fuzzer.rng.below(2)];
        let replies = wire.pipeline(&commands).unwrap_or_else(|e| {
            let story: Vec<String> = commands.iter().map(line).collect();
            panic!("{e}; the batch was:\n{}\n{}", story.join("\n"), server.log())
        });
        check(&commands, &sent, &replies, tally);
    }
}

/// Arguments of the largest size that people send.
fn huge_calls(server: &Server, fuzzer: &mut Fuzzer) {
    let mut wire = Wire::connect(server);
    for _ in 0..4 {
        let mut call = fuzzer.call();
        shorten_waits(&mut call, false);
        let index = fuzzer.rng.below(call.len() - 1) + 1;
        call[index] = vec![fuzzer.rng.next_u64() as u8; 64 << 20];
        let digest = words(&["DEBUG", "DIGEST"]);
        let commands = [words(&["FLUSHALL"]), digest.clone(), call.clone(), digest];
        let replies = wire.pipeline(&commands).expect("the server lives");
        if error_of(Way::Plain, &replies[2..3]).is_some() {
            assert_eq!(replies[1], replies[3], "an error changed the keys: {}", line(&call));
        }
    }
}

/// Memory in use once nobody is connected and nothing is stored.
fn memory_at_rest(server: &Server) -> u64 {
    let mut con = server.con();
    ok!(con, "FLUSHALL");
    ok!(con, "SCRIPT", "FLUSH", "SYNC");
    drop(con);
    // Buffers of clients that left are freed in the background.
    let mut last = server.used_memory();
    let settled = || {
        let now = server.used_memory();
        let same = now.abs_diff(last) < 4096;
        last = now;
        std::thread::sleep(std::time::Duration::from_millis(100));
        same
    };
    assert!(eventually(deadline(), settled), "memory does not settle");
    server.used_memory()
}

fn fuzz(settings: &[(&str, &str)], mut rng: Rng) {
    let calls = std::env::var("RMQ_CALLS").map_or(1_000_000, |n| n.parse().expect("RMQ_CALLS is a number")) / 2;
    let mut builder = Server::builder()
        .arg("hz", "500")
        .arg("slowlog-log-slower-than", "-1")
        .arg("proto-max-bulk-len", "128mb");
    for (name, value) in settings {
        builder = builder.arg(name, value);
    }
    let server = builder.start();
    let mut fuzzer = Fuzzer { rng: rng.fork() };
    let mut tally = Tally::default();

    // What is allocated once, such as statistics per command, is allocated now.
    run_batches(&server, &mut fuzzer, calls / 20, &mut tally);
    huge_calls(&server, &mut fuzzer);
    let before = memory_at_rest(&server);
    run_batches(&server, &mut fuzzer, calls - calls / 20, &mut tally);
    huge_calls(&server, &mut fuzzer);
    let after = memory_at_rest(&server);

    println!(
        "{} calls, {} of them errors, {} changed something; memory at rest {before} and then {after} bytes",
        tally.calls, tally.errors, tally.changes
    );
    assert_eq!(server.info("rmq")["rmq_panics"], "0");
    // Nonsense alone, or sense alone, would prove little.
    assert!(tally.errors > tally.calls / 10 && tally.changes > tally.calls / 10);
    const NOISE: u64 = 256 * 1024;
    assert!(after < before + NOISE, "{} bytes were not given back", after - before);
}

#[test]
fn no_call_harms_the_server_and_no_error_changes_a_key() {
    fuzz(&[], Rng::seeded());
}

#[test]
fn no_call_harms_the_server_and_no_error_changes_a_key_in_the_large_encodings() {
    let mut rng = Rng::seeded();
    rng.next_u64();
    let settings = [
        ("hash-max-listpack-entries", "0"),
        ("zset-max-listpack-entries", "0"),
        ("list-max-listpack-size", "2"),
    ];
    fuzz(&settings, rng.fork());
}
