//! A CPU that cannot live with the boot CPU's tables is parked, and the boot CPU prints the reason;
//! one that merely can do less lowers what the system relies on.

use granule_cli::Outcome;
use granule_cli::PageSize::{K4, K16, K64};
use granule_testing::text::{assert_contains, assert_starts_with};

use crate::hooked::shifted;
use crate::smp::machine::{ends, machine, ok};

#[test]
fn each_mismatch_parks_its_cpu_with_a_reason() {
    for (size, va_bits, fields, why) in [
        (K4, 48, "tgran4=15", "no 4K pages"),
        (K16, 48, "tgran16=0", "no 16K pages"),
        (K64, 48, "tgran64=15", "no 64K pages"),
        (K4, 52, "tgran4=0", "FEAT_LPA2"),
        (
            K64,
            52,
            "varange=0",
            "48 bits of virtual address, the tables need 52",
        ),
        (K16, 47, "parange=0", "32 bits of physical address"),
        (K4, 48, "asidbits=0", "8-bit ASIDs"),
    ] {
        let made = ok(&machine(3, &format!("arm64.fake_cpu=1:{fields}"))
            .page_size(size)
            .va_bits(va_bits));
        let line = made.mismatch();
        assert_starts_with(line, "CPU 1 (MPIDR 0x1) is parked: it has ");
        assert_contains(line, why);
        assert_eq!((made.number("cpus"), made.number("cpus_expected")), (2, 3));
        let numbers: Vec<_> = made.facts().iter().map(|cpu| &cpu["number"]).collect();
        assert_eq!(numbers, [0, 2], "a parked CPU keeps its number");
    }
}

#[test]
fn the_system_relies_on_what_all_can_do() {
    let made = ok(&machine(4, "arm64.fake_cpu=2:bbm=1 arm64.fake_cpu=3:tlb=1"));
    assert_eq!(made.mismatches(), [""; 0]);
    assert_eq!(
        (made.number("bbm_level.id"), made.number("bbm_level.system")),
        (2, 1)
    );
    assert!(!made.flag("tlbi_range") && made.flag("tlbi_level_hint"));
    assert_eq!(made.facts()[2]["bbm_level"], 1);

    let made = ok(&machine(2, "arm64.fake_cpu=1:ttl=0,midr=0x410fd0b0"));
    assert!(made.flag("tlbi_range") && !made.flag("tlbi_level_hint"));
    // Cortex-A76 r0p0.
    let errata = made.texts("errata");
    assert!(errata.contains(&"cortex-a76-1286807"), "{errata:?}");
    assert_eq!(made.facts()[1]["midr"], "0x410fd0b0");
}

/// Missing features of a CPU that stays away do not count.
#[test]
fn a_parked_cpu_lowers_nothing() {
    let made = ok(&machine(2, "arm64.fake_cpu=1:tgran4=15,bbm=0,tlb=0,ttl=0"));
    assert_eq!(made.mismatches().len(), 1);
    made.has("bbm_level.system", 2);
    assert!(made.flag("tlbi_range") && made.flag("tlbi_level_hint"));
}

#[test]
fn an_exception_before_its_mmu_is_on_is_reported() {
    for el in [1, 2] {
        let made = ok(&machine(3, "arm64.fake_cpu=1:fault=1").el(el));
        let line = made.mismatch();
        assert_starts_with(
            line,
            "CPU 1 (MPIDR 0x1) is parked: it took an exception before its MMU was on, ESR 0x2000000, at 0x40",
        );
        made.has("cpus", 2);
    }
}

#[test]
fn a_cpu_that_never_comes_is_reported_and_the_next_one_started() {
    let request = machine(3, "arm64.fake_cpu=1:absent=1");
    // The seconds are the fewest instructions.
    let made = ok(&shifted(&request, 7));
    assert_eq!(
        made.mismatches(),
        ["CPU 1 (MPIDR 0x1) did not come up: started 5 s ago, it has not reached the image"]
    );
    made.has("cpus", 2);
}

#[test]
fn words_that_are_not_understood_are_reported_once() {
    let made = ok(&machine(2, "arm64.fake_cpu=1:colour=2"));
    made.prints(
        "arm64.fake_cpu=1:colour=2: expected N:FIELD=VALUE[,...] with N from 1 and ID fields such \
         as parange, tgran4, bbm; ignored",
    );
    made.has("cpus", 2);
}

/// One line for all that is not possible on a machine: the boot goes on with one CPU.
#[test]
fn more_than_a_gicv2_serves_is_bad_usage() {
    let made = ends(&machine(9, "").gic(2), Outcome::Refused);
    assert!(made.boot.bad_usage);
    assert!(made.boot.last_line().contains("at most 8 CPUs"));
}
