//! The values of VTCR_EL2 and VTTBR_EL2 for tables of a given [`Stage2Geometry`].
//!
//! This file computes values; a hypervisor writes them. VTCR_EL2 must not change while a guest of
//! the same VMID runs on any CPU.

#![allow(unsafe_code, reason = "VTTBR for a root that the caller vouches for")]

use super::geometry::Stage2Geometry;
use crate::arch::address::PhysicalAddress;
use crate::arch::features::CpuFeatures;
use crate::arch::geometry::{Geometry, OutputFormat};
use crate::arch::geometry_error::GeometryError;
use crate::arch::page_size::{Level, PageSize};
use crate::arch::registers::{
    base_address, input_bits, output, output_size, page_size_of, tg0, walk,
};

/// VTCR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vtcr(pub u64);

impl Vtcr {
    /// VTCR_EL2.VS: 16-bit VMIDs.
    pub const VS: u64 = 1 << 19;
    /// VTCR_EL2.HA: hardware sets the access flag (FEAT_HAFDBS).
    pub const HA: u64 = 1 << 21;
    /// VTCR_EL2.HD: hardware manages the dirty state (FEAT_HAFDBS,
    /// [`CpuFeatures::hardware_dirty`] 2 and up). HA must be set too.
    pub const HD: u64 = 1 << 22;
    /// VTCR_EL2.DS: 52-bit addresses with 4K and 16K pages.
    pub const DS: u64 = 1 << 32;
    /// VTCR_EL2.SL2: the walk starts at level -1.
    pub const SL2: u64 = 1 << 33;
    /// The RES1 bit.
    const RES1: u64 = 1 << 31;

    /// The register for guests whose tables have `geometry`. Hardware management of the access flag
    /// and the dirty state is off: add [`HA`](Self::HA) and [`HD`](Self::HD) for it.
    #[must_use]
    pub const fn new(cpu: &CpuFeatures, geometry: &Stage2Geometry) -> Self {
        let shape = geometry.shape();
        let mut bits = Self::RES1
            | (64 - shape.va_bits() as u64)
            | start_level(shape.page_size(), shape.start_level())
            | tg0(shape.page_size()) << 14
            | walk(8)
            | output_size(shape.pa_bits()) << 16;
        if matches!(shape.format(), OutputFormat::Lpa2) {
            bits |= Self::DS;
        }
        if cpu.vmid_bits() == 16 {
            bits |= Self::VS;
        }
        Self(bits)
    }

    /// TG0.
    #[inline]
    fn page_size(self) -> Result<PageSize, GeometryError> {
        page_size_of("VTCR_EL2", self.0 >> 14)
    }

    /// SL0 and SL2.
    #[inline]
    fn start_level(self, size: PageSize) -> Result<Level, GeometryError> {
        let (sl0, sl2) = (self.0 >> 6 & 0b11, self.0 & Self::SL2 != 0);
        if sl2 {
            return match (size, sl0) {
                (PageSize::K4, 0) => Ok(Level::Minus1),
                _ => Err(Self::reserved("SL2", 1)),
            };
        }
        match (size, sl0) {
            (PageSize::K4, 0) => Ok(Level::L2),
            (PageSize::K4, 1) => Ok(Level::L1),
            (PageSize::K4, 2) | (PageSize::K16, 3) => Ok(Level::L0),
            (_, 0) | (PageSize::K4, _) => Ok(Level::L3),
            (_, 1) => Ok(Level::L2),
            (_, 2) => Ok(Level::L1),
            (PageSize::K16 | PageSize::K64, _) => Err(Self::reserved("SL0", sl0)),
        }
    }

    #[inline]
    const fn reserved(field: &'static str, value: u64) -> GeometryError {
        GeometryError::Register {
            register: "VTCR_EL2",
            field,
            value,
        }
    }
}

/// SL0 and SL2. The encoding of SL0 differs between 4K and the other page sizes.
#[inline]
const fn start_level(size: PageSize, level: Level) -> u64 {
    let sl0 = match (size, level) {
        (PageSize::K4, Level::Minus1) => return Vtcr::SL2,
        (PageSize::K4, Level::L3) => 0b11,
        (PageSize::K4, _) => 2 - level.number() as u64,
        _ => 3 - level.number() as u64,
    };
    sl0 << 6
}

impl Stage2Geometry {
    /// The shape that `vtcr` describes under a hypervisor's `hcr` (HCR_EL2) on `cpu`, whose
    /// feature FEAT_XNX decides about execute permissions: the inverse of
    /// [`Vtcr::new`]. It is for tables that other code made.
    ///
    /// # Errors
    ///
    /// When a field has a reserved value, or the walk cannot start where `vtcr` says.
    pub fn from_vtcr(vtcr: Vtcr, hcr: u64, cpu: &CpuFeatures) -> Result<Self, GeometryError> {
        let page_size = vtcr.page_size()?;
        let ds = vtcr.0 & Vtcr::DS != 0;
        let (format, pa_bits) = output(page_size, ds, vtcr.0 >> 16 & 0b111);
        let ipa_bits = input_bits("VTCR_EL2", "T0SZ", vtcr.0 & 0x3f, page_size, ds)?;
        let start = vtcr.start_level(page_size)?;
        if !Self::resolved(page_size, start).contains(&ipa_bits) {
            return Err(GeometryError::StartLevel {
                page_size,
                ipa_bits,
                level: start,
            });
        }
        Ok(Self::of(Geometry::stage2(
            page_size,
            ipa_bits,
            pa_bits,
            format,
            start,
            hcr & Self::HCR_FWB != 0,
            cpu.stage2_execute_by_privilege(),
        )))
    }
}

/// VTTBR_EL2. Safe code gets a value only from a live tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vttbr(u64);

impl Vttbr {
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

    /// The register that makes `root` the first root table of the guest `vmid`. A CPU with 8-bit
    /// VMIDs ([`CpuFeatures::vmid_bits`]) ignores the upper half of `vmid`.
    /// [`Live::vttbr`](crate::table::Live::vttbr) gives it without `unsafe`.
    ///
    /// # Safety
    ///
    /// `root` is the first root table of `geometry`, aligned to the bytes of all root tables together, and
    /// whoever changes its tables issues the barriers and TLBIs for the CPUs that use this register.
    #[must_use]
    pub const unsafe fn from_root(
        geometry: &Stage2Geometry,
        root: PhysicalAddress,
        vmid: u16,
    ) -> Self {
        Self::of_shape(geometry.shape(), root, vmid)
    }

    /// As [`from_root`](Self::from_root), for the shape of a [`Stage2Geometry`] and a live tree.
    #[inline]
    pub(crate) const fn of_shape(shape: &Geometry, root: PhysicalAddress, vmid: u16) -> Self {
        Self(base_address(shape.format(), root) | (vmid as u64) << 48)
    }
}
