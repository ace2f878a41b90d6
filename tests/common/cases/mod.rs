//! The commands, a row each: what a call needs, changes, replies and sends. The tests of replication, events, ACL,
//! cluster, contexts and documentation walk this table, so that a new command is proved by adding its row.
//!
//! In all texts `@` is a prefix that the test chooses (none, a hash tag, a name), and words are separated by
//! blanks; `""` is the empty word. In what is expected, `<time>` is any time from the call on (in ms or µs, also at the
//! end of a word), `<number>` any number, `<json>` a JSON object, and a final `...` any rest.
//!
//! Commands of the queue work in the namespace `@ns`: no argument of theirs is a key, all their keys are derived.

mod rows;
pub use rows::ROWS;

use crate::common::*;
use redis::{ConnectionLike, RedisResult, Value};

pub struct Row {
    pub name: &'static str,
    /// As docs/commands.md writes it.
    pub syntax: &'static str,
    /// The arguments that are keys, in their order, in the effect below.
    pub keys: &'static [Key],
    /// Keys that the effect reaches without their being arguments.
    pub derived: &'static [Key],
    /// Refused over maxmemory.
    pub adds_data: bool,
    /// Plain commands that make the keys for `effect` and `idle`.
    pub setup: &'static [&'static str],
    pub effect: Step,
    /// A call that changes nothing there, because it is refused or has nothing to do.
    pub idle: Step,
    pub more: &'static [Example],
}

pub struct Key {
    pub role: &'static str,
    pub key: &'static str,
    pub needs: Needs,
}

/// The permission that a key needs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Needs {
    Read,
    Write,
    ReadWrite,
}

impl Needs {
    /// The ACL rule that grants this and no more.
    pub fn rule(self, key: &str) -> String {
        match self {
            Needs::Read => format!("%R~{key}"),
            Needs::Write => format!("%W~{key}"),
            Needs::ReadWrite => format!("%RW~{key}"),
        }
    }

    /// What is not enough.
    pub fn halves(self) -> &'static [Needs] {
        match self {
            Needs::Read => &[Needs::Write],
            Needs::Write => &[Needs::Read],
            Needs::ReadWrite => &[Needs::Read, Needs::Write],
        }
    }

    pub fn writes(self) -> bool {
        self != Needs::Read
    }
}

/// A call, its reply, and what replicas and the AOF get for it, without MULTI and EXEC.
pub struct Step {
    pub call: &'static str,
    pub reply: &'static str,
    pub stream: &'static [&'static str],
}

/// Another call of the same command, with keys of its own.
pub struct Example {
    pub about: &'static str,
    pub setup: &'static [&'static str],
    pub step: Step,
}

impl Row {
    /// Every example with its setup: the effect, the idle call, and the others.
    pub fn examples(&self) -> Vec<(String, &'static [&'static str], &Step)> {
        let mut all = vec![
            (format!("{}: effect", self.name), self.setup, &self.effect),
            (format!("{}: idle", self.name), self.setup, &self.idle),
        ];
        for example in self.more {
            let about = format!("{}: {}", self.name, example.about);
            all.push((about, example.setup, &example.step));
        }
        all
    }

    pub fn writes(&self) -> bool {
        self.all_keys().any(|key| key.needs.writes())
    }

    /// The arguments that are keys, then the derived ones.
    pub fn all_keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter().chain(self.derived)
    }

    /// Whether the first argument is a namespace.
    pub fn is_of_queue(&self) -> bool {
        self.keys.is_empty()
    }
}

/// The examples of all rows.
pub fn examples() -> Vec<(String, &'static [&'static str], &'static Step)> {
    ROWS.iter().flat_map(Row::examples).collect()
}

/// Rows whose command reaches keys that are no arguments.
pub fn rows_with_derived_keys() -> Vec<&'static Row> {
    let rows: Vec<_> = ROWS.iter().filter(|row| !row.derived.is_empty()).collect();
    assert!(!rows.is_empty());
    rows
}

/// Rows whose command takes keys, and finds more through `<id>:queue`.
pub fn twins_with_derived_keys() -> Vec<&'static Row> {
    let rows: Vec<_> = rows_with_derived_keys().into_iter().filter(|row| !row.is_of_queue()).collect();
    assert!(!rows.is_empty());
    rows
}

/// The prefix that replaces `@`.
#[derive(Clone, Copy)]
pub struct World(pub &'static str);

/// No prefix.
pub const HERE: World = World("");

impl World {
    pub fn text(&self, text: &str) -> String {
        text.replace('@', self.0)
    }

    pub fn words(&self, line: &str) -> Vec<String> {
        let word = |word: &str| {
            if word == "\"\"" {
                String::new()
            } else {
                word.to_string()
            }
        };
        self.text(line).split_ascii_whitespace().map(word).collect()
    }

    pub fn call(&self, con: &mut impl ConnectionLike, line: &str) -> RedisResult<Value> {
        call(con, &self.words(line))
    }

    /// Empties the server and makes the keys of a row or an example.
    #[track_caller]
    pub fn set_up(&self, con: &mut impl ConnectionLike, setup: &[&str]) {
        // Not FLUSHALL: it would abort the full synchronisation of a replica.
        let keys: Vec<Vec<u8>> = ask!(con, "KEYS", "*");
        for key in keys {
            ok!(con, "DEL", key);
        }
        self.add(con, setup);
    }

    #[track_caller]
    pub fn add(&self, con: &mut impl ConnectionLike, setup: &[&str]) {
        for line in setup {
            if let Err(e) = self.call(con, line) {
                panic!("{line}: {e}");
            }
        }
    }

    /// Calls, and compares the reply.
    #[track_caller]
    pub fn run(&self, con: &mut impl ConnectionLike, step: &Step) {
        let now = server_time_ms(con);
        let reply = self.call(con, step.call);
        self.assert_reply(step, now, reply);
    }

    #[track_caller]
    pub fn assert_reply(&self, step: &Step, now: i64, reply: RedisResult<Value>) {
        let reply = shown(reply);
        let wanted = self.text(step.reply);
        assert!(fits(&wanted, &reply, now), "{}\n  wanted {wanted}\n  got    {reply}", step.call);
    }

    /// Compares what was sent, which must be framed by MULTI and EXEC if it is more than one command.
    #[track_caller]
    pub fn assert_stream(&self, about: &str, step: &Step, now: i64, sent: &[Vec<Vec<u8>>]) {
        let sent: Vec<String> = sent.iter().map(|command| line(command)).collect();
        let mut wanted: Vec<String> = step.stream.iter().map(|line| self.text(line)).collect();
        if wanted.len() > 1 {
            wanted.insert(0, "MULTI".into());
            wanted.push("EXEC".into());
        }
        let same = sent.len() == wanted.len() && wanted.iter().zip(&sent).all(|(wanted, got)| fits(wanted, got, now));
        assert!(same, "{about}: {}\n  wanted {wanted:#?}\n  sent   {sent:#?}", step.call);
    }
}

/// A reply as text: `OK`, `[[a q] [b q]]`, `nil`, `1`, or the error.
pub fn shown(reply: RedisResult<Value>) -> String {
    match reply {
        Ok(value) => value_shown(&value),
        Err(e) => error_text(&e),
    }
}

fn value_shown(value: &Value) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(value_shown).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Map(pairs) => {
            let pairs: Vec<_> = pairs.iter().flat_map(|(key, value)| [value_shown(key), value_shown(value)]).collect();
            format!("[{}]", pairs.join(" "))
        }
        Value::ServerError(e) => error_text(&e.clone().into()),
        other => text(other.clone()),
    }
}

/// A text whose times, from `now` on, are `<time>`: those of receipts and scores differ from call to call.
pub fn timeless(text: &str, now: i64) -> String {
    let word = |word: &str| {
        let (start, time) = word.split_at(word.rfind('-').map_or(0, |dash| dash + 1));
        match time.parse::<f64>() {
            Ok(time) if time >= now as f64 => format!("{start}<time>"),
            _ => word.to_string(),
        }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Whether a text is what a pattern wants, word by word.
pub fn fits(pattern: &str, got: &str, now: i64) -> bool {
    if let Some(start) = pattern.strip_suffix("...") {
        return got.starts_with(start);
    }
    let (pattern, got): (Vec<_>, Vec<_>) = (pattern.split(' ').collect(), got.split(' ').collect());
    let word = |(pattern, got): (&&str, &&str)| {
        let bare = |word: &str| word.trim_matches(['[', ']']).to_string();
        if let Some(start) = bare(pattern).strip_suffix("<time>") {
            let time = bare(got).strip_prefix(start).and_then(|time| time.parse::<f64>().ok());
            return time.is_some_and(|time| time >= now as f64);
        }
        match bare(pattern).as_str() {
            "<number>" => bare(got).parse::<f64>().is_ok(),
            "<json>" => got.starts_with('{') && got.ends_with('}'),
            _ => pattern == got,
        }
    };
    pattern.len() == got.len() && pattern.iter().zip(&got).all(word)
}
