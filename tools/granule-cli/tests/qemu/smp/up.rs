//! Every CPU of a machine comes up, whatever the interrupt controller, the exception level, the page
//! size and the kind of CPU.

use granule_cli::PageSize::{K4, K16, K64};
use granule_cli::{LinearMap, Request};

use crate::smp::machine::{machine, ok};

const NO_WORDS: &str = "";

/// Checks that all CPUs are up, that no reason is recorded against any, and that the linear map is
/// that of one CPU.
pub(crate) fn all_up(request: &Request) {
    let made = ok(request);
    made.has("cpus", request.smp);
    made.has("cpus_expected", request.smp);
    assert_eq!(made.mismatches(), [""; 0]);
    let one = made.facts()[0]["midr"].clone();
    assert!(made.facts().iter().all(|cpu| cpu["midr"] == one));
    made.has("bbm_level.system", made.number("bbm_level.id"));
    // VHE or not is the CPU's; entered at EL1 there is none.
    made.has("entry_el", request.el);
    assert_eq!(made.flag("vhe"), made.number("run_el") == 2);
}

#[test]
fn one_two_four_and_eight_cpus_on_either_controller_at_either_level() {
    for (smp, gic, el, size) in [
        (1, 2, 2, K4),
        (1, 3, 1, K64),
        (2, 2, 1, K16),
        (2, 3, 2, K64),
        (4, 2, 2, K64),
        (4, 3, 1, K4),
        (8, 2, 1, K4),
        (8, 3, 2, K16),
    ] {
        all_up(&machine(smp, NO_WORDS).gic(gic).el(el).page_size(size));
    }
}

#[test]
fn every_kind_of_cpu() {
    // A53 and A72 have neither VHE nor 16K pages, A76 and N1 have both, `max` has 52 bits.
    for (cpu, el, gic, size, va_bits) in [
        ("cortex-a53", 2, 2, K64, 42),
        ("cortex-a53", 1, 3, K4, 39),
        ("cortex-a72", 2, 3, K4, 48),
        ("cortex-a76", 2, 3, K16, 47),
        ("neoverse-n1", 1, 2, K16, 36),
        ("max", 2, 3, K4, 52),
        ("max", 1, 3, K64, 52),
    ] {
        all_up(
            &machine(3, NO_WORDS)
                .cpu(cpu)
                .el(el)
                .gic(gic)
                .page_size(size)
                .va_bits(va_bits),
        );
    }
}

/// QEMU puts 16 CPUs of a GICv3 into a cluster: the last ones differ in Aff1.
#[test]
fn more_cpus_than_one_cluster_has() {
    let made = ok(&machine(18, NO_WORDS));
    made.has("cpus", 18);
    assert_eq!(made.facts()[17]["mpidr"], "0x101");
}

/// Sets of CPUs have more than one word, and an interrupt goes to five clusters.
#[test]
fn more_cpus_than_bits_in_a_word() {
    let made = ok(&machine(66, NO_WORDS).page_size(K4));
    made.has("cpus", 66);
    assert_eq!(made.facts()[65]["mpidr"], "0x401");
}

/// The boot goes on with the CPUs that memory had room for.
#[test]
fn more_cpus_than_memory_has_room_for() {
    let made = ok(&machine(66, NO_WORDS).memory(10 << 20).page_size(K4));
    let (cpus, expected) = (made.number("cpus"), made.number("cpus_expected"));
    assert!(
        (2..66).contains(&cpus) && expected == 66,
        "{cpus} of {expected}"
    );
    let line = made.mismatch();
    let start = format!(
        "from CPU {cpus} on none is started, {} in all: there is no memory for its stacks and data: ",
        expected - cpus
    );
    assert!(line.starts_with(&start), "{line}");
}

#[test]
fn no_more_cpus_than_requested() {
    for (words, cpus, line) in [
        (
            "maxcpus=2",
            2,
            "from CPU 2 on none is started, 2 in all: maxcpus= allows 2",
        ),
        (
            "maxcpus=0",
            1,
            "no other CPU is started: maxcpus= allows 1, the device tree names 3 more",
        ),
    ] {
        let made = ok(&machine(4, words));
        assert_eq!(
            (made.number("cpus"), made.number("cpus_expected")),
            (cpus, 4)
        );
        assert_eq!(made.mismatches(), [line]);
    }
}

#[test]
fn other_cpus_change_nothing_of_what_is_counted() {
    for strategy in [LinearMap::Direct, LinearMap::Base] {
        let counts = |smp| {
            let made = ok(&machine(smp, NO_WORDS).linear_map(strategy));
            let keys = [
                "tables",
                "descriptor_stores",
                "tlbi",
                "dsb",
                "isb",
                "mapped_bytes",
            ];
            keys.map(|key| made.number(&format!("linear_map.{key}")))
        };
        assert_eq!(counts(1), counts(4), "{strategy:?}");
    }
}

/// Loaded high, the identity map has more bits than the RAM below it takes.
#[test]
fn an_image_above_4_gib() {
    all_up(&Request {
        memory: 8 << 30,
        load_address: Some(0x1_4000_0000),
        page_size: Some(K64),
        ..machine(4, "granule.test=park")
    });
}
