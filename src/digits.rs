//! Numbers as text, without core::fmt: that took a quarter of the module's instructions per delivery.

use smallvec::SmallVec;

#[derive(Default)]
pub struct Digits {
    text: SmallVec<[u8; 64]>,
}

impl Digits {
    pub fn new() -> Self {
        Digits::default()
    }

    pub fn of(bytes: &[u8]) -> Self {
        Digits { text: SmallVec::from_slice(bytes) }
    }

    pub fn push(&mut self, number: i64) {
        /// The longest is that of i64::MIN without its sign.
        const LONGEST: usize = 19;
        if number < 0 {
            self.text.push(b'-');
        }
        let (mut digits, mut start, mut rest) = ([0; LONGEST], LONGEST, number.unsigned_abs());
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text.extend_from_slice(&digits[start..]);
    }

    pub fn push_byte(&mut self, byte: u8) {
        self.text.push(byte);
    }

    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    pub fn bytes(&self) -> &[u8] {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_is_written_as_the_formatter_does(number in any::<i64>(), edge in 0usize..4) {
            for number in [number, [i64::MIN, i64::MAX, 0, -1][edge]] {
                let mut text = Digits::new();
                text.push(number);
                prop_assert!(text.bytes() == number.to_string().as_bytes());
            }
        }
    }
}
