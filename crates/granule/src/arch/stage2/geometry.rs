//! The shape of a guest's address space: page size, input and output address sizes, start level
//! and the number of concatenated root tables.
//!
//! A [`Stage2Geometry`] is a [`Geometry`] that only stage 2 can use. The number of input address
//! bits alone does not give the level of the root: up to 16 tables may be concatenated at a lower
//! level (a higher number) instead of one small table above them, and some sizes require that.

use crate::arch::features::{CpuFeatures, Support};
use crate::arch::geometry::{Geometry, OutputFormat};
use crate::arch::geometry_error::GeometryError;
use crate::arch::page_size::{Level, PageSize};
use core::ops::RangeInclusive;

/// The most bits of input address that concatenated root tables resolve besides those of one table.
const MOST_CONCATENATED_BITS: u32 = 4;

/// The shape of a guest's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage2Geometry(Geometry);

impl Stage2Geometry {
    /// HCR_EL2.VM: stage 2 is on.
    pub const HCR_VM: u64 = 1 << 0;
    /// HCR_EL2.FWB: MemAttr has the encoding of FEAT_S2FWB.
    pub const HCR_FWB: u64 = 1 << 46;

    /// The geometry of `ipa_bits` bits of intermediate physical address with `page_size` pages on
    /// `cpu`, with as few levels as possible: a walk starts at the lowest level that 16
    /// concatenated root tables allow. FEAT_S2FWB and FEAT_XNX are used if `cpu` has them.
    ///
    /// The tables of a guest that moves between CPUs need the features that all of them have.
    ///
    /// # Errors
    ///
    /// When the CPU lacks the page size at stage 2, or does not support that number of input
    /// address bits. An input address may not have more bits than `cpu` has bits of physical
    /// address.
    pub fn new(
        cpu: &CpuFeatures,
        page_size: PageSize,
        ipa_bits: u32,
    ) -> Result<Self, GeometryError> {
        let format = Self::format(cpu, page_size, ipa_bits)?;
        let most_pa_bits = if matches!(format, OutputFormat::Bits48) {
            Geometry::MOST_PLAIN_BITS
        } else {
            52
        };
        let mut start = page_size.start_level(ipa_bits.saturating_sub(MOST_CONCATENATED_BITS));
        // Without FEAT_TTST a walk of 4K tables cannot start at level 3.
        if start.is_last() && page_size == PageSize::K4 && !cpu.small_tables() {
            start = Level::L2;
        }
        Ok(Self(Geometry::stage2(
            page_size,
            ipa_bits,
            cpu.pa_bits().min(most_pa_bits),
            format,
            start,
            cpu.stage2_forced_write_back(),
            cpu.stage2_execute_by_privilege(),
        )))
    }

    /// Checks the input size, and returns the output format.
    fn format(
        cpu: &CpuFeatures,
        page_size: PageSize,
        ipa_bits: u32,
    ) -> Result<OutputFormat, GeometryError> {
        let support = cpu.stage2_page_size(page_size);
        if support == Support::No {
            return Err(GeometryError::Stage2PageSize(page_size));
        }
        let wide = match page_size {
            PageSize::K64 => cpu.pa_bits() >= 52,
            _ => support == Support::With52Bits && cpu.pa_bits() >= 52,
        };
        let most = cpu
            .pa_bits()
            .min(if wide { 52 } else { Geometry::MOST_PLAIN_BITS });
        let least = cpu.least_va_bits(page_size);
        if ipa_bits < least || ipa_bits > most {
            return Err(GeometryError::IpaBits {
                page_size,
                ipa_bits,
                least,
                most,
            });
        }
        Ok(match (wide, page_size) {
            (false, _) => OutputFormat::Bits48,
            (true, PageSize::K64) => OutputFormat::Lpa,
            (true, _) => OutputFormat::Lpa2,
        })
    }

    /// The same shape with a walk that starts at `level`, for example to have one root table
    /// instead of several.
    ///
    /// # Errors
    ///
    /// When the architecture has no walk from `level` for this number of input address bits. The
    /// tables at `level` must resolve at least one of these bits, and 16 tables must resolve all
    /// that the lower levels leave. `cpu` must also have the features and the physical address size
    /// that a start at that level requires.
    #[inline]
    pub fn with_start_level(self, cpu: &CpuFeatures, level: Level) -> Result<Self, GeometryError> {
        let shape = self.0;
        let size = shape.page_size();
        // The start levels that need a larger physical address size, TCR.DS or FEAT_TTST.
        let reserved = match (size, level) {
            (PageSize::K4, Level::Minus1) => !shape.lpa2() || cpu.pa_bits() < 52,
            (PageSize::K4, Level::L0) => cpu.pa_bits() < 44,
            (PageSize::K4, Level::L3) => !cpu.small_tables(),
            (PageSize::K16, Level::L0) => !shape.lpa2(),
            (PageSize::K16, Level::L1) => cpu.pa_bits() < 42,
            (PageSize::K64, Level::L1) => cpu.pa_bits() < 44,
            (PageSize::K4, _) | (_, Level::L2 | Level::L3) => false,
            _ => true,
        };
        if reserved || !Self::resolved(size, level).contains(&shape.va_bits()) {
            return Err(GeometryError::StartLevel {
                page_size: size,
                ipa_bits: shape.va_bits(),
                level,
            });
        }
        Ok(Self(shape.starting_at(level)))
    }

    /// The bits of input address that up to 16 root tables at `level` and all tables below them
    /// resolve, if at least one bit is the root's.
    #[inline]
    pub(super) const fn resolved(size: PageSize, level: Level) -> RangeInclusive<u32> {
        let least = size.level_shift(level) + 1;
        RangeInclusive::new(
            least,
            least + size.index_bits() - 1 + MOST_CONCATENATED_BITS,
        )
    }

    /// The type of a shape of stage 2, which the caller checked.
    #[inline]
    pub(super) const fn of(shape: Geometry) -> Self {
        Self(shape)
    }

    /// The shape without its type: for [`Descriptor`](crate::arch::Descriptor) and other code that
    /// both stages share. Its regime is [`Regime::Stage2`](crate::arch::Regime::Stage2).
    #[must_use]
    #[inline]
    pub const fn shape(&self) -> &Geometry {
        &self.0
    }

    /// The bits that HCR_EL2 must have while a guest uses tables of this geometry. Without
    /// HCR_EL2.FWB, descriptors made for FEAT_S2FWB have other memory types.
    #[must_use]
    #[inline]
    pub const fn hcr(&self) -> u64 {
        if self.0.forced_write_back() {
            Self::HCR_VM | Self::HCR_FWB
        } else {
            Self::HCR_VM
        }
    }
}

impl From<Stage2Geometry> for Geometry {
    #[inline]
    fn from(geometry: Stage2Geometry) -> Self {
        geometry.0
    }
}
