//! Every VA size that each page size has, and the levels and formats that come of it.

use granule_cli::{PageSize, Request, Rodata};

use crate::kernel::machine::{GIB, RAM, SIZES, ok, sized};
use crate::kernel::reference::{Reference, levels, range};

const VA_BITS: [u8; 6] = [36, 39, 42, 47, 48, 52];

#[test]
fn all_va_sizes_on_a_cpu_with_52_bits() {
    for size in SIZES {
        for bits in VA_BITS {
            let kernel = ok(&Request {
                cpu: "max".into(),
                va_bits: Some(bits),
                rodata: Some(Rodata::Off),
                ..sized(size)
            });
            let expected = levels(size, bits.into());
            assert_eq!(kernel.number("va_bits"), u64::from(bits), "{size:?}");
            assert_eq!(
                kernel.number("levels"),
                u64::from(expected),
                "{size:?} {bits}"
            );
            let start = 4 - i64::from(expected);
            assert_eq!(kernel.integer("start_level"), start, "{size:?} {bits}");
            // QEMU's max has 52 bits of physical address and no memory up there; with 4K and 16K
            // pages the wider format comes with LPA2 alone.
            let lpa2 = kernel.flag("lpa2");
            assert!(!lpa2 || size != PageSize::K64);
            assert!(lpa2 || size == PageSize::K64 || bits < 52);
            let pa_bits = if lpa2 || size == PageSize::K64 {
                52
            } else {
                48
            };
            assert_eq!(kernel.number("pa_bits"), pa_bits, "{size:?} {bits}");
            let start = 4 - expected as i32;
            let wide = lpa2 || size == PageSize::K64;
            let map = Reference::new(size, wide, false, &[range(RAM, RAM + 4 * GIB)]);
            assert_eq!(kernel.leaves(), map.leaves(), "{size:?} {bits}");
            assert_eq!(
                kernel.number("linear_map.tables"),
                map.tables(start),
                "{size:?} {bits}"
            );
        }
    }
}

#[test]
fn va_sizes_on_a_cpu_with_48_bits() {
    for (size, bits) in [
        (PageSize::K4, 36),
        (PageSize::K4, 39),
        (PageSize::K4, 47),
        (PageSize::K16, 36),
        (PageSize::K16, 42),
        (PageSize::K64, 36),
        (PageSize::K64, 42),
    ] {
        let kernel = ok(&Request {
            va_bits: Some(bits),
            ..sized(size)
        });
        let expected = levels(size, bits.into());
        assert_eq!(kernel.number("levels"), u64::from(expected));
        assert_eq!(kernel.number("pa_bits"), 48);
        assert!(!kernel.flag("lpa2"));
        let map = Reference::new(size, false, true, &[range(RAM, RAM + 4 * GIB)]);
        assert_eq!(kernel.leaves(), map.leaves());
        let tables = map.tables(4 - expected as i32);
        assert_eq!(
            kernel.number("linear_map.tables"),
            tables,
            "{size:?} {bits}"
        );
    }
}

/// ID_AA64MMFR0_EL1.PARange of QEMU's models: 40, 44, 40 and 48 bits.
#[test]
fn physical_bits_are_the_cpus() {
    for (cpu, bits) in [
        ("cortex-a53", 40),
        ("cortex-a72", 44),
        ("cortex-a76", 40),
        ("neoverse-n1", 48),
    ] {
        let kernel = ok(&Request {
            cpu: cpu.into(),
            ..sized(PageSize::K64)
        });
        assert_eq!(kernel.number("pa_bits"), bits, "{cpu}");
    }
}
