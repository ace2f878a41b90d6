//! Arguments to typed values. Pure: bytes in, a value or an error that names the argument out.

use std::ops::RangeBounds;

use crate::clock::{Now, LATEST_MS};
use crate::error::Error;

/// A million messages with their payloads.
pub const MOST_ARGUMENTS: usize = 2_000_010;

/// The longest lease, claim or wait, in ms. About 31 years: no overflow, but surely a typo.
pub const LONGEST_MS: i64 = 1_000_000_000_000;

fn integer(bytes: &[u8]) -> Option<i64> {
    // `+5` and ` 5` are refused, as by the server's own commands.
    if !bytes.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-') {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// A decimal number, finite. A client may write a small float with an exponent.
fn decimal(bytes: &[u8]) -> Option<f64> {
    let plain = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    if !bytes.iter().all(plain) {
        return None;
    }
    let value: f64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

fn integer_in(
    argument: &'static str,
    bytes: &[u8],
    range: impl RangeBounds<i64>,
    expected: &'static str,
) -> Result<i64, Error> {
    integer(bytes).filter(|value| range.contains(value)).ok_or(Error::Invalid { argument, expected })
}

/// A batch is a limit: more than the setting allows is lowered to it.
pub fn batch(bytes: &[u8]) -> Result<usize, Error> {
    limited("batch", bytes)
}

pub fn limited(argument: &'static str, bytes: &[u8]) -> Result<usize, Error> {
    let number = integer_in(argument, bytes, 1.., "a positive integer")?;
    Ok(number.min(crate::settings::MAX_BATCH.get()) as usize)
}

/// A number where 0 means no limit.
pub fn count(argument: &'static str, bytes: &[u8]) -> Result<i64, Error> {
    integer_in(argument, bytes, 0.., "an integer, 0 (no limit) or more")
}

pub fn offset(argument: &'static str, bytes: &[u8]) -> Result<usize, Error> {
    integer_in(argument, bytes, 0.., "an integer, 0 or more").map(|number| number as usize)
}

pub fn yes_or_no(argument: &'static str, bytes: &[u8]) -> Result<bool, Error> {
    match bytes.to_ascii_lowercase().as_slice() {
        b"yes" => Ok(true),
        b"no" => Ok(false),
        _ => Err(Error::Invalid { argument, expected: "yes or no" }),
    }
}

/// A span of time that starts now: a lease, a claim.
pub fn span_ms(argument: &'static str, bytes: &[u8]) -> Result<i64, Error> {
    integer_in(argument, bytes, 1..=LONGEST_MS, "a positive integer of milliseconds, at most 1000000000000")
}

/// A span of time that may be empty: a delay, a wait.
pub fn delay_ms(argument: &'static str, bytes: &[u8]) -> Result<i64, Error> {
    integer_in(argument, bytes, 0..=LONGEST_MS, "an integer of milliseconds from 0 to 1000000000000")
}

/// A Unix time. A number smaller than `EARLIEST_MS` is probably meant as seconds.
pub fn unix_ms(argument: &'static str, bytes: &[u8]) -> Result<i64, Error> {
    const EARLIEST_MS: i64 = 100_000_000_000;
    let range = EARLIEST_MS..=LATEST_MS as i64;
    integer_in(argument, bytes, range, "a Unix time in milliseconds, after 1973 and before 2248")
}

/// RETRY's delay, as the script takes it. The result is the due time.
pub fn due_after_seconds(argument: &'static str, bytes: &[u8], now: Now) -> Result<f64, Error> {
    decimal(bytes)
        .filter(|seconds| *seconds >= 0.0)
        .map(|seconds| now.ms() as f64 + seconds * 1000.0)
        .filter(|due| *due <= LATEST_MS)
        .ok_or(Error::Invalid { argument, expected: "a number of seconds, 0 or more, that ends before the year 2248" })
}

/// TIMEOUTS' target time: Unix ms, or `*` for the server's clock.
pub fn target_time(bytes: &[u8], now: Now) -> Result<f64, Error> {
    if bytes == b"*" {
        return Ok(now.exact_ms());
    }
    decimal(bytes).filter(|ms| *ms >= 0.0).ok_or(Error::Invalid {
        argument: "target_time",
        expected: "a Unix time in milliseconds, or * for the server's clock",
    })
}

/// Days to keep a record, in milliseconds. Empty means not given.
pub fn expire_days(bytes: &[u8]) -> Result<Option<i64>, Error> {
    if bytes.is_empty() {
        return Ok(None);
    }
    const DAY_MS: f64 = 86_400_000.0;
    decimal(bytes)
        .filter(|days| *days > 0.0 && *days <= 36_500.0)
        // At least a second, so that the record can be read.
        .map(|days| Some((days * DAY_MS).ceil().max(1000.0) as i64))
        .ok_or(Error::Invalid {
            argument: "expire_days",
            expected: "a positive number of days, at most 36500, or empty",
        })
}

/// Records to keep. Empty means not given.
pub fn max_count(bytes: &[u8]) -> Result<Option<usize>, Error> {
    if bytes.is_empty() {
        return Ok(None);
    }
    integer_in("max_count", bytes, 1.., "a positive integer, or empty").map(|count| Some(count as usize))
}

/// `1`, `0` or empty; false only for `0`: no field expiry.
pub fn supports_hexpire(bytes: &[u8]) -> Result<bool, Error> {
    match bytes {
        b"" | b"1" => Ok(true),
        b"0" => Ok(false),
        _ => Err(Error::Invalid { argument: "supports_hexpire", expected: "0, 1 or empty" }),
    }
}

/// An optional keyword.
#[derive(Clone, Copy)]
pub enum Opt {
    /// Without value.
    Word(&'static str),
    /// Followed by its value.
    Value(&'static str),
}

impl Opt {
    fn name(self) -> &'static str {
        match self {
            Opt::Word(name) | Opt::Value(name) => name,
        }
    }
}

/// The options among `words`, in the order in which they are known: in any order and any case, each at most once. For
/// a plain word the result is that word.
pub fn options<T: Copy + AsRef<[u8]>, const N: usize>(words: &[T], known: [Opt; N]) -> Result<[Option<T>; N], Error> {
    let mut found = [None; N];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let bytes = word.as_ref();
        let is_known = |opt: &Opt| opt.name().as_bytes().eq_ignore_ascii_case(bytes);
        let Some(index) = known.iter().position(is_known) else {
            return Err(Error::UnknownOption(bytes.to_vec()));
        };
        let opt = known[index];
        if found[index].is_some() {
            return Err(Error::RepeatedOption(opt.name()));
        }
        found[index] = match opt {
            Opt::Word(_) => Some(*word),
            Opt::Value(name) => Some(*words.next().ok_or(Error::OptionNeedsValue(name))?),
        };
    }
    Ok(found)
}

/// What has to follow `IDS`.
pub const AT_LEAST_ONE_ID: &str = "at least one id";

/// The words before `IDS`, and the ids behind it.
pub fn before_ids<T: AsRef<[u8]>>(words: &[T]) -> Result<(&[T], &[T]), Error> {
    let is_ids = |word: &T| word.as_ref().eq_ignore_ascii_case(b"IDS");
    let position = words.iter().position(is_ids).ok_or(Error::Missing("IDS", AT_LEAST_ONE_ID))?;
    match &words[position + 1..] {
        [] => Err(Error::Incomplete("IDS", AT_LEAST_ONE_ID)),
        ids => Ok((&words[..position], ids)),
    }
}

/// An id that a command writes must not look like one of payload_map's own fields.
pub fn writable_id(id: &[u8]) -> Result<(), Error> {
    if [&b":queue"[..], b":attempts", b":death"].iter().any(|end| id.ends_with(end)) {
        return Err(Error::ReservedId);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_batch_is_a_positive_integer_and_nothing_else() {
        for bad in ["0", "-1", "1.5", "abc", "", " 1", "1 ", "+1", "0x10", "1e3", "18446744073709551616", "\u{661}"] {
            let error = batch(bad.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), "ERR batch must be a positive integer", "{bad:?}");
        }
        assert_eq!(batch(b"1"), Ok(1));
    }

    #[test]
    fn a_batch_over_the_limit_is_lowered_to_it() {
        assert_eq!(batch(b"9223372036854775807"), Ok(10_000));
    }

    #[test]
    fn a_delay_is_whole_or_decimal_and_not_negative() {
        let now = Now::read();
        let due = |text: &str| due_after_seconds("delay", text.as_bytes(), now);
        assert_eq!(due("0"), Ok(now.ms() as f64));
        assert_eq!(due("1.5"), Ok(now.ms() as f64 + 1500.0));
        assert_eq!(due("1e-05"), Ok(now.ms() as f64 + 0.01));
        for bad in ["-1", "-0.001", "nan", "NaN", "inf", "-inf", "infinity", "1e300", "1e13", "", "1,5", "0x1", "1 "] {
            assert!(due(bad).unwrap_err().to_string().starts_with("ERR delay must be"), "{bad:?}");
        }
    }

    #[test]
    fn options_come_in_any_order_and_case_and_once() {
        let known = [Opt::Word("ALL"), Opt::Value("CLAIM")];
        let parse = |words: &[&'static str]| options(words, known);
        assert_eq!(parse(&[]), Ok([None, None]));
        assert_eq!(parse(&["claim", "all", "All"]), Ok([Some("All"), Some("all")]));
        assert_eq!(parse(&["ALL", "all"]), Err(Error::RepeatedOption("ALL")));
        assert_eq!(parse(&["CLAIM"]), Err(Error::OptionNeedsValue("CLAIM")));
        assert_eq!(parse(&["any"]), Err(Error::UnknownOption(b"any".to_vec())));
    }

    #[test]
    fn ids_that_look_like_fields_of_payload_map_are_refused() {
        assert_eq!(writable_id(b"x:queue"), Err(Error::ReservedId));
        assert_eq!(writable_id(b":attempts"), Err(Error::ReservedId));
        assert_eq!(writable_id(b"x:queues"), Ok(()));
        assert_eq!(writable_id(b""), Ok(()));
    }

    #[test]
    fn days_become_milliseconds_and_never_less_than_a_second() {
        assert_eq!(expire_days(b"7"), Ok(Some(7 * 86_400_000)));
        assert_eq!(expire_days(b"0.5"), Ok(Some(43_200_000)));
        assert_eq!(expire_days(b"1e-9"), Ok(Some(1000)));
        assert_eq!(expire_days(b""), Ok(None));
        for bad in ["0", "-1", "x", "36501", "nan", "inf"] {
            assert!(expire_days(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let now = Now::read();
            let _ = batch(&bytes);
            let _ = span_ms("x", &bytes);
            let _ = delay_ms("x", &bytes);
            let _ = unix_ms("x", &bytes);
            let _ = due_after_seconds("x", &bytes, now);
            let _ = target_time(&bytes, now);
            let _ = expire_days(&bytes);
            let _ = max_count(&bytes);
            let _ = supports_hexpire(&bytes);
            let _ = writable_id(&bytes);
        }

        #[test]
        fn what_is_accepted_is_in_range(number in proptest::num::f64::ANY) {
            let now = Now::read();
            if let Ok(due) = due_after_seconds("delay", number.to_string().as_bytes(), now) {
                prop_assert!(due >= now.ms() as f64 && due <= LATEST_MS);
            }
        }
    }
}
