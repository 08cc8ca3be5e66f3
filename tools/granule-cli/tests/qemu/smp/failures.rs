//! Failures on another CPU are reported as well as on the first.

use granule_cli::Outcome;
use granule_testing::text::assert_ends_with;

use crate::smp::machine::{ends, machine};

#[test]
fn a_panic_on_another_cpu_ends_the_machine() {
    for smp in [2, 4] {
        let made = ends(
            &machine(smp, "granule.test=secondary-panic"),
            Outcome::Panic,
        );
        let reason = made.boot.reason.as_deref().unwrap();
        assert_ends_with(reason, "granule.test asked CPU 1 for this");
        assert!(made.console.lines().any(|line| line == "on CPU 1"));
        // Through its own stack, which is not in the image.
        let (_, backtrace) = made.console.split_once("backtrace").unwrap();
        assert!(
            backtrace
                .lines()
                .filter(|line| line.starts_with("  0x"))
                .count()
                >= 2
        );
    }
}

#[test]
fn a_stack_overflow_of_another_cpu_is_noticed() {
    let made = ends(
        &machine(2, "granule.test=secondary-overflow"),
        Outcome::Panic,
    );
    let reason = made.boot.reason.as_deref().unwrap();
    assert!(reason.starts_with("kernel stack overflow: "), "{reason}");
    assert!(made.console.lines().any(|line| line == "on CPU 1"));
}
