//! The generator of random bytes. Pure: where seeds come from does not belong here.
//!
//! The key of ChaCha20 is replaced by the cipher's own output before the rest of it is handed out, so the present
//! state does not disclose earlier bytes.

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// Bytes of a whole seed.
pub const SEED_BYTES: usize = 32;

/// The generator.
#[expect(missing_debug_implementations, reason = "nobody may print the key")]
pub struct Generator {
    key: [u8; SEED_BYTES],
    is_seeded: bool,
}

impl Generator {
    /// Without a seed the bytes differ between calls, and can be guessed.
    pub const UNSEEDED: Self = Self {
        key: [0; SEED_BYTES],
        is_seeded: false,
    };

    /// Whether a whole seed was mixed in.
    pub const fn is_seeded(&self) -> bool {
        self.is_seeded
    }

    /// Mixes in bytes that nobody else may know. A whole seed is enough for all output from here on.
    pub fn seed(&mut self, secret: &[u8]) {
        for piece in secret.chunks(SEED_BYTES) {
            self.mix(piece);
            self.fill(&mut []);
            self.is_seeded |= piece.len() == SEED_BYTES;
        }
    }

    /// Mixes up to [`SEED_BYTES`] bytes that count for nothing into what is filled next. They cannot make that easier
    /// to guess.
    pub fn mix(&mut self, noise: &[u8]) {
        for (key, noise) in self.key.iter_mut().zip(noise) {
            *key ^= noise;
        }
    }

    /// Fills `into`.
    pub fn fill(&mut self, into: &mut [u8]) {
        let mut cipher = ChaCha20Rng::from_seed(self.key);
        cipher.fill_bytes(&mut self.key);
        cipher.fill_bytes(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(generator: &mut Generator) -> [u8; 40] {
        let mut bytes = [0; 40];
        generator.fill(&mut bytes);
        bytes
    }

    /// RFC 8439, A.1, test vector 1: the key stream of a key, nonce and counter of zeros. Its first half is the next
    /// key.
    #[test]
    fn output_is_that_of_the_cipher_and_the_key_does_not_stay() {
        let mut generator = Generator::UNSEEDED;
        let mut first = [0; 4];
        generator.fill(&mut first);
        assert_eq!(first, [0xda, 0x41, 0x59, 0x7c]);
        assert_eq!(generator.key[..4], [0x76, 0xb8, 0xe0, 0xad]);
        assert_ne!(bytes(&mut generator), bytes(&mut generator));
    }

    #[test]
    fn only_a_whole_seed_counts_and_every_byte_has_an_effect() {
        let seeded = |seed: &[u8]| {
            let mut generator = Generator::UNSEEDED;
            generator.seed(seed);
            (generator.is_seeded(), bytes(&mut generator))
        };
        assert!(!seeded(&[]).0 && !seeded(&[7; 31]).0);
        assert!(seeded(&[7; 32]).0 && seeded(&[7; 33]).0);
        for at in 0..64 {
            let mut other = [7; 64];
            other[at] ^= 1;
            assert_ne!(seeded(&other).1, seeded(&[7; 64]).1, "byte {at}");
        }
        let mut noisy = Generator::UNSEEDED;
        noisy.mix(&[7; 32]);
        assert!(!noisy.is_seeded());
    }
}
