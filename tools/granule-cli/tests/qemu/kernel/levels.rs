//! Every VA size that each page size has, and the levels and formats that come of it.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::Rodata;

use crate::kernel::machine::{GIB, RAM, ok, sized};
use crate::kernel::reference::{Reference, levels, range};

const VA_BITS: [u8; 6] = [36, 39, 42, 47, 48, 52];

#[test]
fn all_va_sizes_on_a_cpu_with_52_bits() {
    for size in PageSize::ALL {
        for bits in VA_BITS {
            let kernel = ok(&sized(size).cpu("max").va_bits(bits).rodata(Rodata::Off));
            let expected = levels(size, bits.into());
            kernel.has("va_bits", bits);
            kernel.has("levels", expected);
            let start = 4 - i64::from(expected);
            kernel.has("start_level", start);
            // QEMU's max has 52 bits of physical address and no memory up there; with 4K and 16K
            // pages the wider format comes with LPA2 alone.
            let lpa2 = kernel.flag("lpa2");
            assert!(!lpa2 || size != K64);
            assert!(lpa2 || size == K64 || bits < 52);
            let pa_bits = if lpa2 || size == K64 { 52 } else { 48 };
            kernel.has("pa_bits", pa_bits);
            let start = 4 - expected as i32;
            let wide = lpa2 || size == K64;
            let map = Reference::new(size, wide, false, &[range(RAM, RAM + 4 * GIB)]);
            assert_eq!(kernel.leaves(), map.leaves(), "{size:?} {bits}");
            kernel.has("linear_map.tables", map.tables(start));
        }
    }
}

#[test]
fn va_sizes_on_a_cpu_with_48_bits() {
    for (size, bits) in [
        (K4, 36),
        (K4, 39),
        (K4, 47),
        (K16, 36),
        (K16, 42),
        (K64, 36),
        (K64, 42),
    ] {
        let kernel = ok(&sized(size).va_bits(bits));
        let expected = levels(size, bits.into());
        kernel.has("levels", expected);
        kernel.has("pa_bits", 48);
        assert!(!kernel.flag("lpa2"));
        let map = Reference::new(size, false, true, &[range(RAM, RAM + 4 * GIB)]);
        assert_eq!(kernel.leaves(), map.leaves());
        let tables = map.tables(4 - expected as i32);
        kernel.has("linear_map.tables", tables);
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
        let kernel = ok(&sized(K64).cpu(cpu));
        kernel.has("pa_bits", bits);
    }
}
