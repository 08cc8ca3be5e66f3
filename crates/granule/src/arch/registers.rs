//! The values of TCR, MAIR and TTBR for tables of a given [`Geometry`].
//!
//! This file computes values, and reads back those of other code. The kernel writes them, with the MMU off or
//! through an empty table, because TG, DS and IPS must not change while the half they govern is in use.

#![allow(unsafe_code, reason = "TTBR for a root that the caller vouches for")]

use super::address::PhysicalAddress;
use super::attributes::Shareability;
use super::features::CpuFeatures;
use super::geometry::{Geometry, OutputFormat, VaRange};
use super::geometry_error::GeometryError;
use super::page_size::PageSize;
use super::regime::Regime;

/// The value of MAIR_ELx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mair(pub u64);

impl Mair {
    /// The indices of [`MemoryType`](super::MemoryType), in its order: Normal write-back
    /// (0xff), Device-nGnRE (0x04), Normal non-cacheable (0x44), Device-nGnRnE (0x00), Normal
    /// tagged (0xf0).
    pub const STANDARD: Self = Self(0xff | 0x04 << 8 | 0x44 << 16 | 0xf0 << 32);
}

/// IRGN's and ORGN's encoding of write-back, write-allocate table walks.
const WALK_WRITE_BACK: u64 = 0b01;

/// TCR_EL1 (also TCR_EL2 under VHE): both halves of EL1&0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcr(pub u64);

impl Tcr {
    /// TCR.DS.
    pub const DS: u64 = 1 << 59;
    /// TCR.EPD0: no walks from TTBR0.
    pub const EPD0: u64 = 1 << 7;
    /// TCR.EPD1: no walks from TTBR1.
    pub const EPD1: u64 = 1 << 23;
    /// TCR.AS: 16-bit ASIDs.
    pub const AS: u64 = 1 << 36;
    /// TCR.HA: hardware sets the access flag ([`CpuFeatures::hardware_dirty`] 1 and up).
    pub const HA: u64 = 1 << 39;
    /// TCR.HD: hardware manages the dirty state ([`CpuFeatures::hardware_dirty`] 2 and up). HA must
    /// be set too.
    pub const HD: u64 = 1 << 40;

    /// The register for both halves: `lower` from TTBR0, `upper` from TTBR1. The CPU makes no walks
    /// for a half that is `None`. Hardware management of the access flag and the dirty state is
    /// off: add [`HA`](Self::HA) and [`HD`](Self::HD) for it.
    ///
    /// One bit, DS, is for both halves. If one half has 4K or 16K pages with 52-bit output addresses
    /// and the other has them without, no value serves both;
    /// [`Translation::new`](super::Translation::new) refuses such halves.
    #[must_use]
    pub const fn new(
        cpu: &CpuFeatures,
        lower: Option<&Geometry>,
        upper: Option<&Geometry>,
    ) -> Self {
        let mut bits = 0;
        let mut ds = false;
        let mut pa_bits = 0;
        match lower {
            Some(half) => {
                bits |= (64 - half.va_bits() as u64) | (tg0(half.page_size()) << 14) | walk(8);
                ds |= matches!(half.format(), OutputFormat::Lpa2);
                pa_bits = half.pa_bits();
            }
            None => bits |= Self::EPD0,
        }
        match upper {
            Some(half) => {
                bits |=
                    ((64 - half.va_bits() as u64) << 16) | (tg1(half.page_size()) << 30) | walk(24);
                ds |= matches!(half.format(), OutputFormat::Lpa2);
                if half.pa_bits() > pa_bits {
                    pa_bits = half.pa_bits();
                }
            }
            None => bits |= Self::EPD1,
        }
        if ds {
            bits |= Self::DS;
        }
        if cpu.asid_bits() == 16 {
            bits |= Self::AS;
        }
        Self(bits | output_size(pa_bits) << 32)
    }
}

impl Tcr {
    /// This value with the size, the granule and the walks of `lower` for the half of TTBR0; the
    /// fields of the upper half and of both stay. It is for programs of several page sizes under
    /// one kernel; [`space::switch`](crate::space::switch) has the order of the writes.
    ///
    /// `None` if the fields of both halves do not fit: DS gives descriptors of 4K and 16K pages their
    /// format, and more than 48 bits of output address with 64K pages need IPS to say so.
    #[must_use]
    #[inline]
    pub const fn with_lower(self, lower: &Geometry) -> Option<Self> {
        let ds = self.0 & Self::DS != 0;
        let fits = match (lower.page_size(), lower.format()) {
            (PageSize::K64, OutputFormat::Bits48) => true,
            (PageSize::K64, _) => self.0 >> 32 & 0b111 == output_size(52),
            (_, OutputFormat::Lpa2) => ds,
            (_, _) => !ds,
        };
        if !fits || !matches!(lower.va_range(), VaRange::Lower) {
            return None;
        }
        // T0SZ, EPD0, IRGN0, ORGN0, SH0, TG0.
        const HALF: u64 = 0x3f | Tcr::EPD0 | 0xff << 8;
        let half = (64 - lower.va_bits() as u64) | (tg0(lower.page_size()) << 14) | walk(8);
        Some(Self(self.0 & !HALF | half))
    }
}

/// TCR_EL2 without VHE, and TCR_EL3: one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcrSingle(pub u64);

impl TcrSingle {
    /// DS: 52-bit addresses with 4K and 16K pages.
    pub const DS: u64 = 1 << 32;
    /// HA: hardware sets the access flag ([`CpuFeatures::hardware_dirty`] 1 and up).
    pub const HA: u64 = 1 << 21;
    /// HD: hardware manages the dirty state ([`CpuFeatures::hardware_dirty`] 2 and up). HA must be
    /// set too.
    pub const HD: u64 = 1 << 22;
    /// The RES1 bits of both registers.
    const RES1: u64 = 1 << 31 | 1 << 23;

    /// The register for `geometry`, whose regime must have a single privilege.
    pub(super) const fn new(geometry: &Geometry) -> Self {
        let mut bits = Self::RES1
            | (64 - geometry.va_bits() as u64)
            | (tg0(geometry.page_size()) << 14)
            | walk(8)
            | (output_size(geometry.pa_bits()) << 16);
        if matches!(geometry.format(), OutputFormat::Lpa2) {
            bits |= Self::DS;
        }
        Self(bits)
    }
}

/// TTBR0 or TTBR1. Safe code gets a value only from a live tree:
///
/// ```compile_fail,E0423
/// use granule::arch::{PhysicalAddress, registers::Ttbr};
///
/// fn forged(root: PhysicalAddress) -> Ttbr {
///     Ttbr(root.0)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttbr(u64);

impl Ttbr {
    /// No tables, for a half in which TCR allows no walks.
    pub const NONE: Self = Self(0);

    /// The value for the register.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// A value that the register had, or has.
    ///
    /// # Safety
    ///
    /// As for [`from_root`](Self::from_root).
    #[must_use]
    pub const unsafe fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The register that makes `root` the root table, with `asid`, which a regime without ASIDs
    /// ignores.
    /// [`Live::ttbr`](crate::table::Live::ttbr) gives it for a tree of this library; this function
    /// is for roots of other kinds, for example one empty page.
    ///
    /// With 52-bit output addresses TTBR\[5:2\] holds address bits 51:48, and the root must be
    /// aligned to 64 bytes. This library allocates a whole page for a root, so the alignment always
    /// holds.
    ///
    /// # Safety
    ///
    /// `root` is a root table of `geometry`, and whoever changes its tables issues the barriers and
    /// TLBIs for the CPUs that use this register.
    #[must_use]
    pub const unsafe fn from_root(geometry: &Geometry, root: PhysicalAddress, asid: u16) -> Self {
        // The field is RES0 where the regime has no ASIDs.
        let asid = if geometry.regime().has_user() {
            asid
        } else {
            0
        };
        Self(base_address(geometry.format(), root) | (asid as u64) << 48)
    }
}

impl Geometry {
    /// The shape of one half of EL1&0, or of EL2&0 under VHE, with this TCR: the inverse of
    /// [`Tcr::new`]. `None` if the CPU makes no walks for that half (EPD). It is for tables that
    /// other code made; the CPU's own limits are not looked at.
    ///
    /// # Errors
    ///
    /// When a field of `tcr` has a reserved value.
    pub fn from_tcr(tcr: Tcr, va_range: VaRange) -> Result<Option<Self>, GeometryError> {
        let ds = tcr.0 & Tcr::DS != 0;
        let (off, size, field, bits) = match va_range {
            VaRange::Lower => (
                tcr.0 & Tcr::EPD0 != 0,
                page_size_of("TCR", tcr.0 >> 14),
                "T0SZ",
                tcr.0 & 0x3f,
            ),
            VaRange::Upper => (
                tcr.0 & Tcr::EPD1 != 0,
                upper_page_size(tcr.0 >> 30),
                "T1SZ",
                tcr.0 >> 16 & 0x3f,
            ),
        };
        if off {
            return Ok(None);
        }
        let size = size?;
        let va_bits = input_bits("TCR", field, bits, size, ds)?;
        let (format, pa_bits) = output(size, ds, tcr.0 >> 32 & 0b111);
        let regime = Regime::El1And0;
        let shape = Self::stage1(size, va_bits, pa_bits, format, va_range, regime);
        Ok(Some(shape))
    }

    /// The shape of `regime`, which has one half, with this TCR: the inverse of
    /// [`Translation::new`](super::Translation::new).
    ///
    /// # Errors
    ///
    /// When a field of `tcr` has a reserved value, or `regime` is not EL2 or EL3.
    pub fn from_tcr_single(tcr: TcrSingle, regime: Regime) -> Result<Self, GeometryError> {
        if regime == Regime::Stage2 {
            return Err(GeometryError::NotStage1);
        }
        if regime.has_user() {
            return Err(GeometryError::TwoHalves(regime));
        }
        let ds = tcr.0 & TcrSingle::DS != 0;
        let size = page_size_of("TCR", tcr.0 >> 14)?;
        let va_bits = input_bits("TCR", "T0SZ", tcr.0 & 0x3f, size, ds)?;
        let (format, pa_bits) = output(size, ds, tcr.0 >> 16 & 0b111);
        let half = VaRange::Lower;
        Ok(Self::stage1(size, va_bits, pa_bits, format, half, regime))
    }

    /// The root table that a value of TTBR names, with tables of this shape. It is aligned to its
    /// own size, and to at least 64 bytes where the register holds address bits 51:48.
    #[must_use]
    #[inline]
    pub const fn root_in(&self, ttbr: u64) -> PhysicalAddress {
        let (least, high) = match self.format() {
            OutputFormat::Bits48 => (8, 0),
            OutputFormat::Lpa2 | OutputFormat::Lpa => (64, (ttbr >> 2 & 0b1111) << 48),
        };
        let bytes = 8 * self.root_entries() as u64;
        let bytes = if bytes < least { least } else { bytes };
        PhysicalAddress(ttbr & 0x0000_ffff_ffff_ffff & !(bytes - 1) | high)
    }
}

/// The page size of TG0 in the low bits.
#[inline]
pub(super) const fn page_size_of(
    register: &'static str,
    bits: u64,
) -> Result<PageSize, GeometryError> {
    match bits & 0b11 {
        0b00 => Ok(PageSize::K4),
        0b01 => Ok(PageSize::K64),
        0b10 => Ok(PageSize::K16),
        value => Err(GeometryError::Register {
            register,
            field: "TG0",
            value,
        }),
    }
}

/// The page size of TG1 in the low bits.
#[inline]
const fn upper_page_size(bits: u64) -> Result<PageSize, GeometryError> {
    match bits & 0b11 {
        0b01 => Ok(PageSize::K16),
        0b10 => Ok(PageSize::K4),
        0b11 => Ok(PageSize::K64),
        value => Err(GeometryError::Register {
            register: "TCR",
            field: "TG1",
            value,
        }),
    }
}

/// The bits of input address of T0SZ or T1SZ. More than 48 need TCR.DS, except with 64K pages
/// (FEAT_LVA); the fewest are those of FEAT_TTST.
#[inline]
pub(super) const fn input_bits(
    register: &'static str,
    field: &'static str,
    value: u64,
    size: PageSize,
    ds: bool,
) -> Result<u32, GeometryError> {
    let wide = ds || matches!(size, PageSize::K64);
    let least = if wide { 12 } else { 16 };
    let most = if matches!(size, PageSize::K64) {
        47
    } else {
        48
    };
    if value < least || value > most {
        return Err(GeometryError::Register {
            register,
            field,
            value,
        });
    }
    Ok(64 - value as u32)
}

/// The output format and the bits of output address, of TCR.DS and of IPS or PS. A reserved size
/// counts as 52 bits.
#[inline]
pub(super) const fn output(size: PageSize, ds: bool, bits: u64) -> (OutputFormat, u32) {
    let pa_bits = match bits {
        0b000 => 32,
        0b001 => 36,
        0b010 => 40,
        0b011 => 42,
        0b100 => 44,
        0b101 => 48,
        _ => 52,
    };
    match size {
        PageSize::K64 if pa_bits > Geometry::MOST_PLAIN_BITS => (OutputFormat::Lpa, pa_bits),
        PageSize::K4 | PageSize::K16 if ds => (OutputFormat::Lpa2, pa_bits),
        _ if pa_bits > Geometry::MOST_PLAIN_BITS => {
            (OutputFormat::Bits48, Geometry::MOST_PLAIN_BITS)
        }
        _ => (OutputFormat::Bits48, pa_bits),
    }
}

/// BADDR of a translation table base register.
#[inline]
pub(super) const fn base_address(format: OutputFormat, root: PhysicalAddress) -> u64 {
    let low = root.0 & 0x0000_ffff_ffff_fffe;
    let high = match format {
        OutputFormat::Bits48 => 0,
        OutputFormat::Lpa2 | OutputFormat::Lpa => ((root.0 >> 48) & 0b1111) << 2,
    };
    low | high
}

/// TG0's encoding, which differs from TG1's; several kernels have mixed them up.
#[inline]
pub(super) const fn tg0(size: PageSize) -> u64 {
    match size {
        PageSize::K4 => 0b00,
        PageSize::K64 => 0b01,
        PageSize::K16 => 0b10,
    }
}

/// TG1's encoding.
#[inline]
const fn tg1(size: PageSize) -> u64 {
    match size {
        PageSize::K16 => 0b01,
        PageSize::K4 => 0b10,
        PageSize::K64 => 0b11,
    }
}

/// IRGN, ORGN and SH of one half, with IRGN at bit `low`.
#[inline]
pub(super) const fn walk(low: u32) -> u64 {
    (WALK_WRITE_BACK | WALK_WRITE_BACK << 2 | Shareability::Inner.bits() << 4) << low
}

/// The encoding of IPS and PS: the output address size.
#[inline]
pub(super) const fn output_size(pa_bits: u32) -> u64 {
    match pa_bits {
        0..=32 => 0b000,
        33..=36 => 0b001,
        37..=40 => 0b010,
        41..=42 => 0b011,
        43..=44 => 0b100,
        45..=48 => 0b101,
        _ => 0b110,
    }
}
