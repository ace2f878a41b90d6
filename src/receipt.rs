//! Attempts and receipts. The field `<id>:attempts` is `<n>-<µs>`, perhaps followed by a space and the last error. n counts
//! deliveries. While the message is leased, µs is the server's time at delivery, and `<n>-<µs>` is the receipt; otherwise
//! µs is the time since which the message can be taken. Pure, but for the latest µs that this process gave out.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::{Now, LATEST_MS};
use crate::digits::Digits;
use crate::error::Error;
use crate::redis::OwnedStr;

/// The field's value, taken apart. What cannot be read is 0 or absent.
#[derive(Debug, Default, PartialEq)]
pub struct Attempts<'a> {
    pub count: i64,
    pub micros: i64,
    pub error: Option<&'a [u8]>,
}

/// A later time is not one that a message can be due at.
const MICROS_END: i64 = LATEST_MS as i64 * 1000;

impl<'a> Attempts<'a> {
    /// Of a field that may be missing.
    pub fn of(field: Option<&'a OwnedStr>) -> Self {
        field.map_or_else(Attempts::default, |field| Attempts::parse(field.bytes()))
    }

    pub fn parse(field: &'a [u8]) -> Self {
        let (head, error) = match field.iter().position(|byte| *byte == b' ') {
            Some(space) => (&field[..space], Some(&field[space + 1..])),
            None => (field, None),
        };
        let (count, rest) = leading_digits(head);
        let micros = rest.strip_prefix(b"-").map(leading_digits).filter(|(_, rest)| rest.is_empty());
        let micros = micros.map_or(0, |(micros, _)| micros);
        Attempts { count, micros: if micros < MICROS_END { micros } else { 0 }, error }
    }

    pub fn text(&self) -> Digits {
        let mut text = text(self.count, self.micros);
        if let Some(error) = self.error {
            text.push_byte(b' ');
            text.push_bytes(error);
        }
        text
    }
}

/// `<n>-<µs>`: the receipt of a delivery.
pub fn text(count: i64, micros: i64) -> Digits {
    with_time(count, &time(micros))
}

/// The end of a receipt, which the messages of one call share.
pub fn time(micros: i64) -> Digits {
    let mut text = Digits::of(b"-");
    text.push(micros);
    text
}

pub fn with_time(count: i64, time: &Digits) -> Digits {
    let mut text = Digits::new();
    text.push(count);
    text.push_bytes(time.bytes());
    text
}

/// Since when a message can be taken, or is held: by `<id>:attempts`, else by an id that the server made. Unix ms.
pub fn since_ms(attempts: &Attempts, id: &[u8]) -> Option<i64> {
    Some(attempts.micros).filter(|micros| *micros > 0).or_else(|| crate::id::micros_of(id)).map(|micros| micros / 1000)
}

fn leading_digits(bytes: &[u8]) -> (i64, &[u8]) {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len());
    let (digits, rest) = bytes.split_at(end);
    let value =
        digits.iter().fold(0i64, |value, digit| value.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    (value, rest)
}

/// The text before the space, which a receipt has to equal.
pub fn of_field(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == b' ').next().unwrap_or(field)
}

/// A receipt as a caller gives it.
pub fn check(bytes: &[u8]) -> Result<(), Error> {
    let mut parts = bytes.split(|byte| *byte == b'-');
    let mut number = || parts.next().is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit));
    if number() && number() && parts.next().is_none() {
        return Ok(());
    }
    Err(Error::Invalid { argument: "receipt", expected: "a receipt as RMQ.RESERVE returned it" })
}

/// The µs of a new delivery: later than the `stored` ones and than every one given out before, even if the clock was set
/// back.
pub fn next_micros(now: Now, stored: i64) -> i64 {
    static LATEST: AtomicI64 = AtomicI64::new(0);
    let next = now.micros().max(LATEST.load(Ordering::Relaxed) + 1).max(stored + 1);
    LATEST.store(next, Ordering::Relaxed);
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_field_is_read_leniently() {
        let read = |field: &'static str| Attempts::parse(field.as_bytes());
        assert_eq!(read("2-17 no route"), Attempts { count: 2, micros: 17, error: Some(b"no route") });
        assert_eq!(read("3"), Attempts { count: 3, micros: 0, error: None });
        assert_eq!(read("3x-9"), Attempts { count: 3, micros: 0, error: None });
        assert_eq!(read("x"), Attempts::default());
        assert_eq!(read("1-999999999999999999"), Attempts { count: 1, micros: 0, error: None });
    }

    #[test]
    fn a_receipt_is_two_numbers_with_a_dash() {
        assert!(check(b"2-1794891056259224").is_ok());
        for bad in ["", "2", "2-", "-2", "2-3-4", "2-x", "a-1", "2-3 ", "1794891056259.224"] {
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_time_of_a_delivery_never_repeats() {
        let now = Now::read();
        let first = next_micros(now, 0);
        let second = next_micros(now, 0);
        assert!(second > first);
        // A stored time in the future counts, too: the id may be used again with the same one.
        let ahead = second + 5_000_000;
        let third = next_micros(now, ahead);
        assert!(third > ahead);
        assert!(next_micros(now, ahead) > third && next_micros(now, 0) > third);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            count in 0i64..i64::MAX, micros in 0..MICROS_END, error in proptest::option::of("\\PC{0,20}"),
        ) {
            let attempts = Attempts { count, micros, error: error.as_ref().map(|text| text.as_bytes()) };
            let field = attempts.text();
            prop_assert_eq!(&Attempts::parse(field.bytes()), &attempts);
            prop_assert!(check(of_field(field.bytes())).is_ok());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            Attempts::parse(&bytes);
            let _ = check(of_field(&bytes));
        }
    }
}
