//! Why a shape of an address space is impossible, with the words for it.

use super::page_size::{Level, PageSize};
use super::regime::Regime;
use core::fmt;

/// Why a [`Geometry`](super::Geometry) is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// The CPU does not have the page size.
    PageSize(PageSize),
    /// The CPU does not support this number of input address bits with this page size.
    AddressBits {
        /// The requested page size.
        page_size: PageSize,
        /// The requested bits.
        va_bits: u32,
        /// The fewest supported bits.
        least: u32,
        /// The most supported bits.
        most: u32,
    },
    /// A regime with one privilege translates from TTBR0 alone.
    NoUpperHalf(Regime),
    /// A regime with two halves has a [`Tcr`](super::registers::Tcr) that says the shape of each.
    TwoHalves(Regime),
    /// The other half has 52-bit descriptors by TCR.DS, which is one for both halves, and this CPU has
    /// none with this page size (FEAT_LPA2 is a feature of each).
    OtherFormat(PageSize),
    /// The shape of stage 2 is a [`Stage2Geometry`](super::stage2::Stage2Geometry).
    NotStage1,
    /// The CPU does not have the page size at stage 2.
    Stage2PageSize(PageSize),
    /// The CPU does not support this number of intermediate physical address bits with this page
    /// size.
    IpaBits {
        /// The requested page size.
        page_size: PageSize,
        /// The requested bits.
        ipa_bits: u32,
        /// The fewest supported bits.
        least: u32,
        /// The most supported bits.
        most: u32,
    },
    /// A walk of stage 2 cannot start at this level.
    StartLevel {
        /// The page size.
        page_size: PageSize,
        /// The bits of intermediate physical address.
        ipa_bits: u32,
        /// The requested level.
        level: Level,
    },
    /// A register has a value in this field with which it describes no shape.
    Register {
        /// The register: `TCR` or `VTCR_EL2`.
        register: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PageSize(size) => write!(f, "this CPU does not have {size} pages"),
            Self::AddressBits {
                page_size,
                va_bits,
                least,
                most,
            } => write!(
                f,
                "{va_bits} bits of virtual address with {page_size} pages: this CPU has {least} to {most}"
            ),
            Self::NoUpperHalf(regime) => write!(
                f,
                "the {regime:?} regime has no upper half: use TTBR0's (VaRange::Lower), from address zero up"
            ),
            Self::TwoHalves(regime) => write!(
                f,
                "the {regime:?} regime has two halves: use from_tcr, which takes the half too"
            ),
            Self::OtherFormat(size) => write!(
                f,
                "the other half has 52-bit descriptors (TCR.DS), and this CPU has none with {size} pages"
            ),
            Self::NotStage1 => write!(f, "the shape of stage 2 is made by Stage2Geometry::new"),
            Self::Stage2PageSize(size) => {
                write!(f, "this CPU does not have {size} pages at stage 2")
            }
            Self::IpaBits {
                page_size,
                ipa_bits,
                least,
                most,
            } => write!(
                f,
                "{ipa_bits} bits of intermediate physical address with {page_size} pages: this CPU has {least} to {most}"
            ),
            Self::StartLevel {
                page_size,
                ipa_bits,
                level,
            } => write!(
                f,
                "a walk of {ipa_bits} bits with {page_size} pages cannot start at level {level} of stage 2 on this CPU"
            ),
            Self::Register {
                register,
                field,
                value,
            } => write!(
                f,
                "{register}.{field} is {value:#x}, with which no walk is defined"
            ),
        }
    }
}

impl core::error::Error for GeometryError {}
