//! Leaving as it should be breaks no rule and touches nothing else; what goes wrong without
//! breaking a rule is found by what is accessed, or by the bytes.

use super::leaving::Where::*;
use super::leaving::{Change, Leaving, Left, Plan};
use granule::arch::{Page, Page4K, Page16K, Page64K};
use std::collections::BTreeSet;

fn left<P: Page>(va_bits: u32, plan: Plan, seed: u64) -> Left {
    Leaving::<P>::new(va_bits, plan, seed, None).leave()
}

fn right<P: Page>(va_bits: u32) {
    for uncached in [false, true] {
        for map_all in [false, true] {
            let plan = Plan {
                uncached,
                map_all,
                ..Plan::default()
            };
            for seed in 0..3 {
                let left = left::<P>(va_bits, plan, seed);
                let world = left.world.borrow();
                assert_eq!(world.model.violations(), [], "{va_bits} bits, {plan:?}");
                assert_eq!(left.wrong, None, "{va_bits} bits, {plan:?}");
                // Each line is read, written, and cleaned, or more.
                assert!(left.steps > 5 * 3 * P::SIZE.bytes() / 64);
            }
        }
    }
}

/// With only what is needed mapped, whatever else was touched would have faulted.
#[test]
fn the_next_kernel_finds_its_bytes_and_no_rule_is_broken() {
    right::<Page4K>(48);
    right::<Page4K>(39);
    right::<Page16K>(47);
    right::<Page64K>(48);
}

/// Faults planted in the list or the tables, each with the expected report. The library refuses to make
/// such lists, and to follow one that is changed: `crates/granule-kexec/tests/kexec`.
#[test]
fn each_wrong_record_is_found() {
    let record = |number, change| Plan {
        record: Some((number, change)),
        ..Plan::default()
    };
    let writes = |place| record(0, Change::Destination(place));
    let reads = |place| record(0, Change::Source(place));
    let all = |plan| Plan {
        map_all: true,
        ..plan
    };
    let other_identity = Plan {
        other_identity: true,
        ..Plan::default()
    };
    let faults = "Fault(";
    let cases = [
        // Whatever is not mapped faults: tables, list and code are out of reach of a copy.
        ("a table is written over", writes(Root), faults),
        ("the list is written over", writes(RelocationList), faults),
        ("the code is written over", writes(Code), faults),
        ("memory beside is written", writes(Elsewhere), faults),
        ("memory beside is read", reads(Elsewhere), faults),
        ("a source is written over", writes(NextSource), faults),
        (
            "one page more is copied",
            record(2, Change::Longer(2)),
            faults,
        ),
        // With all of RAM mapped it is done, and seen later.
        (
            "the root is written over",
            all(writes(Root)),
            "NotTableMemory",
        ),
        (
            "a last table is written over",
            all(writes(LastTable)),
            "NotTableMemory",
        ),
        ("the list is written over", all(writes(RelocationList)), ""),
        (
            "the code is written over",
            all(writes(Code)),
            "instructions at",
        ),
        (
            "a source is written over before it is read",
            all(writes(NextSource)),
            "has other bytes",
        ),
        (
            "another source is read",
            all(reads(Elsewhere)),
            "the image has other bytes",
        ),
        (
            "the identity map is of another page",
            other_identity,
            "Fetch",
        ),
    ];
    for (name, plan, report) in cases {
        let left = left::<Page4K>(48, plan, 1);
        let world = left.world.borrow();
        let rules = world.model.violations().iter().map(|one| one.rule);
        let rules: BTreeSet<String> = rules.map(|rule| format!("{rule:?}")).collect();
        let wrong = left.wrong.map(|wrong| format!("{wrong} {rules:?}"));
        let wrong = wrong.unwrap_or_default();
        assert!(
            !wrong.is_empty() && wrong.contains(report),
            "{name}: {wrong:?}"
        );
    }
}
