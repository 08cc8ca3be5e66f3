//! Random changes of permissions by one CPU, while three others read and write neighbours through the
//! same leaves and merge what they find: no fault, no wrong byte, and in the end the map and the free
//! memory of the beginning. They change over at other instructions with each shift, and run beside each other in
//! [`live`].
//!
//! `GRANULE_STRESS_CHANGES` and `GRANULE_STRESS_SEED` take other numbers than these.

use std::str::FromStr;
use std::time::Duration;

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::Request;

use crate::booted::Booted;
use crate::hooked::{SHIFTS, shifted};
use crate::permissions::machine::{machine, ok, panics};

/// With three page sizes and as many shifts about 50 000.
const CHANGES: u64 = 5_600;
/// Of the kinds of changes, those that stress.rs in the kernel has.
const KINDS: [&str; 9] = [
    "ro", "rw", "x", "nx", "invalid", "valid", "default", "merge", "plug",
];

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => u64::from_str(&text).unwrap_or_else(|e| panic!("{variable}={text}: {e}")),
        Err(_) => default,
    }
}

fn changes(size: PageSize) {
    let seed = number("GRANULE_STRESS_SEED", 1);
    for (shift, seed) in SHIFTS.into_iter().zip(seed..) {
        change(size, seed, |request| shifted(request, shift));
    }
}

fn change(size: PageSize, seed: u64, finish: impl FnOnce(&Request) -> Request) {
    let changes = number("GRANULE_STRESS_CHANGES", CHANGES);
    let mut request = machine(
        4,
        size,
        &format!("granule.test=permissions-stress:{changes}:{seed}"),
    );
    // A whole GiB of it is to be free.
    request.memory = 3 << 30;
    // The host may have fewer cores than the guest, and other things to do.
    request.timeout = Duration::from_secs(60 + changes / 50);
    let boot = ok(&finish(&request));
    let of = |key: &str| boot.tested(&format!("stress.{key}"));
    assert_eq!((of("seed"), of("cpus")), (seed, 4));
    check(&boot, changes);
    println!(
        "{size:?}: {} changes, {} refused, {} accesses, {} merges by other CPUs",
        of("changes"),
        of("refused"),
        of("accesses"),
        of("merges")
    );
}

fn check(boot: &Booted, changes: u64) {
    let of = |key: &str| boot.tested(&format!("stress.{key}"));
    let kinds: Vec<u64> = KINDS.iter().map(|kind| of(kind)).collect();
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    // Of permissions: merging and plugging come on top.
    assert_eq!(of("changes"), changes);
    assert_eq!(kinds.iter().take(7).sum::<u64>(), changes);
    assert!(of("refused") > 0 && of("merges") > 0);
    assert!(
        of("accesses") > changes,
        "{} accesses beside {changes} changes",
        of("accesses")
    );
    // Each of them takes the lock once but removing and adding memory, where refusals do too, and
    // each that removes something takes a TLBI.
    assert!(of("locks") >= of("changes") + of("merges"));
    assert!(of("tlbi") > of("plug") / 2 + of("invalid") / 2);
}

#[test]
fn in_4k_pages() {
    changes(K4);
}

#[test]
fn in_16k_pages() {
    changes(K16);
}

#[test]
fn in_64k_pages() {
    changes(K64);
}

#[test]
fn words_that_cannot_be_read_and_machines_of_one_cpu_are_refused() {
    let words = "granule.test=permissions-stress:many";
    let line = panics(&machine(2, K4, words));
    assert!(line.contains("expected CHANGES[:SEED]"), "{line}");
    let words = "granule.test=permissions-stress:10";
    let line = panics(&machine(1, K4, words));
    assert!(line.contains("more than one CPU"), "{line}");
}

mod live {
    use granule_cli::{PageSize, Request};

    use super::change;

    #[test]
    #[ignore = "stress in real time: a case of the soak"]
    fn beside_each_other() {
        change(PageSize::K4, 4, Request::clone);
    }
}
