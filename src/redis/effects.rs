//! What replicas and the AOF receive: plain commands with absolute values, so that they need no module. A write through
//! a key handle queues its effect here; effects of one key and command are batched, and all are sent when the call ends.

use std::ffi::{c_int, c_longlong, CStr};
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_module::raw;
use smallvec::SmallVec;

use super::api::api;
use super::{OwnedStr, StrRef};

macro_rules! plain_commands {
    ($($variant:ident => $name:literal),* $(,)?) => {
        /// The plain commands that effects are made of.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Plain { $($variant),* }

        impl Plain {
            pub(super) const ALL: &[Plain] = &[$(Plain::$variant),*];

            pub(super) fn name(self) -> &'static CStr {
                match self { $(Plain::$variant => $name),* }
            }
        }
    };
}

plain_commands! {
    HSet => c"HSET",
    HDel => c"HDEL",
    LPush => c"LPUSH",
    RPush => c"RPUSH",
    RPop => c"RPOP",
    RPopLPush => c"RPOPLPUSH",
    LRem => c"LREM",
    LSet => c"LSET",
    ZAdd => c"ZADD",
    ZRem => c"ZREM",
    PExpireAt => c"PEXPIREAT",
}

impl Plain {
    /// The class and the name of the keyspace event that the command fires.
    pub(super) fn event(self) -> (c_int, &'static CStr) {
        let (hash, list) = (raw::REDISMODULE_NOTIFY_HASH, raw::REDISMODULE_NOTIFY_LIST);
        let (zset, generic) = (raw::REDISMODULE_NOTIFY_ZSET, raw::REDISMODULE_NOTIFY_GENERIC);
        match self {
            Plain::HSet => (hash, c"hset"),
            Plain::HDel => (hash, c"hdel"),
            Plain::LPush => (list, c"lpush"),
            Plain::RPush => (list, c"rpush"),
            // Its other list fires lpush.
            Plain::RPop | Plain::RPopLPush => (list, c"rpop"),
            Plain::LRem => (list, c"lrem"),
            Plain::LSet => (list, c"lset"),
            Plain::ZAdd => (zset, c"zadd"),
            Plain::ZRem => (zset, c"zrem"),
            Plain::PExpireAt => (generic, c"expire"),
        }
    }
}

/// `command key [number] [words…]`.
pub(super) struct Effect {
    command: Plain,
    key: OwnedStr,
    /// LREM's and RPOP's count, LSET's index, PEXPIREAT's time.
    number: i64,
    words: SmallVec<[OwnedStr; 4]>,
}

static STRINGS_SENT: AtomicUsize = AtomicUsize::new(0);

/// How many strings were sent since the start. Until the end of a script or transaction the server holds a reference to each.
pub fn strings_sent() -> usize {
    STRINGS_SENT.load(Ordering::Relaxed)
}

#[derive(Default)]
pub(super) struct Effects {
    queue: SmallVec<[Effect; 4]>,
}

impl Effects {
    /// Adds to the effect at `last`, the latest of this key, where one command can say both; else appends. Only the
    /// order of effects on one key matters: different keys do not depend on each other.
    pub(super) fn add(
        &mut self,
        last: Option<usize>,
        command: Plain,
        key: StrRef,
        number: i64,
        words: &[StrRef],
    ) -> usize {
        if let Some(index) = last {
            if self.queue.get_mut(index).is_some_and(|effect| effect.join(command, number, words)) {
                return index;
            }
        }
        let words = words.iter().map(|word| OwnedStr::retain(*word)).collect();
        self.queue.push(Effect { command, key: OwnedStr::retain(key), number, words });
        self.queue.len() - 1
    }

    /// Hands everything to the server, which sends it as one transaction when the command ends.
    pub(super) fn send(&mut self, ctx: *mut raw::RedisModuleCtx) {
        let strings = self.queue.iter().map(|effect| 1 + effect.words.len()).sum::<usize>();
        STRINGS_SENT.fetch_add(strings, Ordering::Relaxed);
        for effect in self.queue.drain(..) {
            effect.send(ctx);
        }
    }
}

impl Effect {
    fn join(&mut self, command: Plain, number: i64, words: &[StrRef]) -> bool {
        if self.command != command {
            return false;
        }
        match command {
            Plain::HSet | Plain::HDel | Plain::LPush | Plain::RPush | Plain::ZAdd | Plain::ZRem => {
                // Where there is a second, there are often many.
                if self.words.len() + words.len() > self.words.capacity() {
                    self.words.reserve(3 * self.words.len() + words.len());
                }
                words.iter().for_each(|word| self.words.push(OwnedStr::retain(*word)));
                true
            }
            Plain::RPop => {
                self.number += number;
                true
            }
            Plain::LRem if self.number.signum() == number.signum() && self.words[0].bytes() == words[0].bytes() => {
                self.number += number;
                true
            }
            Plain::LRem | Plain::LSet | Plain::RPopLPush | Plain::PExpireAt => false,
        }
    }

    fn send(&self, ctx: *mut raw::RedisModuleCtx) {
        let (name, key) = (self.command.name().as_ptr(), self.key.as_ref().raw());
        let (words, count) = (self.words.as_ptr(), self.words.len());
        let number = self.number as c_longlong;
        let word = |index: usize| self.words[index].as_ref().raw();
        // SAFETY: the context is alive. "s" is one string, "l" a long long, "v" a pointer to strings with their number
        // (an OwnedStr is such a pointer). The server takes its own references.
        unsafe {
            match (self.command, count) {
                (Plain::LRem | Plain::LSet, _) => {
                    api!(RedisModule_Replicate(ctx, name, c"sls".as_ptr(), key, number, word(0)))
                }
                (Plain::RPop, _) if number == 1 => api!(RedisModule_Replicate(ctx, name, c"s".as_ptr(), key)),
                (Plain::RPop | Plain::PExpireAt, _) => {
                    api!(RedisModule_Replicate(ctx, name, c"sl".as_ptr(), key, number))
                }
                // For "v" the server allocates once more than for the same strings one by one.
                (_, 1) => api!(RedisModule_Replicate(ctx, name, c"ss".as_ptr(), key, word(0))),
                (_, 2) => api!(RedisModule_Replicate(ctx, name, c"sss".as_ptr(), key, word(0), word(1))),
                (_, 3) => api!(RedisModule_Replicate(ctx, name, c"ssss".as_ptr(), key, word(0), word(1), word(2))),
                (_, 4) => {
                    let format = c"sssss".as_ptr();
                    api!(RedisModule_Replicate(ctx, name, format, key, word(0), word(1), word(2), word(3)))
                }
                _ => api!(RedisModule_Replicate(ctx, name, c"sv".as_ptr(), key, words, count)),
            };
        }
    }
}
