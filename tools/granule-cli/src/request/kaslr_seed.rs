//! The seed of the kernel's addresses, and its words on the command line.

use crate::sizes::parse_address;

/// The seed by which the kernel randomises its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KaslrSeed {
    /// None: every boot has the same addresses.
    Off,
    /// A new one for each boot, from QEMU.
    Random,
    /// This one. 0 is not a seed.
    Number(u64),
}

impl KaslrSeed {
    /// The seed, if it is known before the boot.
    pub const fn number(self) -> Option<u64> {
        match self {
            Self::Number(seed) => Some(seed),
            Self::Off | Self::Random => None,
        }
    }
}

/// The value of `--kaslr-seed`.
pub(crate) fn parse_kaslr_seed(text: &str) -> Result<KaslrSeed, String> {
    match text {
        "off" => Ok(KaslrSeed::Off),
        "random" => Ok(KaslrSeed::Random),
        number => match number.parse().ok().or_else(|| parse_address(number).ok()) {
            Some(seed) => Ok(KaslrSeed::Number(seed)),
            None => Err(
                "expected off, random, or a number of 64 bits, decimal or hexadecimal with 0x"
                    .into(),
            ),
        },
    }
}
