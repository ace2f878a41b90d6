//! Arbitrary calls, a million by default (RMQ_CALLS): any number of arguments, any bytes, any numbers, huge ones, the
//! same key twice, options in any order, over RESP2 and RESP3, inside MULTI and Lua. The server survives, nothing
//! panics, an error changes no key, and memory returns to where it was. Whether something changed is checked by DEBUG
//! DIGEST in every fourth batch of calls, and by WATCH, which is much cheaper, in the others. A replica without the module
//! ends with the same data, also where clients wait all the time, so that timers run between any two calls.
//!
//! A batch begins with empty keys, so a failure prints all that is needed to repeat it.

use crate::common::*;
use crate::wire::{line, words, Command, Wire};
use std::collections::BTreeSet;

/// Calls in a batch.
const BATCH: usize = 60;

/// What an argument is meant to be.
#[derive(Clone, Copy)]
enum Arg {
    /// By the name that the key has here.
    Key(&'static str),
    Namespace,
    Id,
    Bytes,
    Number,
    Receipt,
    /// The short name of a queue.
    Queue,
    /// A word that has to be there.
    Word(&'static str),
    /// Where an audit goes on.
    Cursor,
    /// Words that an option is made of.
    Option(&'static str, &'static [Arg]),
    /// One of these groups of words.
    OneOf(&'static [&'static [Arg]]),
}

use Arg::{Bytes, Cursor, Id, Key, Namespace, Number, OneOf, Option as Opt, Queue, Receipt, Word};

const MAP: Arg = Key("m:payloads");
const DELAYS: Arg = Key("m:delays");
const EXPIRES: Arg = Key("m:expires");
const PROCESSING: Arg = Key("m:q:processing");
const DLQ: Arg = Key("m:dlq");
const DLQ_MAP: Arg = Key("m:dlq:data");
const ERRORS: Arg = Key("m:errors");
const ERROR_MAP: Arg = Key("m:errors:data");

/// Each command with arguments that it would take; options are left out, repeated and shuffled.
const SHAPES: &[(&str, &[Arg])] = &[
    ("RMQ.COMPLETE", &[MAP, PROCESSING, EXPIRES, Id, Id, Id]),
    ("RMQ.RETRY", &[MAP, DELAYS, EXPIRES, PROCESSING, Id, Bytes, Number, Bytes]),
    ("RMQ.DELAYTICK", &[DELAYS, MAP, Number]),
    ("RMQ.TIMEOUTS", &[EXPIRES, MAP, Number, Number, Opt("ALL", &[]), Opt("CLAIM", &[Number])]),
    (
        "RMQ.PARSEERR",
        &[ERROR_MAP, ERRORS, PROCESSING, EXPIRES, MAP, Id, Bytes, Bytes, Bytes, Bytes, Number, Number, Number],
    ),
    ("RMQ.DEADLETTER", &[DLQ_MAP, DLQ, EXPIRES, MAP, PROCESSING, Id, Bytes, Opt("topic", &[])]),
    ("RMQ.NEXTDELAY", &[DELAYS]),
    ("RMQ.PUBLISH", &[Namespace, Opt("URGENT", &[]), Opt("ONCE", &[Number]), Word("TO"), Queue, Id, Bytes, Id, Bytes]),
    ("RMQ.PUBLISH", &[Namespace, Opt("DELAY", &[Number]), Opt("AT", &[Number]), Word("TO"), Queue, Id, Bytes]),
    ("RMQ.RESERVE", &[Namespace, Number, Opt("COUNT", &[Number]), Opt("BLOCK", &[Number]), Word("FROM"), Queue, Queue]),
    ("RMQ.RESERVE", &[Namespace, Number, Opt("COUNT", &[Number]), Word("FROM"), Queue]),
    ("RMQ.ACK", &[Namespace, Id, Receipt, Id, Receipt]),
    (
        "RMQ.NACK",
        &[
            Namespace,
            Id,
            Receipt,
            Opt("DELAY", &[Number]),
            Opt("DEAD", &[]),
            Opt("ERROR", &[Bytes]),
            Opt("PAYLOAD", &[Bytes]),
        ],
    ),
    ("RMQ.RELEASE", &[Namespace, Id, Receipt, Id, Receipt]),
    ("RMQ.EXTEND", &[Namespace, Number, Id, Receipt, Id, Receipt]),
    ("RMQ.REDRIVE", &[Namespace, Word("COUNT"), Number, Opt("QUEUE", &[Queue])]),
    ("RMQ.REDRIVE", &[Namespace, Word("IDS"), Id, Id, Id]),
    (
        "RMQ.POLICY",
        &[
            Namespace,
            Queue,
            Opt("ATTEMPTS", &[Number]),
            Opt("BACKOFF", &[Number, Number]),
            Opt("PAUSED", &[Word("no")]),
            Opt("RESET", &[]),
        ],
    ),
    ("RMQ.STATS", &[Namespace, OneOf(&[&[], &[Queue], &[Queue, Queue]])]),
    (
        "RMQ.PEEK",
        &[
            Namespace,
            Opt("OFFSET", &[Number]),
            Opt("COUNT", &[Number]),
            Opt("NOPAYLOAD", &[]),
            OneOf(&[
                &[Word("PENDING"), Queue],
                &[Word("PROCESSING"), Queue],
                &[Word("DELAYED")],
                &[Word("delayed"), Queue],
                &[Word("OVERDUE")],
                &[Word("overdue"), Queue],
                &[Word("DEAD")],
                &[Word("dead"), Queue],
            ]),
        ],
    ),
    ("RMQ.PEEK", &[Namespace, Opt("NOPAYLOAD", &[]), Word("IDS"), Id, Id, Id]),
    ("RMQ.CANCEL", &[Namespace, Opt("WAITING", &[]), Word("IDS"), Id, Id, Id]),
    ("RMQ.RESCHEDULE", &[Namespace, Number, Word("IDS"), Id, Id, Id]),
    (
        "RMQ.PURGE",
        &[
            Namespace,
            Opt("COUNT", &[Number]),
            OneOf(&[
                &[Word("PENDING"), Queue],
                &[Word("DELAYED")],
                &[Word("delayed"), Queue],
                &[Word("DEAD")],
                &[Word("dead"), Queue],
            ]),
        ],
    ),
    ("RMQ.AUDIT", &[Namespace, Opt("CURSOR", &[Cursor]), Opt("COUNT", &[Number])]),
    ("RMQ.REPAIR", &[Namespace, Opt("CURSOR", &[Cursor]), Opt("COUNT", &[Number])]),
];

/// Every name that a key has here, the derived ones, those of other namespaces and the empty one too.
const KEYS: &[&str] = &[
    "m:payloads",
    "m:delays",
    "m:expires",
    "m:q:pending",
    "m:q:processing",
    "m:r:pending",
    "m:r:processing",
    "m:dlq",
    "m:dlq:data",
    "m:queues",
    "m:once",
    "m:errors",
    "m:errors:data",
    "payloads",
    "q:pending",
    "q:processing",
    "text",
    "missing",
    "",
    ":pending",
    ":processing",
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
            6 => b"a:death".to_vec(),
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
        if self.rng.chance(5) {
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
        let queue = *self.rng.pick(&["", "*", "a:b", "payloads", "\r\n"]);
        let queue = if self.rng.chance(8) { queue } else { *self.rng.pick(&["q", "q", "r"]) };
        queue.as_bytes().to_vec()
    }

    /// The full name of a queue.
    fn full_queue(&mut self) -> Vec<u8> {
        let queue = *self.rng.pick(&["m:q", "m:q", "m:q", "m:r", "q", "m:", "m:*", "", "text", "\r\n"]);
        queue.as_bytes().to_vec()
    }

    fn namespace(&mut self) -> Vec<u8> {
        let namespace = *self.rng.pick(&["m", "m", "m", "m", "m", "m", "m", "m", "", "m:dlq", "n", "{m}"]);
        namespace.as_bytes().to_vec()
    }

    /// The part of the namespace is above 50 bits, the number of the queue above 34.
    fn cursor(&mut self) -> Vec<u8> {
        if self.rng.chance(10) {
            return self.number();
        }
        let (part, queue, position) = (self.rng.below(8), self.rng.below(4), self.rng.below(6));
        ((part << 50) + (queue << 34) + position).to_string().into_bytes()
    }

    /// One that `plain` may have set, so that it is current now and then.
    fn receipt(&mut self) -> Vec<u8> {
        match self.rng.below(40) {
            0 => self.bytes(),
            1 => self.number(),
            2 => b"99999999999999999999-99999999999999999999".to_vec(),
            n => format!("{}-1000", n % 3).into_bytes(),
        }
    }

    fn arg(&mut self, arg: &Arg, words: &mut Command) {
        let odd = self.rng.below(100);
        match arg {
            Key(name) if odd < 97 => words.push(name.as_bytes().to_vec()),
            Key(..) => words.push(self.key()),
            Word(word) if odd < 97 => words.push(word.as_bytes().to_vec()),
            Word(..) => {}
            OneOf(groups) => self.rng.pick(groups).iter().for_each(|arg| self.arg(arg, words)),
            _ if odd < 2 => words.push(self.key()),
            _ if odd < 4 => words.push(self.bytes()),
            Namespace => words.push(self.namespace()),
            Id => words.push(self.id()),
            Bytes => words.push(self.bytes()),
            Number => words.push(self.number()),
            Receipt => words.push(self.receipt()),
            Queue => words.push(self.queue()),
            Cursor => words.push(self.cursor()),
            Opt(word, values) => {
                // Twice is an error.
                let times = if self.rng.chance(2) { 2 } else { self.rng.below(2) };
                for _ in 0..times {
                    let word = if self.rng.chance(50) { word.to_lowercase() } else { word.to_string() };
                    words.push(word.into_bytes());
                    values.iter().for_each(|value| self.arg(value, words));
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
        let (id, queue) = (self.id(), self.full_queue());
        let (field, attempts) = ([id.as_slice(), b":queue"].concat(), [id.as_slice(), b":attempts"].concat());
        let score = format!("{}.5", 1000 * self.rng.below(3));
        let list =
            *self.rng.pick(&["m:q:pending", "m:q:processing", "m:q:processing", "m:r:pending", "m:dlq", "m:errors"]);
        match self.rng.below(14) {
            0..=3 => words(&[b"HSET", b"m:payloads".as_slice(), &id, b"payload", &field, &queue]),
            4 => words(&[b"HSET", b"m:dlq:data".as_slice(), &id, b"payload", &field, &queue]),
            5..=6 => words(&[b"RPUSH", list.as_bytes(), &id, b"a", &id]),
            7 => words(&[b"ZADD", b"m:expires".as_slice(), score.as_bytes(), &id, b"9e12", b"a"]),
            8 => words(&[b"ZADD", b"m:delays".as_slice(), score.as_bytes(), &id, b"9e12", b"b"]),
            9 => words(&[b"DEL", self.key().as_slice()]),
            10 => words(&[b"RENAME", self.key().as_slice(), &self.key()]),
            // As if it were leased.
            11 | 12 => {
                let value =
                    *self.rng.pick(&["1-1000", "1-1000 bad", "2-1000", "0-1000", "x", "99999999999999999999-1"]);
                words(&[b"HSET", b"m:payloads".as_slice(), &id, b"1", &field, b"m:q", &attempts, value.as_bytes()])
            }
            // Now and then a wrong type, or a policy that is none.
            _ => match self.rng.below(8) {
                0 => words(&[b"SET", self.key().as_slice(), b"text"]),
                1 => words(&[b"SADD", self.key().as_slice(), b"member"]),
                2 => words(&[b"HSET", b"m:payloads".as_slice(), &id, b"1", &field, b""]),
                3 => words(&[b"HSET", b"m:queues".as_slice(), b"q", &self.bytes()]),
                4 => words(&["HSET", "m:queues", "*", "{\"attempts\":1,\"backoff_first_ms\":1e300}"]),
                5 => words(&[b"ZADD", b"m:delays".as_slice(), *self.rng.pick(&[&b"-inf"[..], b"inf", b"-1e300"]), &id]),
                6 => words(&[b"ZADD", b"m:expires".as_slice(), *self.rng.pick(&[&b"-inf"[..], b"inf", b"-1.5"]), &id]),
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
    /// A timer may change something between any two calls.
    Nothing,
}

/// A call in a batch, and where its replies are.
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
    let mut commands = vec![words(&["FLUSHALL"]), digest.clone(), words(&["MULTI"]), words(&["EXEC"])];
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
            Proof::Nothing => commands.len() - 1,
        };
        sent.push(Sent { call, way, reply, before, after: commands.len() - 1 });
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
        let known = ["ERR ", "WRONGTYPE ", "NOMSG ", "EXISTS "].iter().any(|code| error.starts_with(code));
        assert!(
            known && !error.contains("internal"),
            "{}\n  gave {error}\nall of it:\n{}",
            line(&one.call),
            story(one.after)
        );
    }
}

fn run_batches(server: &Server, fuzzer: &mut Fuzzer, calls: usize, tally: &mut Tally, waits: bool) {
    let mut wires = [Wire::connect(server), Wire::connect(server)];
    wires[1].pipeline(&[words(&["HELLO", "3"])]).expect("RESP3");
    let mut waiters = Vec::new();
    let until = tally.calls + calls;
    while tally.calls < until {
        let proof = match fuzzer.rng.chance(25) {
            _ if waits => Proof::Nothing,
            true => Proof::Digest,
            false => Proof::Watch,
        };
        if waits {
            let mut waiter = Raw::connect(server);
            let queue = *fuzzer.rng.pick(&["q", "r", "nothing"]);
            waiter.send(&["RMQ.RESERVE", "m", "5", "COUNT", "3", "BLOCK", "0", "FROM", queue, "later"]);
            waiters.push(waiter);
            waiters.drain(..waiters.len().saturating_sub(20));
        }
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
        call.push(Vec::new());
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

/// Memory in use without connections and data.
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

fn calls() -> usize {
    std::env::var("RMQ_CALLS").map_or(1_000_000, |n| n.parse().expect("RMQ_CALLS is a number"))
}

fn assert_same_data(server: &Server, replica: &Replica) {
    replica.wait_synced();
    assert_eq!(Snapshot::of(&mut server.con()).diff(&Snapshot::of(&mut replica.con())), Vec::<String>::new());
    assert_eq!(server.digest(), replica.digest());
}

#[test]
fn every_command_of_the_module_is_among_the_shapes() {
    let server = Server::start();
    let listed: Vec<String> = ask!(server.con(), "COMMAND", "LIST", "FILTERBY", "MODULE", "rmq");
    let listed: BTreeSet<String> = listed.iter().map(|name| name.to_uppercase()).collect();
    let shapes: BTreeSet<String> = SHAPES.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(shapes, listed);
}

#[test]
fn no_call_harms_a_server_whose_timers_run_and_a_replica_has_the_same_data() {
    let server = Server::start();
    let replica = Replica::of(&server);
    let mut fuzzer = Fuzzer { rng: Rng::seeded() };
    let mut tally = Tally::default();
    for _ in 0..10 {
        run_batches(&server, &mut fuzzer, calls() / 50, &mut tally, true);
        let nobody_waits = || server.info("rmq")["rmq_timers"] == "0";
        assert!(eventually(deadline(), nobody_waits), "a timer is left: {:?}", server.info("rmq"));
        assert_same_data(&server, &replica);
    }
    let info = server.info("rmq");
    println!("{} calls, {} of them errors; {} served", tally.calls, tally.errors, info["rmq_reserved"]);
    assert_eq!([&info["rmq_panics"][..], &info["rmq_waiting_clients"]], ["0", "0"]);
}

fn fuzz(settings: &[(&str, &str)], mut rng: Rng) {
    let calls = calls() * 2 / 5;
    let mut builder =
        Server::builder().arg("hz", "500").arg("slowlog-log-slower-than", "-1").arg("proto-max-bulk-len", "128mb");
    for (name, value) in settings {
        builder = builder.arg(name, value);
    }
    let server = builder.start();
    let mut fuzzer = Fuzzer { rng: rng.fork() };
    let mut tally = Tally::default();

    // What is allocated once, such as statistics per command and the module's tables of names and counters, which hold a
    // limited number of each, is allocated now.
    let mut con = server.con();
    for n in 0..12_000 {
        let name = format!("{}{n}", "name".repeat(25));
        ok!(con, "RMQ.RESERVE", format!("{}{}", "ns".repeat(50), n % 500), 1000, "FROM", name);
    }
    drop(con);
    run_batches(&server, &mut fuzzer, calls / 20, &mut tally, false);
    huge_calls(&server, &mut fuzzer);
    let before = memory_at_rest(&server);
    run_batches(&server, &mut fuzzer, calls - calls / 20, &mut tally, false);
    huge_calls(&server, &mut fuzzer);
    let after = memory_at_rest(&server);

    println!(
        "{} calls, {} of them errors, {} changed something; memory at rest {before} and then {after} bytes",
        tally.calls, tally.errors, tally.changes
    );
    assert_eq!(server.info("rmq")["rmq_panics"], "0");
    // Nonsense alone, or sense alone, would prove little.
    assert!(tally.errors > tally.calls / 10 && tally.changes > tally.calls / 10);
    // The module keeps the names of the last few hundred namespaces, and counts for each queue: some memory comes and goes.
    const NOISE: u64 = 768 * 1024;
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
    let settings =
        [("hash-max-listpack-entries", "0"), ("zset-max-listpack-entries", "0"), ("list-max-listpack-size", "2")];
    fuzz(&settings, rng.fork());
}
