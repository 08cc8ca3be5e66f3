//! One line of ASCII in a fixed buffer, for the boot record and for reasons that programs read. Text
//! that does not fit is cut off. An unprintable character becomes a space, so that the text stays one
//! line.
//!
//! Code that runs with the MMU off uses it: pushing does not format and cannot panic.

use core::fmt;

/// A line of at most `BYTES` bytes.
#[derive(Clone, Debug)]
pub struct Line<const BYTES: usize> {
    bytes: [u8; BYTES],
    used: usize,
}

impl<const BYTES: usize> Line<BYTES> {
    /// An empty line.
    pub const fn new() -> Self {
        Self {
            bytes: [0; BYTES],
            used: 0,
        }
    }

    /// Appends `text`.
    pub fn push(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(slot) = self.bytes.get_mut(self.used) {
                *slot = if matches!(byte, b' '..=b'~') {
                    *byte
                } else {
                    b' '
                };
                self.used += 1;
            }
        }
    }

    /// Appends `value` as `0x` and 16 digits.
    pub fn push_hex(&mut self, value: u64) {
        self.push(b"0x");
        for shift in (0..16u32).rev() {
            let digit = (value >> (4 * shift)) as u8 & 0xf;
            self.push(&[if digit < 10 {
                b'0' + digit
            } else {
                b'a' + (digit - 10)
            }]);
        }
    }

    /// The line so far.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or(&self.bytes)
    }

    /// The line so far, as text. Not for use with the MMU off, because it checks UTF-8.
    pub fn text(&self) -> &str {
        // Only ASCII was pushed.
        str::from_utf8(self.bytes()).unwrap_or("")
    }
}

impl<const BYTES: usize> Default for Line<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BYTES: usize> fmt::Write for Line<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    #[test]
    fn hexadecimal_is_sixteen_digits() {
        let mut line = Line::<32>::new();
        line.push_hex(0x0123_4567_89ab_cdef);
        assert_eq!(line.text(), "0x0123456789abcdef");
    }

    #[test]
    fn long_text_is_cut_and_control_characters_do_not_break_the_line() {
        let mut line = Line::<8>::new();
        line.push(b"a\nb\tc\x80");
        assert_eq!(line.text(), "a b c ");
        write!(line, "{}", 12345).unwrap();
        assert_eq!(line.text(), "a b c 12");
        line.push(b"more");
        assert_eq!(line.bytes().len(), 8);
    }
}
