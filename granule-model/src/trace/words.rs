//! The words of a line, each with its place, and words that are read and written alike.

use super::error::LineError;

/// The options of barriers, by CRm of the instruction. Those for the outer shareable domain are
/// written as the system's, and stand last, so that they are never read.
pub(super) const OPTIONS: &[(u8, &str)] = &[
    (0b1111, "sy"),
    (0b1110, "st"),
    (0b1011, "ish"),
    (0b1010, "ishst"),
    (0b0111, "nsh"),
    (0b0110, "nshst"),
    (0b0011, "sy"),
    (0b0010, "st"),
];

/// The words of a line that were not taken yet.
pub(super) struct Words<'a> {
    line: &'a str,
    /// Where the next word begins, or behind the line's end.
    at: usize,
}

impl<'a> Words<'a> {
    pub(super) const fn new(line: &'a str) -> Self {
        Self { line, at: 0 }
    }

    /// The error of the next word.
    pub(super) fn error(&self, expected: &'static str) -> LineError {
        LineError::new(self.line, self.at, expected)
    }

    /// The next word, and an error to give if it is the wrong one.
    pub(super) fn next(&mut self, expected: &'static str) -> Result<&'a str, LineError> {
        let rest = self.line.get(self.at..).unwrap_or_default();
        // Lines are short and mostly ASCII: a search by bytes beats one by characters.
        let length = rest
            .bytes()
            .position(|byte| byte == b' ')
            .unwrap_or(rest.len());
        let word = rest.get(..length).unwrap_or_default();
        if word.is_empty() {
            return Err(self.error(expected));
        }
        self.at += length + 1;
        Ok(word)
    }

    /// The next word as `read` understands it.
    pub(super) fn next_as<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, LineError> {
        let at = self.at;
        let word = self.next(expected)?;
        read(word).ok_or_else(|| LineError::new(self.line, at, expected))
    }

    /// Whether there is another word.
    pub(super) const fn has_more(&self) -> bool {
        self.at <= self.line.len()
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Result<(), LineError> {
        if self.has_more() {
            // The space before what is too much is too much already.
            Err(LineError::new(
                self.line,
                self.at - 1,
                "the end of the line",
            ))
        } else {
            Ok(())
        }
    }
}

/// A number: decimal, or hexadecimal with `0x`.
pub(super) fn number(word: &str) -> Option<u64> {
    let (digits, radix) = match word.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (word, 10),
    };
    // A sign is no part of a number here, though from_str_radix takes one.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}
