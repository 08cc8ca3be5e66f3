//! All registers that turn the translation of one regime on, as one value.
//!
//! `hw::enable` writes it. A kernel that switches in code of its own reads the fields. This file
//! issues no instruction.

use super::features::CpuFeatures;
use super::geometry::{Geometry, OutputFormat};
use super::page_size::PageSize;
use super::regime::Regime;
use super::registers::{Mair, Tcr, TcrSingle, Ttbr};
use core::fmt;

/// SCTLR_ELx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sctlr(pub u64);

impl Sctlr {
    /// The MMU.
    pub const M: u64 = 1 << 0;
    /// Data caches: without it Normal memory is accessed as Non-cacheable.
    pub const C: u64 = 1 << 2;
    /// A misaligned stack pointer faults.
    pub const SA: u64 = 1 << 3;
    /// Instruction caches.
    pub const I: u64 = 1 << 12;

    /// MMU and caches off: the bits that are RES1 without later extensions (EL1&0: LSMAOE, nTLSMD,
    /// SPAN, EIS, TSCXT and EOS), all else 0. So little endian, and without alignment checks beyond
    /// those of Device memory. Of stage 2 it is the register of the guest.
    #[must_use]
    #[inline]
    pub const fn off(regime: Regime) -> Self {
        Self(match regime {
            Regime::El1And0 | Regime::Stage2 => 0x30d0_0800,
            Regime::El2 | Regime::El3 => 0x30c5_0830,
        })
    }

    /// As [`off`](Self::off), with the MMU, the caches and the check of the stack pointer on. Not
    /// WXN: the tables decide which pages execute.
    #[must_use]
    #[inline]
    pub const fn on(regime: Regime) -> Self {
        Self(Self::off(regime).0 | Self::M | Self::C | Self::SA | Self::I)
    }
}

/// The values of all registers that turn translation on in one regime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Translation {
    /// Whose translation it is.
    pub regime: Regime,
    /// MAIR_ELx: [`Mair::STANDARD`].
    pub mair: Mair,
    /// TCR_ELx.
    pub tcr: u64,
    /// TTBR0_ELx; 0 if there are no tables for it.
    pub ttbr0: Ttbr,
    /// TTBR1_EL1; 0 if there are no tables for it, and in a regime without it.
    pub ttbr1: Ttbr,
    /// SCTLR_ELx: [`Sctlr::on`], or that with further bits.
    pub sctlr: Sctlr,
}

/// Why tables do not make a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no others")]
pub enum TranslationError {
    /// There are tables for neither half.
    NoTables,
    /// The halves belong to different regimes.
    Regimes {
        /// The lower half's.
        lower: Regime,
        /// The upper half's.
        upper: Regime,
    },
    /// The tables are for the other half.
    WrongHalf,
    /// One half has 52-bit output addresses in descriptors of 4K or 16K pages, and the other 48-bit
    /// ones: TCR.DS gives both one format.
    Formats {
        /// The lower half's.
        lower: OutputFormat,
        /// The upper half's.
        upper: OutputFormat,
    },
    /// The tables are a guest's: they are not a half of stage 1.
    WrongStage,
}

impl fmt::Display for TranslationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTables => f.write_str(
                "there are tables for neither half, so no instruction could run: give at least one",
            ),
            Self::Regimes { lower, upper } => write!(
                f,
                "the lower half is of the regime {lower:?}, the upper of {upper:?}: both must be of one"
            ),
            Self::WrongHalf => f.write_str(
                "the tables are for the other half: TTBR0 is the lower one, TTBR1 the upper",
            ),
            Self::Formats { lower, upper } => write!(
                f,
                "the lower half's descriptors have the format {lower:?}, the upper's {upper:?}, and TCR.DS \
                 is one for both: make both halves with 52-bit output addresses, or none"
            ),
            Self::WrongStage => f.write_str(
                "the tables are of stage 2, which VTCR_EL2 and VTTBR_EL2 turn on: use Vtcr",
            ),
        }
    }
}

impl core::error::Error for TranslationError {}

impl Translation {
    /// The registers for tables of the lower half, the upper half, or both, each given with its
    /// geometry. The CPU makes no walks for a half that is `None`.
    ///
    /// # Errors
    ///
    /// If there is no half, one stands in the other's place, they are of two regimes or of two
    /// formats that TCR.DS cannot both have, or of stage 2.
    pub fn new(
        cpu: &CpuFeatures,
        lower: Option<(&Geometry, Ttbr)>,
        upper: Option<(&Geometry, Ttbr)>,
    ) -> Result<Self, TranslationError> {
        use super::geometry::VaRange::{Lower, Upper};
        let (lower_geometry, upper_geometry) = (lower.map(|half| half.0), upper.map(|half| half.0));
        if lower_geometry.is_some_and(|half| half.va_range() != Lower)
            || upper_geometry.is_some_and(|half| half.va_range() != Upper)
        {
            return Err(TranslationError::WrongHalf);
        }
        let regime = match (lower_geometry, upper_geometry) {
            (None, None) => return Err(TranslationError::NoTables),
            (Some(half), None) | (None, Some(half)) => half.regime(),
            (Some(lower), Some(upper)) if lower.regime() == upper.regime() => lower.regime(),
            (Some(lower), Some(upper)) => {
                return Err(TranslationError::Regimes {
                    lower: lower.regime(),
                    upper: upper.regime(),
                });
            }
        };
        if regime == Regime::Stage2 {
            return Err(TranslationError::WrongStage);
        }
        if let (Some(lower), Some(upper)) = (lower_geometry, upper_geometry) {
            // DS means nothing to 64K pages.
            let of_ds = |half: &Geometry| half.page_size() != PageSize::K64;
            let (formats, both) = (
                (lower.format(), upper.format()),
                of_ds(lower) && of_ds(upper),
            );
            if both && formats.0 != formats.1 {
                let (lower, upper) = formats;
                return Err(TranslationError::Formats { lower, upper });
            }
        }
        let tcr = match (regime, lower_geometry) {
            (Regime::El2 | Regime::El3, Some(half)) => TcrSingle::new(half).0,
            _ => Tcr::new(cpu, lower_geometry, upper_geometry).0,
        };
        Ok(Self {
            regime,
            mair: Mair::STANDARD,
            tcr,
            ttbr0: lower.map_or(Ttbr::NONE, |half| half.1),
            ttbr1: upper.map_or(Ttbr::NONE, |half| half.1),
            sctlr: Sctlr::on(regime),
        })
    }
}
