//! CPUs that run beside each other, each in a thread of the host.

use granule_cli::Outcome;
use granule_cli::PageSize::{K4, K16, K64};
use granule_testing::text::assert_ends_with;

use crate::smp::calls::all_answered;
use crate::smp::conflicts::{all_met, blocks};
use crate::smp::machine::{ends, machine, ok};
use crate::smp::up::all_up;

const CPUS: u32 = 4;

#[test]
fn all_come_up() {
    for (size, gic, el) in [(K4, 3, 2), (K16, 2, 1), (K64, 3, 1)] {
        all_up(&machine(CPUS, "").gic(gic).el(el).page_size(size));
    }
}

#[test]
fn every_call_is_answered() {
    for (smp, gic, size) in [(2, 2, K16), (4, 3, K64)] {
        all_answered(
            &machine(smp, "granule.test=ipi granule.test=park")
                .gic(gic)
                .page_size(size),
        );
    }
}

#[test]
fn conflicts_are_dealt_with() {
    all_met(&blocks(CPUS, K4, 2, "granule.test=conflict"));
}

#[test]
fn lines_of_several_cpus_come_out_whole() {
    const LINES: usize = 40;
    let made = ok(&machine(CPUS, "granule.test=lines"));
    let printed = || {
        made.console
            .lines()
            .filter(|line| line.contains("granule: line"))
    };
    assert_eq!(printed().count(), CPUS as usize * LINES);
    for cpu in 0..CPUS {
        for line in 0..LINES {
            let whole = format!("granule: line {line} of CPU {cpu} {line:016x} ends");
            assert_eq!(
                printed().filter(|seen| **seen == whole).count(),
                1,
                "{whole}"
            );
        }
    }
}

/// In turns, two CPUs that wait for each other change over too often for a test.
#[test]
fn a_cpu_that_does_not_answer_is_named() {
    let made = ends(&machine(2, "granule.test=mute"), Outcome::Panic);
    let reason = made.boot.reason.as_deref().unwrap();
    assert_ends_with(reason, "CPU 1 did not answer CPU 0's call within 10 s");
}
