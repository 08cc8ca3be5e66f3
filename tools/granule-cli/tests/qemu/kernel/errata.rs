//! Errata: the CPU's own, forced ones, and what they change where TLBIs are issued.

use granule_cli::LinearMap;
use granule_cli::PageSize::{self, K4, K16, K64};

use crate::booted::Booted;
use crate::kernel::machine::{ok, sized};

/// On QEMU's max, whose MIDR is of no erratum's CPU.
fn forced(size: PageSize, strategy: LinearMap, names: &str) -> Booted {
    ok(&sized(size)
        .cpu("max")
        .linear_map(strategy)
        .append(format!("arm64.errata={names}")))
}

#[test]
fn repeated_tlbis_are_twice_as_many() {
    for size in PageSize::ALL {
        let plain = forced(size, LinearMap::Base, "");
        let repeated = forced(size, LinearMap::Base, "cortex-a76-1286807");
        assert_eq!(plain.texts("errata"), [""; 0]);
        assert_eq!(repeated.texts("errata"), ["cortex-a76-1286807"]);
        let number = |kernel: &Booted, key: &str| kernel.number(&format!("linear_map.{key}"));
        let tlbi = number(&plain, "tlbi");
        assert_eq!(number(&repeated, "tlbi"), 2 * tlbi, "{size:?}");
        // Each is followed by a DSB of its own.
        assert_eq!(
            number(&repeated, "dsb"),
            number(&plain, "dsb") + tlbi,
            "{size:?}"
        );
        for same in ["isb", "descriptor_stores", "tables"] {
            assert_eq!(
                number(&repeated, same),
                number(&plain, same),
                "{size:?} {same}"
            );
        }
        assert_eq!(repeated.leaves(), plain.leaves());
    }
}

#[test]
fn a_map_without_tlbis_repeats_none() {
    let plain = forced(K16, LinearMap::Direct, "");
    let repeated = forced(K16, LinearMap::Direct, "falkor-1009");
    assert_eq!(repeated.counts(), plain.counts());
    repeated.has("linear_map.tlbi", 0);
}

#[test]
fn several_are_reported_in_the_tables_order_and_unknown_ones_ignored() {
    let names = "falkor-1009,cortex-a99-1,,cortex-a76-1286807";
    let kernel = forced(K4, LinearMap::Direct, names);
    assert_eq!(
        kernel.texts("errata"),
        ["cortex-a76-1286807", "falkor-1009"]
    );
    kernel.prints("arm64.errata=cortex-a99-1: expected the name of an erratum");
    kernel.does_not_print("arm64.errata=: ");
}

/// By MIDR: QEMU's A64FX is r1p0 (010001 is up to r1p0), its A76 r4p1 (1286807 is up to r3p0, 4193800
/// is of all).
#[test]
fn a_cpus_own_errata_are_found() {
    for (cpu, size, errata) in [
        ("a64fx", K64, &["a64fx-010001"][..]),
        ("cortex-a76", K4, &["cortex-a76-4193800"]),
        ("neoverse-n1", K16, &["neoverse-n1-4193800"]),
        ("cortex-a72", K4, &[]),
        ("max", K4, &[]),
    ] {
        let kernel = ok(&sized(size).cpu(cpu));
        assert_eq!(kernel.texts("errata"), errata, "{cpu}");
    }
}
