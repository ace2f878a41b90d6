//! The parse-error record: one valid JSON object for any bytes. Pure.

use std::borrow::Cow;

use base64::Engine;

const TRUNCATED: &str = "...[truncated]";
/// A timestamp of this length is kept whole, whatever the limit for other texts.
const LONGEST_TIMESTAMP: usize = 64;

pub struct ParseError<'a> {
    pub payload: &'a [u8],
    pub error: &'a [u8],
    pub topic: &'a [u8],
    pub timestamp: &'a [u8],
    pub id: &'a [u8],
}

impl ParseError<'_> {
    /// At most `payload_limit` bytes of the payload and `message_limit` bytes of the error, the topic and the
    /// timestamp are kept; of the timestamp at least `LONGEST_TIMESTAMP`.
    pub fn to_json(&self, payload_limit: usize, message_limit: usize) -> Vec<u8> {
        let kept = cut(self.payload, payload_limit);
        let text = readable(kept);
        let is_whole = matches!(text, Cow::Borrowed(_));

        // Room for the names, and for quotes in the payload, which take two bytes each.
        let mut json = Vec::with_capacity(kept.len() + kept.len() / 4 + 2 * message_limit + 512);
        json.push(b'{');
        member(&mut json, "original_payload", &marked(text, kept.len() < self.payload.len()));
        for (name, value, limit) in [
            ("error_type", &b"parse_error"[..], usize::MAX),
            ("error_message", self.error, message_limit),
            ("topic", self.topic, message_limit),
            ("timestamp", self.timestamp, message_limit.max(LONGEST_TIMESTAMP)),
            ("message_id", self.id, usize::MAX),
        ] {
            json.push(b',');
            let kept = cut(value, limit);
            member(&mut json, name, &marked(readable(kept), kept.len() < value.len()));
        }
        json.extend_from_slice(b",\"original_payload_bytes\":");
        json.extend_from_slice(self.payload.len().to_string().as_bytes());
        if !is_whole {
            json.push(b',');
            let exact = base64::engine::general_purpose::STANDARD.encode(kept);
            member(&mut json, "original_payload_base64", &exact);
        }
        json.push(b'}');
        json
    }
}

/// As text; what is not UTF-8 is replaced. (Checking alone is much faster than replacing.)
fn readable(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// The first `limit` bytes, less a character that the limit would split.
pub fn cut(bytes: &[u8], limit: usize) -> &[u8] {
    if bytes.len() <= limit {
        return bytes;
    }
    // A character has at most three bytes behind its first; where there are more, the text is not UTF-8 anyway.
    let boundary = (limit.saturating_sub(3)..=limit).rev().find(|end| bytes[*end] & 0b1100_0000 != 0b1000_0000);
    &bytes[..boundary.unwrap_or(limit)]
}

fn marked(text: Cow<str>, truncated: bool) -> Cow<str> {
    if truncated {
        Cow::Owned(text.into_owned() + TRUNCATED)
    } else {
        text
    }
}

fn member(json: &mut Vec<u8>, name: &str, value: &str) {
    json.push(b'"');
    json.extend_from_slice(name.as_bytes());
    json.extend_from_slice(b"\":");
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if value.bytes().all(is_plain) {
        json.push(b'"');
        json.extend_from_slice(value.as_bytes());
        json.push(b'"');
        return;
    }
    // Writing to a vector cannot fail; should it ever, the record stays valid.
    if serde_json::to_writer(&mut *json, value).is_err() {
        json.extend_from_slice(b"null");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn record(payload: &[u8], error: &[u8]) -> Value {
        let json =
            ParseError { payload, error, topic: b"orders", timestamp: b"1700000000000", id: b"m1" }.to_json(16, 8);
        serde_json::from_slice(&json).unwrap()
    }

    #[test]
    fn a_readable_payload_is_kept_as_it_is() {
        let record = record(b"{\"a\": \"\\\n", b"bad \"q\"");
        assert_eq!(record["original_payload"], "{\"a\": \"\\\n");
        assert_eq!(record["error_message"], "bad \"q\"");
        assert_eq!(record["error_type"], "parse_error");
        assert_eq!(record["topic"], "orders");
        assert_eq!(record["timestamp"], "1700000000000");
        assert_eq!(record["message_id"], "m1");
        assert_eq!(record["original_payload_bytes"], 9);
        assert!(record.get("original_payload_base64").is_none());
    }

    #[test]
    fn a_payload_that_is_not_utf8_keeps_its_exact_bytes() {
        let record = record(b"ab\xff\x00c", b"");
        assert_eq!(record["original_payload"], "ab\u{fffd}\0c");
        let exact = base64::engine::general_purpose::STANDARD
            .decode(record["original_payload_base64"].as_str().unwrap())
            .unwrap();
        assert_eq!(exact, b"ab\xff\x00c");
    }

    #[test]
    fn long_text_is_cut_at_a_character_and_marked() {
        let payload = "012345678901234\u{e9}tail";
        let record = record(payload.as_bytes(), "ééééé".as_bytes());
        assert_eq!(record["original_payload"], "012345678901234...[truncated]");
        assert_eq!(record["original_payload_bytes"], payload.len());
        assert_eq!(record["error_message"], "éééé...[truncated]");
        assert!(record.get("original_payload_base64").is_none());
    }

    #[test]
    fn text_of_just_the_limit_is_not_marked() {
        assert_eq!(record(b"0123456789abcdef", b"12345678")["original_payload"], "0123456789abcdef");
    }

    proptest! {
        #[test]
        fn any_bytes_give_one_valid_object_within_the_limits(
            payload in proptest::collection::vec(any::<u8>(), 0..200),
            error in proptest::collection::vec(any::<u8>(), 0..40),
            topic in proptest::collection::vec(any::<u8>(), 0..20),
            id in proptest::collection::vec(any::<u8>(), 0..20),
            payload_limit in 0usize..100,
            message_limit in 0usize..30,
        ) {
            let json = ParseError { payload: &payload, error: &error, topic: &topic, timestamp: &id, id: &id }
                .to_json(payload_limit, message_limit);
            let record: Value = serde_json::from_slice(&json).unwrap();
            prop_assert_eq!(record["original_payload_bytes"].as_u64(), Some(payload.len() as u64));
            let kept = match record.get("original_payload_base64") {
                Some(exact) => base64::engine::general_purpose::STANDARD.decode(exact.as_str().unwrap()).unwrap(),
                None => {
                    let text = record["original_payload"].as_str().unwrap();
                    let text = if payload.len() > payload_limit { text.strip_suffix(TRUNCATED).unwrap() } else { text };
                    text.as_bytes().to_vec()
                }
            };
            prop_assert!(payload.starts_with(&kept));
            prop_assert!(kept.len() <= payload_limit);
            prop_assert!(kept.len() + 3 >= payload_limit.min(payload.len()));
        }

        #[test]
        fn utf8_is_never_split(text in "\\PC{0,60}", limit in 0usize..80) {
            prop_assert!(std::str::from_utf8(cut(text.as_bytes(), limit)).is_ok());
        }
    }
}
