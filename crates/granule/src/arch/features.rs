//! The features of a CPU, decoded from its ID registers.
//!
//! A field value above the known ones means *more* than those, never "no". Kernels that test for
//! equality refuse 4K pages on CPUs that have them with 52 bits (ID_AA64MMFR0_EL1.TGran4 = 1).

use super::page_size::PageSize;

/// Whether a CPU has a page size, and in which format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Support {
    /// Not at all.
    No,
    /// With addresses of up to 48 bits (64K pages: see [`CpuFeatures::most_va_bits`]).
    Yes,
    /// With addresses of up to 52 bits (FEAT_LPA2); 4K and 16K pages only.
    With52Bits,
}

/// The ID registers of one CPU that decide how it translates, and the features that they state.
///
/// Write `..CpuFeatures::NONE` after the registers that matter, so that a further one breaks
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFeatures {
    /// MIDR_EL1: which CPU this is.
    pub midr: u64,
    /// ID_AA64MMFR0_EL1.
    pub mmfr0: u64,
    /// ID_AA64MMFR1_EL1.
    pub mmfr1: u64,
    /// ID_AA64MMFR2_EL1.
    pub mmfr2: u64,
    /// ID_AA64ISAR0_EL1.
    pub isar0: u64,
}

/// A four-bit unsigned ID field.
#[inline]
const fn field(register: u64, low: u32) -> u32 {
    ((register >> low) & 0b1111) as u32
}

impl CpuFeatures {
    /// All registers zero.
    pub const NONE: Self = Self {
        midr: 0,
        mmfr0: 0,
        mmfr1: 0,
        mmfr2: 0,
        isar0: 0,
    };

    /// Whether the CPU has `size` at stage 1.
    ///
    /// TGran4 and TGran64 are signed (0b1111 is "no"), TGran16 is unsigned (0 is "no").
    #[must_use]
    #[inline]
    pub const fn page_size(&self, size: PageSize) -> Support {
        let mmfr0 = self.mmfr0;
        match size {
            PageSize::K4 => match field(mmfr0, 28) {
                8..=15 => Support::No,
                0 => Support::Yes,
                _ => Support::With52Bits,
            },
            PageSize::K16 => match field(mmfr0, 20) {
                0 => Support::No,
                1 => Support::Yes,
                _ => Support::With52Bits,
            },
            PageSize::K64 => match field(mmfr0, 24) {
                8..=15 => Support::No,
                _ => Support::Yes,
            },
        }
    }

    /// Whether the CPU has `size` at stage 2. Zero in a field of stage 2 (TGran4_2, TGran16_2,
    /// TGran64_2) means the same as at stage 1.
    #[must_use]
    #[inline]
    pub const fn stage2_page_size(&self, size: PageSize) -> Support {
        let low = match size {
            PageSize::K4 => 40,
            PageSize::K16 => 32,
            PageSize::K64 => 36,
        };
        match (field(self.mmfr0, low), size) {
            (0, _) => self.page_size(size),
            (1, _) => Support::No,
            (2, _) | (_, PageSize::K64) => Support::Yes,
            _ => Support::With52Bits,
        }
    }

    /// FEAT_S2FWB: stage 2 can decide the memory type alone.
    #[inline]
    pub(super) const fn stage2_forced_write_back(&self) -> bool {
        field(self.mmfr2, 40) >= 1
    }

    /// FEAT_XNX: stage 2 allows execution for EL1 and EL0 separately.
    #[inline]
    pub(super) const fn stage2_execute_by_privilege(&self) -> bool {
        field(self.mmfr1, 28) >= 1
    }

    /// The bits of VMID: 8 or 16.
    #[must_use]
    #[inline]
    pub const fn vmid_bits(&self) -> u32 {
        if field(self.mmfr1, 4) >= 2 { 16 } else { 8 }
    }

    /// FEAT_TTST: address spaces of fewer than 25 bits, and walks of stage 2 with 4K pages that
    /// start at level 3.
    #[inline]
    pub(super) const fn small_tables(&self) -> bool {
        field(self.mmfr2, 28) >= 1
    }

    /// The CPU's bits of physical address: 32, 36, 40, 42, 44, 48, 52 or 56. A reserved value
    /// counts as the largest known one.
    #[must_use]
    #[inline]
    pub const fn pa_bits(&self) -> u32 {
        match field(self.mmfr0, 0) {
            0 => 32,
            1 => 36,
            2 => 40,
            3 => 42,
            4 => 44,
            5 => 48,
            6 => 52,
            _ => 56,
        }
    }

    /// The most bits of virtual address with `size` pages: 52 with FEAT_LPA2 (4K, 16K) or
    /// FEAT_LVA (64K), else 48.
    #[must_use]
    #[inline]
    pub const fn most_va_bits(&self, size: PageSize) -> u32 {
        let more = match size {
            PageSize::K4 | PageSize::K16 => {
                matches!(self.page_size(size), Support::With52Bits)
            }
            PageSize::K64 => field(self.mmfr2, 16) >= 1,
        };
        if more { 52 } else { 48 }
    }

    /// The fewest bits of virtual address: 25, or with FEAT_TTST 16 (4K, 16K) and 17 (64K).
    #[must_use]
    #[inline]
    pub const fn least_va_bits(&self, size: PageSize) -> u32 {
        match (self.small_tables(), size) {
            (false, _) => 25,
            (true, PageSize::K64) => 17,
            (true, _) => 16,
        }
    }

    /// FEAT_BBM's level in the ID register: 0 to 3. A value above 3 includes level 3 and counts as
    /// 3.
    #[must_use]
    #[inline]
    pub const fn bbm_level(&self) -> u32 {
        let level = field(self.mmfr2, 52);
        if level > 3 { 3 } else { level }
    }

    /// FEAT_TLBIRANGE: TLBIs by range.
    #[inline]
    pub(super) const fn tlbi_range(&self) -> bool {
        field(self.isar0, 56) >= 2
    }

    /// FEAT_TTL: a TLBI by address takes a hint of the leaf's level.
    #[inline]
    pub(super) const fn tlbi_level_hint(&self) -> bool {
        field(self.mmfr2, 48) >= 1
    }

    /// FEAT_VHE: EL2 can run an operating system's kernel.
    #[must_use]
    #[inline]
    pub const fn vhe(&self) -> bool {
        field(self.mmfr1, 8) >= 1
    }

    /// FEAT_HAFDBS: 0 is none; 1 means that hardware sets the access flag; 2 adds the dirty state;
    /// 3 adds the access flag of tables.
    #[must_use]
    #[inline]
    pub const fn hardware_dirty(&self) -> u32 {
        field(self.mmfr1, 0)
    }

    /// The bits of ASID: 8 or 16.
    #[must_use]
    #[inline]
    pub const fn asid_bits(&self) -> u32 {
        if field(self.mmfr0, 4) >= 2 { 16 } else { 8 }
    }
}
