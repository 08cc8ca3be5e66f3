//! Accesses that must fault, and their reports; free pages that fault.

use granule_cli::PageSize::{K4, K16, K64};
use granule_testing::text::{assert_ends_with, assert_starts_with};

use crate::permissions::machine::{machine, ok, panics};

#[test]
fn a_forbidden_access_faults_with_the_reason() {
    for (size, word, what, why) in [
        (
            K4,
            "write-read-only",
            "data abort: permission fault, level 3, writing 0xffff",
            " in the image",
        ),
        (
            K16,
            "execute",
            "instruction abort: permission fault, level 3, executing 0xffff",
            "",
        ),
        (
            K64,
            "read-invalid",
            "data abort: translation fault, level 3, reading 0xffff",
            ": that page was made invalid (set_direct_map_invalid, set_memory_valid)",
        ),
        (
            K4,
            "read-guard",
            "data abort: translation fault, level 3, reading 0xffff",
            ": that is a guard page",
        ),
    ] {
        let reason = panics(&machine(2, size, &format!("granule.test={word}")));
        assert!(reason.starts_with(what), "{word}: {reason}");
        assert!(reason.ends_with(why), "{word}: {reason}");
    }
}

/// On one CPU a page is made valid while another has faulted on it. That one goes on; where it stays
/// invalid (`read-guard`) it is a panic.
#[test]
fn a_fault_on_what_is_valid_by_now_is_spurious() {
    for (size, el) in [(K4, 1), (K16, 2), (K64, 2)] {
        let made = ok(&machine(2, size, "granule.test=spurious").el(el));
        assert_eq!(made.tested("spurious.faults"), 1);
        made.has("spurious_faults", 1);
    }
    let made = ok(&machine(2, K4, "granule.test=permissions"));
    made.has("spurious_faults", 0);
}

#[test]
fn free_pages_are_invalid_on_request() {
    for (size, cpus) in [(K4, 4), (K16, 1), (K64, 2)] {
        let words = "debug_pagealloc=on granule.test=pagealloc granule.test=permissions granule.test=hotplug granule.test=guard";
        let request = machine(cpus, size, words).memory(1 << 30);
        let made = ok(&request);
        assert_eq!(made.tested("pagealloc.pages"), 1 + 8 + 1 + 32 + 2);
        assert!(made.tested("pagealloc.present_invalid") > 500 << 20 >> size.value().shift());
    }
}

#[test]
fn use_after_free_is_said_to_be_that() {
    let words = "debug_pagealloc=on granule.test=use-after-free";
    for size in [K4, K64] {
        let reason = panics(&machine(1, size, words));
        let why = ": that page is free: it was used after it was freed, or never allocated (debug_pagealloc=on)";
        assert_starts_with(
            &reason,
            "data abort: translation fault, level 3, reading 0xffff",
        );
        assert_ends_with(&reason, why);
    }
    // Without that word the access goes unnoticed, and that is reported, too: the word has its
    // effect.
    ok(&machine(1, K4, "granule.test=use-after-free"));
}
