//! The module's settings: name, default and range of each, and the value in force.

use std::sync::atomic::{AtomicI64, Ordering};

pub struct Setting {
    /// Without the `rmq.` that the server puts in front.
    pub name: &'static str,
    pub min: i64,
    pub max: i64,
    value: AtomicI64,
}

impl Setting {
    const fn new(name: &'static str, default: i64, min: i64, max: i64) -> Self {
        Setting { name, min, max, value: AtomicI64::new(default) }
    }

    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// The value is in range: the server checks it, and so does `take_load_arguments`.
    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
    }

    pub fn as_usize(&self) -> usize {
        usize::try_from(self.get()).unwrap_or(0)
    }
}

/// The most ids that one call takes, whatever batch it asks for.
pub static MAX_BATCH: Setting = Setting::new("max-batch", 10_000, 1, 1_000_000);
/// Bytes of payload that a parse-error record keeps.
pub static PAYLOAD_LIMIT: Setting = Setting::new("parse-error-payload-limit", 4096, 0, 64 << 20);
/// Bytes of error message that a parse-error record keeps.
pub static MESSAGE_LIMIT: Setting = Setting::new("parse-error-message-limit", 256, 0, 1 << 20);

/// Bytes of an ERROR text that are kept with a message.
pub static ERROR_LIMIT: Setting = Setting::new("error-limit", 1024, 0, 1 << 20);

pub static ALL: &[&Setting] = &[&MAX_BATCH, &PAYLOAD_LIMIT, &MESSAGE_LIMIT, &ERROR_LIMIT];

/// `loadmodule librmq.so [rmq.]name value …`. What is given here is the default that redis.conf and CONFIG SET start
/// from.
pub fn take_load_arguments(words: &[&[u8]]) -> Result<(), String> {
    let mut accepted = Vec::new();
    for pair in words.chunks(2) {
        let name = String::from_utf8_lossy(pair[0]).to_ascii_lowercase();
        let name = name.strip_prefix("rmq.").unwrap_or(&name);
        let Some(setting) = ALL.iter().find(|setting| setting.name == name) else {
            return Err(format!(
                "unknown argument '{}'; the module takes {}",
                name.escape_debug(),
                ALL.iter().map(|setting| setting.name).collect::<Vec<_>>().join(", ")
            ));
        };
        let value = pair
            .get(1)
            .and_then(|value| std::str::from_utf8(value).ok())
            .and_then(|value| value.parse().ok())
            .filter(|value| (setting.min..=setting.max).contains(value));
        let Some(value) = value else {
            return Err(format!(
                "{} must be followed by an integer from {} to {}",
                setting.name, setting.min, setting.max
            ));
        };
        accepted.push((setting, value));
    }
    for (setting, value) in accepted {
        setting.set(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_arguments_are_all_taken_or_none() {
        let error = take_load_arguments(&[b"max-batch", b"7", b"nonsense", b"1"]).unwrap_err();
        assert!(error.contains("nonsense"), "{error}");
        assert_eq!(MAX_BATCH.get(), 10_000);
        take_load_arguments(&[b"RMQ.parse-error-message-limit", b"99"]).unwrap();
        assert_eq!(MESSAGE_LIMIT.get(), 99);
        MESSAGE_LIMIT.set(256);
    }

    #[test]
    fn a_load_argument_out_of_range_or_without_value_is_refused() {
        for words in [
            &[&b"max-batch"[..]][..],
            &[b"max-batch", b"0"],
            &[b"max-batch", b"-1"],
            &[b"max-batch", b"1000001"],
            &[b"max-batch", b"ten"],
        ] {
            assert!(take_load_arguments(words).unwrap_err().contains("max-batch"));
        }
    }
}
