//! Pages of every size on a kernel of every page size.

use granule_cli::{PageSize, Rodata};

use crate::permissions::machine::{machine, ok};

#[test]
fn pages_of_every_size_come_from_frames_of_every_size() {
    for (size, cpus) in PageSize::ALL.into_iter().zip([4, 1, 3]) {
        let made = ok(&machine(cpus, size, "granule.test=sized"));
        // Each CPU holds 32 pages at a time, of random sizes; some runs may be missing.
        let pages = made.tested("sized.pages");
        assert!(pages > 1000 * cpus as u64, "{size:?}: {pages}");
        assert!(made.tested("sized.fragmented") > 0);
    }
}

/// Every access to a frame that is not allocated would fault.
#[test]
fn the_records_of_subdivided_frames_are_allocated_memory() {
    let made = ok(
        &machine(2, PageSize::K64, "granule.test=sized debug_pagealloc=on").rodata(Rodata::Full),
    );
    assert!(made.tested("sized.pages") > 2000);
}
