//! A 64-bit digest over words. It detects decay and overwriting, not forgery.
//!
//! Each step is a bijection of the state for a given word, and of the word for a given state. So
//! two texts of equal length that differ in exactly one word never have the same digest; other
//! differences collide by chance, one in 2^64. A word costs an exclusive or, a rotation and two
//! multiplications, so hundreds of megabytes can be digested before and after they move.

/// An odd number with mixed bits: the fractional part of the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Another such number: the fractional part of the square root of 2.
const OTHER: u64 = 0x6a09_e667_f3bc_c909;

/// The digest of the words so far.
///
/// ```
/// use granule_kexec::Digest;
///
/// let mut digest = Digest::new();
/// digest.word(1);
/// digest.word(2);
/// let mut other = Digest::new();
/// other.word(2);
/// other.word(1);
/// assert_ne!(digest.value(), other.value());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    state: u64,
    words: u64,
}

impl Digest {
    /// The digest of no words.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: FACTOR,
            words: 0,
        }
    }

    /// Adds a word.
    #[inline]
    pub const fn word(&mut self, word: u64) {
        // A multiplication carries bits up, never down. The rotation turns the upper half down, and
        // the second multiplication spreads those bits. So every bit of a word changes many bits of
        // the state, and no single bit of the next word can undo that.
        let spread = (self.state ^ word).wrapping_mul(FACTOR).rotate_left(32);
        self.state = spread.wrapping_mul(OTHER);
        self.words = self.words.wrapping_add(1);
    }

    /// Adds bytes as little-endian words; the last word is padded with zeros.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(rest) {
                *to = *from;
            }
            self.word(u64::from_le_bytes(word));
        }
    }

    /// The digest of all words so far; their number is part of it.
    #[must_use]
    pub const fn value(&self) -> u64 {
        let mixed = (self.state ^ self.words).wrapping_mul(FACTOR);
        mixed ^ mixed >> 32
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}
