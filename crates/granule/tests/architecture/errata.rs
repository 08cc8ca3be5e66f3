//! Rows of the errata table: which CPUs have what, and from which revision to which.

use granule::arch::errata::{Errata, TABLE, Workaround};
use std::collections::BTreeSet;

/// MIDR_EL1 with the architecture field as every current CPU has it.
const fn midr(implementer: u64, part: u64, variant: u64, revision: u64) -> u64 {
    implementer << 24 | variant << 20 | 0xf << 16 | part << 4 | revision
}

const ARM: u64 = 0x41;
const CAVIUM: u64 = 0x43;
const FUJITSU: u64 = 0x46;
const NVIDIA: u64 = 0x4e;
const QUALCOMM: u64 = 0x51;
const MICROSOFT: u64 = 0x6d;

use Workaround::{
    BarrierBeforeMmuOff, BreakOnExecuteRemoval, NoBbm, NoFaultDisableClear, NoHardwareDirty,
    NoNonGlobalKernel, RepeatTlbi, RepeatTlbiAlone,
};

/// CPU (with variant and revision), workaround, whether it is needed.
const ROWS: &[(u64, Workaround, bool)] = &[
    // Cortex-A510 2441009: r0p0 to r1p1.
    (midr(ARM, 0xd46, 0, 0), RepeatTlbi, true),
    (midr(ARM, 0xd46, 1, 1), RepeatTlbi, true),
    (midr(ARM, 0xd46, 1, 2), RepeatTlbi, false),
    // Cortex-A55 2441007: all.
    (midr(ARM, 0xd05, 0, 0), RepeatTlbi, true),
    (midr(ARM, 0xd05, 2, 1), RepeatTlbi, true),
    // Falkor 1009: r0p0.
    (midr(QUALCOMM, 0xc00, 0, 0), RepeatTlbiAlone, true),
    (midr(QUALCOMM, 0xc00, 1, 0), RepeatTlbiAlone, false),
    // Kryo 4xx Gold: rcpe to rfpe.
    (midr(QUALCOMM, 0x804, 0xc, 0xd), RepeatTlbi, false),
    (midr(QUALCOMM, 0x804, 0xc, 0xe), RepeatTlbi, true),
    (midr(QUALCOMM, 0x804, 0xf, 0xe), RepeatTlbi, true),
    (midr(QUALCOMM, 0x804, 0xf, 0xf), RepeatTlbi, false),
    // CVE-2025-10263 (4118414 and its siblings): all revisions of each.
    (midr(ARM, 0xd0b, 0, 0), RepeatTlbi, true),
    (midr(ARM, 0xd0b, 4, 1), RepeatTlbi, true),
    (midr(ARM, 0xd0e, 1, 1), RepeatTlbi, true),
    (midr(ARM, 0xd0d, 1, 1), RepeatTlbi, true),
    (midr(ARM, 0xd41, 1, 1), RepeatTlbi, true),
    (midr(ARM, 0xd42, 0, 1), RepeatTlbi, true),
    (midr(ARM, 0xd4b, 0, 0), RepeatTlbi, true),
    (midr(ARM, 0xd47, 2, 0), RepeatTlbi, true),
    (midr(ARM, 0xd44, 1, 0), RepeatTlbi, true),
    (midr(ARM, 0xd4c, 0, 0), RepeatTlbi, true),
    (midr(ARM, 0xd48, 2, 0), RepeatTlbi, true),
    (midr(ARM, 0xd4e, 1, 1), RepeatTlbi, true),
    (midr(ARM, 0xd82, 0, 1), RepeatTlbi, true),
    (midr(ARM, 0xd85, 0, 1), RepeatTlbi, true),
    (midr(ARM, 0xd0c, 4, 1), RepeatTlbi, true),
    (midr(ARM, 0xd49, 0, 3), RepeatTlbi, true),
    (midr(ARM, 0xd40, 1, 2), RepeatTlbi, true),
    (midr(ARM, 0xd4f, 0, 1), RepeatTlbi, true),
    (midr(ARM, 0xd84, 0, 1), RepeatTlbi, true),
    (midr(ARM, 0xd83, 0, 1), RepeatTlbi, true),
    (midr(ARM, 0xd8c, 1, 1), RepeatTlbi, true),
    (midr(ARM, 0xd90, 1, 1), RepeatTlbi, true),
    (midr(NVIDIA, 0x010, 0, 0), RepeatTlbi, true),
    (midr(MICROSOFT, 0xd49, 0, 0), RepeatTlbi, true),
    // C1-Ultra and C1-Premium 3683289: before r1p1.
    (midr(ARM, 0xd8c, 0, 0), NoBbm, true),
    (midr(ARM, 0xd8c, 1, 0), NoBbm, true),
    (midr(ARM, 0xd8c, 1, 1), NoBbm, false),
    (midr(ARM, 0xd90, 1, 0), NoBbm, true),
    (midr(ARM, 0xd90, 1, 1), NoBbm, false),
    // Hardware dirty state: Cortex-A55 1024718 (all), Cortex-A510 2051678 (r0p0 to r0p2), Kryo
    // 4xx Silver (rdpe).
    (midr(ARM, 0xd05, 0, 0), NoHardwareDirty, true),
    (midr(ARM, 0xd05, 2, 1), NoHardwareDirty, true),
    (midr(ARM, 0xd46, 0, 0), NoHardwareDirty, true),
    (midr(ARM, 0xd46, 0, 2), NoHardwareDirty, true),
    (midr(ARM, 0xd46, 0, 3), NoHardwareDirty, false),
    (midr(QUALCOMM, 0x805, 0xd, 0xd), NoHardwareDirty, false),
    (midr(QUALCOMM, 0x805, 0xd, 0xe), NoHardwareDirty, true),
    (midr(QUALCOMM, 0x805, 0xd, 0xf), NoHardwareDirty, false),
    // Cortex-A715 2645198: r0p0 to r1p0.
    (midr(ARM, 0xd4d, 1, 0), BreakOnExecuteRemoval, true),
    (midr(ARM, 0xd4d, 1, 1), BreakOnExecuteRemoval, false),
    // Falkor E1041: all.
    (midr(QUALCOMM, 0xc00, 0, 0), BarrierBeforeMmuOff, true),
    (midr(QUALCOMM, 0xc00, 3, 2), BarrierBeforeMmuOff, true),
    // ThunderX 27456: T88 pass 1.x to 2.1, T81 pass 1.0.
    (midr(CAVIUM, 0x0a1, 0, 0), NoNonGlobalKernel, true),
    (midr(CAVIUM, 0x0a1, 1, 1), NoNonGlobalKernel, true),
    (midr(CAVIUM, 0x0a1, 1, 2), NoNonGlobalKernel, false),
    (midr(CAVIUM, 0x0a2, 0, 0), NoNonGlobalKernel, true),
    (midr(CAVIUM, 0x0a2, 0, 1), NoNonGlobalKernel, false),
    // A64FX 010001: v0r0 and v1r0.
    (midr(FUJITSU, 0x001, 0, 0), NoFaultDisableClear, true),
    (midr(FUJITSU, 0x001, 1, 0), NoFaultDisableClear, true),
    (midr(FUJITSU, 0x001, 2, 0), NoFaultDisableClear, false),
    // CPUs that none of these is about: Cortex-A53 and A72, and Arm's part numbers of another
    // implementer.
    (midr(ARM, 0xd03, 0, 4), RepeatTlbi, false),
    (midr(ARM, 0xd08, 0, 3), RepeatTlbi, false),
    (midr(ARM, 0xd03, 0, 4), NoHardwareDirty, false),
    (midr(QUALCOMM, 0xd0b, 0, 0), RepeatTlbi, false),
    (midr(ARM, 0xc00, 0, 0), BarrierBeforeMmuOff, false),
];

#[test]
fn rows() {
    for &(midr, workaround, needed) in ROWS {
        let errata = Errata::of_cpu(midr);
        let names: Vec<&str> = errata.iter().map(|erratum| erratum.name).collect();
        assert_eq!(
            errata.needs(workaround),
            needed,
            "{midr:#x}: {workaround:?} {names:?}"
        );
        // The union of machines keeps the answer.
        assert_eq!(Errata::NONE.union(errata), errata);
    }
    assert_eq!(Errata::of_cpu(midr(ARM, 0xd03, 0, 4)), Errata::NONE);
    assert_eq!(Errata::NONE.iter().count(), 0);
}

#[test]
fn names() {
    let names: BTreeSet<&str> = TABLE.iter().map(|erratum| erratum.name).collect();
    assert_eq!(names.len(), TABLE.len(), "names are unique");
    for erratum in TABLE {
        let mut errata = Errata::NONE;
        assert!(errata.force(erratum.name.as_bytes()));
        assert!(errata.needs(erratum.workaround));
        assert_eq!(errata.iter().count(), 1);
        assert!(errata.iter().all(|forced| forced.name == erratum.name));
        assert!(erratum.cpus.first <= erratum.cpus.last, "{}", erratum.name);
    }
    let mut errata = Errata::NONE;
    for unknown in ["", "cortex-a76", "CORTEX-A76-1286807", "falkor-1009,"] {
        assert!(!errata.force(unknown.as_bytes()), "{unknown:?}");
    }
    assert_eq!(errata, Errata::NONE);
}

/// Most let accesses of other CPUs outlive a TLBI; Falkor's lets the CPU's own DSB end early.
#[test]
fn tlbis_are_repeated_on_a_cpu_that_runs_alone_where_its_own_dsb_is_at_fault() {
    let repeats = |errata: Errata| (errata.repeats_tlbi(true), errata.repeats_tlbi(false));
    assert_eq!(repeats(Errata::NONE), (false, false));
    let a76 = Errata::of_cpu(midr(ARM, 0xd0b, 1, 0));
    let falkor = Errata::of_cpu(midr(QUALCOMM, 0xc00, 0, 0));
    assert_eq!(repeats(a76), (false, true));
    assert_eq!(repeats(falkor), (true, true));
    assert_eq!(repeats(a76.union(falkor)), (true, true));
    let a72 = Errata::of_cpu(midr(ARM, 0xd08, 0, 3));
    assert_eq!(repeats(a72), (false, false));
}
