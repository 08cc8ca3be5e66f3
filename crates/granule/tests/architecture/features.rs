//! ID register fields, value by value.

use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{CpuFeatures, PageSize, Support};
use granule_testing::shape::{Cpu, LARGE, PLAIN};

fn mmfr0(value: u64) -> CpuFeatures {
    CpuFeatures {
        mmfr0: value,
        ..CpuFeatures::NONE
    }
}

fn mmfr1(value: u64) -> CpuFeatures {
    CpuFeatures {
        mmfr1: value,
        ..CpuFeatures::NONE
    }
}

fn mmfr2(value: u64) -> CpuFeatures {
    CpuFeatures {
        mmfr2: value,
        ..CpuFeatures::NONE
    }
}

#[test]
fn physical_address_range() {
    for (field, bits) in [32, 36, 40, 42, 44, 48, 52, 56].into_iter().enumerate() {
        assert_eq!(mmfr0(field as u64).pa_bits(), bits, "PARange {field}");
        // The other fields do not matter.
        assert_eq!(mmfr0(field as u64 | !0xf).pa_bits(), bits);
    }
}

#[test]
fn page_sizes() {
    use Support::{No, With52Bits, Yes};
    // Field, value, meaning. TGran4 (31:28) and TGran64 (27:24) are signed, TGran16 (23:20)
    // is not; a value above those known still means support.
    let rows = [
        (PageSize::K4, 28, 0b0000, Yes),
        (PageSize::K4, 28, 0b0001, With52Bits),
        (PageSize::K4, 28, 0b0010, With52Bits),
        (PageSize::K4, 28, 0b0111, With52Bits),
        (PageSize::K4, 28, 0b1000, No),
        (PageSize::K4, 28, 0b1111, No),
        (PageSize::K64, 24, 0b0000, Yes),
        (PageSize::K64, 24, 0b0001, Yes),
        (PageSize::K64, 24, 0b1111, No),
        (PageSize::K16, 20, 0b0000, No),
        (PageSize::K16, 20, 0b0001, Yes),
        (PageSize::K16, 20, 0b0010, With52Bits),
        (PageSize::K16, 20, 0b0011, With52Bits),
        (PageSize::K16, 20, 0b1111, With52Bits),
    ];
    for (size, low, value, support) in rows {
        let alone = mmfr0(value << low);
        assert_eq!(alone.page_size(size), support, "{size} {value:#06b}");
        let others = mmfr0(value << low | !(0xf << low));
        assert_eq!(others.page_size(size), support, "{size} {value:#06b}");
    }
    // The fields of QEMU's cpu "max": TGran4 = 1, TGran16 = 2, TGran64 = 0, PARange = 6. Kernels
    // that compare a field with plain support refuse 4K and 16K pages there.
    let max = LARGE.features();
    assert_eq!(max.page_size(PageSize::K4), With52Bits);
    assert_eq!(max.page_size(PageSize::K16), With52Bits);
    assert_eq!(max.page_size(PageSize::K64), Yes);
    assert_eq!(max.pa_bits(), 52);
    // Cortex-A72: 4K and 64K only, 44 bits.
    let a72 = Cpu {
        parange: 4,
        tgran16: 0,
        ..PLAIN
    }
    .features();
    assert_eq!(a72.page_size(PageSize::K16), No);
    assert_eq!(a72.page_size(PageSize::K4), Yes);
    assert_eq!(a72.pa_bits(), 44);
    // Apple's cores: no 64K.
    let apple = Cpu {
        tgran64: 0b1111,
        ..PLAIN
    }
    .features();
    assert_eq!(apple.page_size(PageSize::K64), No);
    assert_eq!(apple.page_size(PageSize::K16), Yes);
}

#[test]
fn address_bits() {
    // VARange, ID_AA64MMFR2_EL1[19:16], is 64K's alone.
    for (value, most) in [(0, 48), (1, 52), (2, 52)] {
        let cpu = mmfr2(value << 16);
        assert_eq!(cpu.most_va_bits(PageSize::K64), most);
        assert_eq!(cpu.most_va_bits(PageSize::K4), 48);
        assert_eq!(cpu.most_va_bits(PageSize::K16), 48);
    }
    // ST, [31:28].
    for (value, small, large) in [(0, 25, 25), (1, 16, 17), (2, 16, 17)] {
        let cpu = mmfr2(value << 28);
        assert_eq!(cpu.least_va_bits(PageSize::K4), small);
        assert_eq!(cpu.least_va_bits(PageSize::K16), small);
        assert_eq!(cpu.least_va_bits(PageSize::K64), large);
    }
}

#[test]
fn break_before_make() {
    // BBM, ID_AA64MMFR2_EL1[55:52].
    for (value, level) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (15, 3)] {
        assert_eq!(mmfr2(value << 52).bbm_level(), level);
        assert_eq!(mmfr2(value << 52 | !(0xf << 52)).bbm_level(), level);
    }
}

#[test]
fn invalidation() {
    // TLB, ID_AA64ISAR0_EL1[59:56].
    for (value, expected) in [(0, false), (1, false), (2, true), (3, true)] {
        let cpu = CpuFeatures {
            isar0: value << 56,
            ..CpuFeatures::NONE
        };
        assert_eq!(TlbCapabilities::of(&cpu).range, expected);
    }
    // TTL, ID_AA64MMFR2_EL1[51:48].
    for (value, expected) in [(0, false), (1, true)] {
        assert_eq!(
            TlbCapabilities::of(&mmfr2(value << 48)).level_hint,
            expected
        );
    }
}

#[test]
fn the_rest() {
    // VH, ID_AA64MMFR1_EL1[11:8]; HAFDBS, [3:0]; ASIDBits, ID_AA64MMFR0_EL1[7:4].
    assert!(!mmfr1(!(0xf << 8)).vhe());
    assert!(mmfr1(1 << 8).vhe());
    for value in 0..=4 {
        assert_eq!(mmfr1(value).hardware_dirty(), value as u32);
        assert_eq!(mmfr1(value | !0xf).hardware_dirty(), value as u32);
    }
    assert_eq!(mmfr0(0).asid_bits(), 8);
    assert_eq!(mmfr0(0b0010 << 4).asid_bits(), 16);
}
