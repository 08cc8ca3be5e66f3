//! Every call on the linear map, with every page size, exception level and kind of map.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::Rodata;
use granule_testing::text::assert_contains;

use crate::permissions::machine::{machine, ok, panics};

#[test]
fn each_call_does_its_work_on_every_cpu() {
    for (size, cpus, el, rodata) in [
        (K4, 4, 2, Rodata::Noalias),
        (K4, 1, 1, Rodata::Off),
        (K16, 4, 1, Rodata::Noalias),
        (K16, 1, 2, Rodata::Full),
        (K64, 4, 2, Rodata::On),
        (K64, 4, 1, Rodata::Noalias),
    ] {
        let made = ok(&machine(cpus, size, "granule.test=permissions")
            .el(el)
            .rodata(rodata));
        assert!(made.tested("permissions.leaves") > 0);
    }
}

/// CPUs that do not allow a split refuse one, with the leaf's name; where the map is in pages from the
/// start they need none.
#[test]
fn without_feat_bbm_only_a_map_of_pages_changes() {
    let weak = |rodata| {
        machine(2, K4, "granule.test=permissions")
            .cpu("cortex-a72")
            .rodata(rodata)
    };
    let reason = panics(&weak(Rodata::Noalias));
    assert_contains(&reason, "lies inside the leaf of");
    assert_contains(&reason, "may not be split");
    ok(&weak(Rodata::On));
}

#[test]
fn idle_cpus_merge_what_became_alike() {
    for size in PageSize::ALL {
        for cpus in [1, 4] {
            let made = ok(&machine(cpus, size, "").append("granule.test=background"));
            let merged = made.tested("background.tables") + made.tested("background.groups");
            assert!(merged > 0, "{size:?} {cpus}");
        }
    }
}

/// The CPU that was woken to merge may get a job first; another one is woken then.
#[test]
fn an_idle_cpu_merges_for_one_that_has_a_job() {
    let made = ok(&machine(4, K4, "").append("granule.test=background-busy"));
    assert_eq!(made.tested("background.busy"), 1);
}

/// One store and one TLBI to make a page invalid, one store to make it valid, while another CPU has
/// the lock; making the pool takes the lock once.
#[test]
fn guard_pages_are_flipped_without_the_lock() {
    const PAGES: u64 = 32;
    for (size, cpus, el) in [(K4, 4, 1), (K16, 2, 2), (K64, 1, 2)] {
        let made = ok(&machine(cpus, size, "granule.test=guard").el(el));
        let tested = |key: &str| made.tested(&format!("guard.{key}"));
        assert_eq!(tested("locks"), 1);
        assert_eq!(tested("set_valid"), 2 * PAGES);
        assert_eq!(tested("stores"), 2 * PAGES);
        assert_eq!(tested("tlbi"), PAGES);
        // DSB ISHST for each, DSB ISH for each TLBI.
        assert_eq!(tested("dsb"), 3 * PAGES);
    }
}

/// They are in what other leaves are split and merged beside, by the very CPU that an interrupt makes flip
/// them.
#[test]
fn guard_pages_are_flipped_in_interrupts_beside_splits_and_merges() {
    for (size, el, gic) in [(K4, 2, 3), (K16, 1, 2), (K64, 2, 3)] {
        let made = ok(&machine(3, size, "granule.test=guard-beside")
            .el(el)
            .gic(gic));
        assert_eq!(made.tested("beside.set_valid"), 128);
        assert!(made.tested("beside.merged") > 0, "{size:?}");
    }
}
