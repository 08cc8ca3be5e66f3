//! Byte strings from firmware: comparing, splitting, decoding and keeping them.
//!
//! The comparisons are explicit loops. A comparison of slices would call `memcmp`, whose handling
//! of unaligned addresses depends on the implementation that is linked.

use core::fmt;

/// Whether two byte strings are equal.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x == y)
}

/// The rest of `bytes` after `prefix`, if `bytes` starts with it.
pub(super) fn after<'a>(bytes: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (head, tail) = bytes.split_at_checked(prefix.len())?;
    same(head, prefix).then_some(tail)
}

/// The part before the first `separator`, or all of `bytes`.
pub(super) fn before(bytes: &[u8], separator: u8) -> &[u8] {
    split_once(bytes, separator).map_or(bytes, |(head, _)| head)
}

/// The parts before and after the first `separator`, if there is one.
pub(super) fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == separator)?;
    let (head, tail) = bytes.split_at_checked(at)?;
    let (_, tail) = tail.split_first()?;
    Some((head, tail))
}

fn chunk<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<[u8; BYTES]> {
    let (_, tail) = bytes.split_at_checked(at)?;
    tail.first_chunk().copied()
}

/// The big-endian 32-bit number at offset `at`.
pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    chunk(bytes, at).map(u32::from_be_bytes)
}

/// The big-endian 64-bit number at offset `at`.
pub(super) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    chunk(bytes, at).map(u64::from_be_bytes)
}

/// The little-endian 16-bit number at offset `at`.
pub(super) fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    chunk(bytes, at).map(u16::from_le_bytes)
}

/// The little-endian 32-bit number at offset `at`.
pub(super) fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    chunk(bytes, at).map(u32::from_le_bytes)
}

/// The little-endian 64-bit number at offset `at`.
pub(super) fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    chunk(bytes, at).map(u64::from_le_bytes)
}

/// A short invalid text, kept by value for the error line that quotes it.
///
/// Its [`Display`](fmt::Display) form is one line of ASCII for any bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    bytes: [u8; Text::CAPACITY],
    len: u8,
    cut: bool,
}

impl Text {
    /// The number of bytes kept. A longer text is cut and printed with an ellipsis.
    pub const CAPACITY: usize = 22;

    /// Keeps the first bytes of `text`.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        let mut kept = Self {
            bytes: [0; Self::CAPACITY],
            len: 0,
            cut: false,
        };
        for (to, from) in kept.bytes.iter_mut().zip(text) {
            *to = *from;
            kept.len = kept.len.wrapping_add(1);
        }
        kept.cut = text.len() > Self::CAPACITY;
        kept
    }

    /// The bytes kept.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ellipsis = if self.cut { "..." } else { "" };
        write!(f, "{}{ellipsis}", self.as_bytes().escape_ascii())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text(\"{self}\")")
    }
}
