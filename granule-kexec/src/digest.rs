//! A digest of 64 bits over words: finds what decayed or was written over, not what was forged.
//!
//! Each step is a bijection of the state for a given word, and of the word for a given state. So
//! two texts of equal length that differ in one word never have the same digest; those that differ
//! in more have it by chance, one in 2^64. Cheap: an exclusive or, a rotation and two multiplications a
//! word, so that segments of hundreds of megabytes can be digested before and after they move.

/// An odd number whose bits are mixed: the fractional part of the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Another one: the fractional part of the square root of 2.
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
    /// Of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: FACTOR,
            words: 0,
        }
    }

    /// One more word.
    #[inline]
    pub const fn word(&mut self, word: u64) {
        // A multiplication carries bits up, never down: turned over, the second one spreads those
        // that were up. So no bit of a word changes only a few bits of the state, which one bit of
        // the next word could undo.
        let spread = (self.state ^ word).wrapping_mul(FACTOR).rotate_left(32);
        self.state = spread.wrapping_mul(OTHER);
        self.words = self.words.wrapping_add(1);
    }

    /// Bytes, as words in little-endian order; the last one is filled with zeros.
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

    /// The digest of all words given so far, of which how many they were is part.
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
