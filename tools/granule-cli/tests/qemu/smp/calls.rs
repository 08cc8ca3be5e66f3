//! Calls between CPUs, parking and printing, tested by the kernel itself, which counts; here the
//! counts are worked out again.

use granule_cli::PageSize::{K4, K16, K64};
use granule_cli::Request;

use crate::hooked::shifted;
use crate::smp::machine::{machine, ok};

/// The kernel's numbers: see `smp/selftest.rs` there.
const ROUNDS: u64 = 800;
const CROSS_ROUNDS: u64 = 400;
const INTERRUPTIONS: u64 = 20;
const PARKINGS: u64 = 10;

/// The request makes the kernel test calls and parking.
pub(crate) fn all_answered(request: &Request) {
    let made = ok(request);
    let cpus = u64::from(request.smp);
    let others = cpus - 1;
    let tested = |key: &str| made.number(&format!("test.{key}"));
    assert_eq!(tested("ipi.calls"), ROUNDS / cpus * others, "{request:?}");
    let rounds = CROSS_ROUNDS / (cpus * cpus);
    assert_eq!(tested("ipi.cross_calls"), rounds * cpus * others);
    assert_eq!(tested("ipi.interruptions"), INTERRUPTIONS * others);
    assert_eq!(tested("park.parkings"), PARKINGS * others);
    assert_eq!(tested("park.changes"), PARKINGS);
}

#[test]
fn every_call_is_answered_once_and_parked_cpus_see_what_changed() {
    for (smp, gic, el, size, cpu, shift) in [
        (2, 2, 1, K64, "cortex-a53", 3),
        (2, 3, 2, K16, "cortex-a76", 7),
        (4, 2, 2, K4, "cortex-a72", 0),
        (4, 3, 1, K16, "neoverse-n1", 7),
        (4, 3, 2, K64, "max", 3),
        (8, 2, 2, K16, "max", 0),
        (8, 3, 2, K4, "max", 7),
    ] {
        let request = machine(smp, "granule.test=ipi granule.test=park")
            .gic(gic)
            .el(el)
            .page_size(size)
            .cpu(cpu);
        all_answered(&shifted(&request, shift));
    }
}

#[test]
fn one_cpu_calls_and_parks_nobody() {
    let made = ok(&machine(
        1,
        "granule.test=ipi granule.test=park granule.test=lines",
    ));
    for key in ["ipi.calls", "ipi.cross_calls", "park.parkings"] {
        made.has(&format!("test.{key}"), 0);
    }
    made.has("test.park.changes", PARKINGS);
}

/// A machine of which some CPUs stay away works with the others.
#[test]
fn calls_leave_out_who_is_parked_for_good() {
    let words = "arm64.fake_cpu=2:tgran4=15 granule.test=ipi granule.test=park";
    let made = ok(&machine(4, words));
    made.has("test.ipi.calls", ROUNDS / 3 * 2);
    made.has("test.park.parkings", PARKINGS * 2);
}
