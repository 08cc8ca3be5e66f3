//! The features that all online CPUs share: the system uses the minimum of each.

use granule::arch::errata::Errata;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{CpuFeatures, PageSize, Support};
use granule_boot::sizes::SizeSet;

/// The minimum over the CPUs, and the union of their errata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// The FEAT_BBM level, as in the ID registers.
    pub bbm_level: u32,
    /// FEAT_TLBIRANGE. A broadcast by range reaches every CPU, so all must have it.
    pub tlbi_range: bool,
    /// FEAT_TTL.
    pub level_hint: bool,
    /// FEAT_HAFDBS.
    pub hardware_dirty: u32,
    /// FEAT_E0PD: an access from EL0 to the kernel's half faults in the same time whatever is mapped there.
    pub e0pd: bool,
    /// Bits of ASID.
    pub asid_bits: u32,
    /// The page sizes.
    pub page_sizes: SizeSet,
    /// The page sizes with 52-bit descriptors: FEAT_LPA2, which is a feature of each.
    pub wide_sizes: SizeSet,
    /// Every erratum that some CPU has.
    pub errata: Errata,
}

impl Common {
    /// The boot CPU's features. `forced` are errata that the command line sets for all CPUs.
    pub fn of_boot_cpu(cpu: &CpuFeatures, forced: Errata) -> Self {
        let tlb = TlbCapabilities::of(cpu);
        Self {
            bbm_level: cpu.bbm_level(),
            tlbi_range: tlb.range,
            level_hint: tlb.level_hint,
            hardware_dirty: cpu.hardware_dirty(),
            e0pd: cpu.mmfr2 >> 60 != 0,
            asid_bits: cpu.asid_bits(),
            page_sizes: SizeSet::from(cpu),
            wide_sizes: PageSize::ALL
                .into_iter()
                .filter(|size| cpu.page_size(*size) == Support::With52Bits)
                .collect(),
            errata: forced.union(Errata::of_cpu(cpu.midr)),
        }
    }

    /// The minimum with one more CPU.
    #[must_use]
    pub fn and(self, cpu: &CpuFeatures) -> Self {
        let other = Self::of_boot_cpu(cpu, Errata::NONE);
        Self {
            bbm_level: self.bbm_level.min(other.bbm_level),
            tlbi_range: self.tlbi_range && other.tlbi_range,
            level_hint: self.level_hint && other.level_hint,
            hardware_dirty: self.hardware_dirty.min(other.hardware_dirty),
            e0pd: self.e0pd && other.e0pd,
            asid_bits: self.asid_bits.min(other.asid_bits),
            page_sizes: self.page_sizes.and(other.page_sizes),
            wide_sizes: self.wide_sizes.and(other.wide_sizes),
            errata: self.errata.union(other.errata),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PageSize::{K4, K16, K64};
    use granule::arch::CpuFeatures;
    use granule::arch::errata::Workaround;

    #[test]
    fn the_least_of_each_counts_and_every_erratum() {
        let able = CpuFeatures {
            midr: 0x000f_0510,
            mmfr0: 2 << 4 | 2 << 20 | 1 << 28,
            mmfr1: 2,
            mmfr2: 1 << 48 | 2 << 52 | 1 << 60,
            isar0: 2 << 56,
        };
        let all = Common::of_boot_cpu(&able, Errata::NONE);
        assert_eq!(all.and(&able), all);
        assert_eq!(all.bbm_level, 2);
        assert!(all.tlbi_range && all.level_hint && all.e0pd);
        assert_eq!(all.page_sizes, SizeSet::ALL);
        // Cortex-A76 r0p0: erratum 1286807 repeats TLBIs. 16K pages without 52 bits, none of 4K.
        let weak = CpuFeatures {
            midr: 0x410f_d0b0,
            mmfr0: 1 << 20 | 15 << 28,
            mmfr1: 1,
            isar0: 1 << 56,
            ..CpuFeatures::NONE
        };
        let weak_first = Common::of_boot_cpu(&weak, Errata::NONE).and(&able);
        for both in [all.and(&weak), weak_first] {
            assert_eq!((both.bbm_level, both.hardware_dirty), (0, 1));
            assert_eq!(both.asid_bits, 8);
            assert!(!both.tlbi_range && !both.level_hint && !both.e0pd);
            assert_eq!(both.page_sizes, SizeSet::NONE.with(K16).with(K64));
            assert!(!both.wide_sizes.has(K4) && !both.wide_sizes.has(K16));
            assert!(both.errata.needs(Workaround::RepeatTlbi));
        }
    }
}
