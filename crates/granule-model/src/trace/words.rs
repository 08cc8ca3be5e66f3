//! The words of a line with their columns, and the words that are read and written alike.

use super::error::LineError;

/// The options of barriers, by CRm of the instruction. Options for the outer shareable domain are
/// written as those of the system; they stand last, so that the search by name never finds them.
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
    /// The byte where the next word begins, or the end of the line.
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

    /// The next word, and the error to return if the word is wrong.
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

    /// The next word, converted by `read`.
    pub(super) fn next_as<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, LineError> {
        let at = self.at;
        let word = self.next(expected)?;
        read(word).ok_or_else(|| LineError::new(self.line, at, expected))
    }

    /// All that is left of the line, converted by `read`.
    pub(super) fn rest_as<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, LineError> {
        let rest = self.line.get(self.at..).unwrap_or_default();
        let error = self.error(expected);
        self.at = self.line.len() + 1;
        read(rest).ok_or(error)
    }

    pub(super) fn begins_with(&self, text: &str) -> bool {
        let rest = self.line.get(self.at..).unwrap_or_default();
        rest.starts_with(text)
    }

    /// Whether there is another word.
    pub(super) const fn has_more(&self) -> bool {
        self.at <= self.line.len()
    }

    /// Checks that no word follows.
    pub(super) fn end(&self) -> Result<(), LineError> {
        if self.has_more() {
            // The error begins at the space before the extra word.
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
    // A number has no sign here, though from_str_radix accepts one.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}
