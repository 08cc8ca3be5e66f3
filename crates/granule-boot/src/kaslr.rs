//! Address randomisation (KASLR): whether it is on, and the numbers that choose addresses. Which
//! addresses there are to choose from is the kernel's business.
//!
//! The seed is the 64-bit number that firmware leaves in `/chosen/kaslr-seed`. Every number is drawn
//! from it, so a boot with the same seed has the same addresses.
//!
//! The code that reads the seed overwrites it in the tree, so that no later reader can compute the addresses.
//! Each purpose has a number of its own: the image's place is taken with the MMU off, that of the linear map
//! once RAM is known, and the seed for a next kernel last.

use super::words;
use core::fmt;

/// The word on the command line that turns address randomisation off.
pub const NOKASLR: &[u8] = b"nokaslr";

/// Whether addresses are randomised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kaslr {
    /// By this seed.
    On(Seed),
    /// Off: the device tree has no seed, or 0.
    #[default]
    NoSeed,
    /// Off: the command line has `nokaslr`.
    TurnedOff,
}

impl Kaslr {
    /// Decides by the value of `/chosen/kaslr-seed` and the command line.
    #[must_use]
    pub fn decide(seed: Option<&[u8; 8]>, line: &[u8]) -> Self {
        if words::is_given(line, NOKASLR) {
            return Self::TurnedOff;
        }
        match seed.map_or(0, |bytes| u64::from_be_bytes(*bytes)) {
            0 => Self::NoSeed,
            seed => Self::On(Seed(seed)),
        }
    }

    /// The seed, if randomisation is on.
    #[must_use]
    pub const fn seed(self) -> Option<Seed> {
        match self {
            Self::On(seed) => Some(seed),
            Self::NoSeed | Self::TurnedOff => None,
        }
    }
}

/// A seed. It cannot be printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(u64);

/// The purpose of a random number. Each purpose has its own number, so that one address does not disclose
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// The part of the address space that the image is in.
    ImagePart,
    /// The image's place in that part.
    ImagePlace,
    /// The place of the linear map.
    LinearMap,
    /// The seed of the next kernel.
    NextKernel,
}

impl Seed {
    /// The number for `purpose`.
    ///
    /// The mixing is SplitMix64's: firmware's seed is good in all bits, one that a person wrote
    /// need not be.
    #[must_use]
    pub const fn number(self, purpose: Purpose) -> u64 {
        let turn = match purpose {
            Purpose::ImagePart => 1_u64,
            Purpose::ImagePlace => 2,
            Purpose::LinearMap => 3,
            Purpose::NextKernel => 4,
        };
        let state = self
            .0
            .wrapping_add(turn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of `count` choices for `purpose`, from 0 on; 0 if there is none.
    ///
    /// The choice is the upper half of a product: it takes the same time for every seed, and has no
    /// division that could fail.
    #[must_use]
    pub const fn choose(self, purpose: Purpose, count: u64) -> u64 {
        ((self.number(purpose) as u128).wrapping_mul(count as u128) >> 64) as u64
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    fn seed(number: u64) -> Seed {
        match Kaslr::decide(Some(&number.to_be_bytes()), b"") {
            Kaslr::On(seed) => seed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_seed_turns_it_on_and_the_word_off() {
        let seed = 7_u64.to_be_bytes();
        assert_eq!(Kaslr::decide(Some(&seed), b"rodata=on"), Kaslr::On(Seed(7)));
        assert_eq!(Kaslr::decide(None, b""), Kaslr::NoSeed);
        assert_eq!(Kaslr::decide(Some(&[0; 8]), b""), Kaslr::NoSeed);
        assert_eq!(Kaslr::decide(Some(&seed), b"a nokaslr b"), Kaslr::TurnedOff);
        assert_eq!(Kaslr::decide(None, b"nokaslr"), Kaslr::TurnedOff);
        for others in ["nokaslr=1", "-- nokaslr", "nokaslr2", "xnokaslr"] {
            let decided = Kaslr::decide(Some(&seed), others.as_bytes());
            assert_eq!(decided, Kaslr::On(Seed(7)), "{others}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a statistic of 45 000 draws takes Miri a minute")]
    fn every_choice_is_made_about_equally_often() {
        for purpose in [Purpose::ImagePart, Purpose::ImagePlace, Purpose::LinearMap] {
            let mut times = [0; 15];
            for number in 1..=15_000 {
                times[seed(number).choose(purpose, 15) as usize] += 1;
            }
            assert!(
                times.iter().all(|times| (850..1150).contains(times)),
                "{times:?}"
            );
        }
    }

    #[test]
    fn few_choices_are_no_error() {
        for number in [1, u64::MAX] {
            assert_eq!(seed(number).choose(Purpose::LinearMap, 0), 0);
            assert_eq!(seed(number).choose(Purpose::LinearMap, 1), 0);
        }
    }

    #[test]
    fn a_seed_is_not_printed() {
        assert_eq!(std::format!("{:?}", seed(0x1234)), "Seed(..)");
    }
}
