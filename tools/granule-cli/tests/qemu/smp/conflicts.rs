//! TLB conflict aborts, which no emulator raises: a live split is made to look like one. The kernel
//! tests itself (`exception/conflict_test.rs` there) and counts; here is which machines it does so on.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Outcome, Request};
use granule_testing::text::{assert_contains, assert_starts_with};

use crate::booted::Booted;
use crate::hooked::shifted;
use crate::smp::machine::{ends, machine, ok};

/// A machine whose linear map has blocks, in a free gigabyte.
pub(crate) fn blocks(cpus: u32, size: PageSize, el: u8, words: &str) -> Request {
    machine(cpus, &format!("rodata=noalias {words}"))
        .memory(3 << 30)
        .page_size(size)
        .el(el)
}

/// Every split of a case was met: in total, and by what the case is about.
fn check(made: &Booted, case: &str) -> u64 {
    let [splits, met] =
        ["splits", "met"].map(|key| made.number(&format!("test.conflict.{case}.{key}")));
    assert!(splits >= 2, "{case}: {splits} splits");
    assert!(
        met > 0,
        "{case}: none of {splits} was met where it was to be"
    );
    met
}

/// Boots what makes conflicts everywhere, and looks at what was met.
pub(crate) fn all_met(request: &Request) {
    let made = ok(request);
    let mut met = 0;
    // Nothing else is done between the split and these, so each meets every one.
    for case in ["load", "store", "fetch", "flush"] {
        let seen = check(&made, case);
        assert_eq!(seen, made.number(&format!("test.conflict.{case}.splits")));
        met += seen;
    }
    for case in ["tables", "own_stack"] {
        met += check(&made, case);
    }
    if request.smp > 1 {
        made.has("test.conflict.interruptions", 20);
        met += check(&made, "interrupted_stack") + check(&made, "crowd");
    }
    assert!(made.number("tlb_conflicts") >= met, "{request:?}");
}

#[test]
fn a_conflict_is_dealt_with_wherever_it_is_met() {
    for (cpus, size, el, gic, shift) in [
        (1, K4, 1, 3, 3),
        (1, K16, 2, 2, 3),
        (1, K64, 1, 2, 3),
        (4, K4, 2, 3, 3),
        (4, K16, 1, 3, 0),
        (4, K64, 2, 2, 7),
    ] {
        let request = blocks(cpus, size, el, "granule.test=conflict").gic(gic);
        all_met(&shifted(&request, shift));
    }
}

#[test]
fn a_conflict_while_one_is_dealt_with_is_a_panic_with_that_reason() {
    for (cpus, size, el) in [(1, K4, 2), (4, K64, 1)] {
        let request = blocks(cpus, size, el, "granule.test=conflict-again");
        let made = ends(&request, Outcome::Panic);
        let reason = made.boot.reason.as_deref().unwrap();
        assert_starts_with(reason, "TLB conflict abort at 0xffff");
        assert_contains(reason, "while another one was dealt with");
    }
}

#[test]
fn the_word_chooses_the_split() {
    let count = |number: u64, size| {
        let words = format!("granule.test=splits arm64.inject_conflict={number}");
        let made = ok(&blocks(1, size, 1, &words));
        (made.number("test.splits"), made.number("tlb_conflicts"))
    };
    let (splits, conflicts) = count(1, K4);
    assert!(splits >= 4, "{splits} splits");
    assert_eq!(conflicts, 1);
    assert_eq!(count(splits, K4), (splits, 1));
    assert_eq!(count(splits + 1, K4), (splits, 0));
    assert_eq!(count(2, K16).1, 1);
    assert_eq!(count(2, K64).1, 1);
}

#[test]
fn a_garbled_word_is_reported_and_ignored() {
    let made = ok(&blocks(
        1,
        K4,
        1,
        "granule.test=splits arm64.inject_conflict=2nd",
    ));
    made.prints("arm64.inject_conflict=2nd: expected the number of a split, from 1; ignored");
    made.has("tlb_conflicts", 0);
    // Nor is anything counted.
    made.has("test.splits", 0);
}
