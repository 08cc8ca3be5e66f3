//! The operations on leaves that hardware updates meanwhile, each with the page that is accessed.

use super::{Reported, Tables};
use granule::table::{Harvest, Holes, Leaves};
use granule_testing::stage::TestStage;
use granule_testing::walk::Arch;

/// One operation on leaves, and the accessed page.
pub(super) struct Scene<S: TestStage> {
    pub(super) what: &'static str,
    /// The size of the mapping, and its leaves.
    pub(super) bytes: u64,
    pub(super) leaves: Leaves,
    /// Only the page at `at` is without the note beforehand.
    pub(super) only: bool,
    /// Returns the ranges that a harvest reported.
    pub(super) operation: fn(&mut Tables<S>, u64, u64) -> Reported,
    /// Offsets in the mapping.
    pub(super) at: &'static [u64],
}

fn protect_a_page<S: TestStage>(tables: &mut Tables<S>, start: u64, _bytes: u64) -> Reported {
    let page = S::at(start + 0x5000);
    tables
        .protect(page, 0x1000, S::marking(), Holes::Refuse)
        .unwrap();
    Vec::new()
}

/// From the middle of one leaf into the next: both are cut.
fn protect_across<S: TestStage>(tables: &mut Tables<S>, start: u64, bytes: u64) -> Reported {
    let from = S::at(start + 0x5000);
    tables
        .protect(from, bytes - 0x8000, S::marking(), Holes::Refuse)
        .unwrap();
    Vec::new()
}

fn limit<S: TestStage>(tables: &mut Tables<S>, start: u64, bytes: u64) -> Reported {
    tables
        .limit_leaves(S::at(start), bytes, Leaves::PAGES)
        .unwrap();
    Vec::new()
}

fn merge<S: TestStage>(tables: &mut Tables<S>, start: u64, bytes: u64) -> Reported {
    tables.merge(S::at(start), bytes, Leaves::LARGEST).unwrap();
    Vec::new()
}

/// Break-before-make of all leaves, and of a part of them.
fn make_device<S: TestStage>(tables: &mut Tables<S>, start: u64, bytes: u64) -> Reported {
    let ranges = [(start, bytes), (start + 0x3000, bytes - 0x4000)];
    for (memory, (start, bytes)) in S::OTHER_MEMORY.into_iter().zip(ranges) {
        let modify = |attributes: &mut _| *S::parts(attributes).memory = memory;
        tables
            .modify(S::at(start), bytes, Holes::Refuse, modify)
            .unwrap();
    }
    Vec::new()
}

fn harvest<S: TestStage>(tables: &mut Tables<S>, start: u64, bytes: u64) -> Reported {
    let mut reported = Vec::new();
    for what in [Harvest::Accessed { invalidate: true }, Harvest::Dirty] {
        // A page inside reports the whole leaf.
        let middle = start + 0x3000;
        for (start, bytes) in [(middle, 0x1000), (start, bytes)] {
            tables
                .harvest(S::at(start), bytes, what, |start, bytes| {
                    reported.push((S::address(start).0, bytes));
                })
                .unwrap();
        }
    }
    reported
}

/// Reports what has been written, and makes all of it read-only.
fn write_protect<S: TestStage>(tables: &mut Tables<S>, start: u64, bytes: u64) -> Reported {
    let at = S::at(start);
    let protect = |tables: &mut Tables<S>, change| {
        tables.protect(at, bytes, change, Holes::Refuse).unwrap();
    };
    protect(tables, S::unmanaged());
    let written = writable(tables, start, bytes);
    protect(tables, S::read_only());
    written
}

/// The same by `modify`, which makes writable what a CPU may make dirty meanwhile.
fn modify_to_read_only<S: TestStage>(tables: &mut Tables<S>, start: u64, bytes: u64) -> Reported {
    modify(tables, start, bytes, &[S::unmanaged()]);
    let written = writable(tables, start, bytes);
    modify(tables, start, bytes, &[S::read_only()]);
    written
}

/// Both changes at once: whatever hardware notes meanwhile, nothing is writable at the end.
fn take_writes<S: TestStage>(tables: &mut Tables<S>, start: u64, bytes: u64) -> Reported {
    modify(tables, start, bytes, &[S::unmanaged(), S::read_only()]);
    assert_eq!(writable(tables, start, bytes), []);
    vec![(start, bytes)]
}

fn modify<S: TestStage>(
    tables: &mut Tables<S>,
    start: u64,
    bytes: u64,
    changes: &[S::PermissionChange],
) {
    let arch = Arch::of(tables.geometry());
    tables
        .modify(S::at(start), bytes, Holes::Refuse, |leaf| {
            for change in changes {
                *leaf = S::changed(*leaf, change, &arch);
            }
        })
        .unwrap();
}

/// The leaves that are writable.
fn writable<S: TestStage>(tables: &Tables<S>, start: u64, bytes: u64) -> Reported {
    let arch = Arch::of(tables.geometry());
    let mut found = Vec::new();
    tables
        .for_each(S::at(start), bytes, |leaf| {
            let word = S::attribute_bits(&leaf.attributes, &arch);
            if arch.made_dirty(word) == word {
                found.push((S::address(leaf.start).0, leaf.bytes));
            }
        })
        .unwrap();
    found
}

pub(super) const BLOCK: u64 = 2 << 20;
/// The size of a group of pages.
const GROUP: u64 = 16 << 12;

#[rustfmt::skip]
pub(super) fn scenes<S: TestStage>() -> Vec<Scene<S>> {
    let scene = |what, bytes, operation: fn(&mut Tables<S>, u64, u64) -> Reported, at: &'static [u64]| {
        Scene { what, bytes, leaves: Leaves::LARGEST, only: false, operation, at }
    };
    let in_pages = |scene| Scene { leaves: Leaves::PAGES, ..scene };
    let only = |scene| Scene { only: true, ..in_pages(scene) };
    vec![
        scene("a page of a group of pages", GROUP, protect_a_page, &[0, 0x5000, 0xf000]),
        scene("a page of a block", BLOCK, protect_a_page, &[0, 0x5000, BLOCK - 0x1000]),
        scene("from group to group of blocks", 32 * BLOCK, protect_across, &[0, 0x5000, 17 * BLOCK, 32 * BLOCK - 0x1000]),
        scene("a block limited to pages", BLOCK, limit, &[0, BLOCK / 2]),
        scene("a group of pages limited to pages", GROUP, limit, &[0, 0x5000]),
        only(scene("pages merged to a group", GROUP, merge, &[0, 0x5000, 0xf000])),
        only(scene("pages merged to a block", BLOCK, merge, &[0, BLOCK - 0x1000])),
        in_pages(scene("pages that hardware may update, not merged to a group", GROUP, merge, &[0, 0x5000, 0xf000])),
        in_pages(scene("pages that hardware may update, not merged to a block", BLOCK, merge, &[0, BLOCK - 0x1000])),
        scene("other memory types of a group of pages", GROUP, make_device, &[0, 0x5000, 0xf000]),
        scene("other memory types of a block", BLOCK, make_device, &[0, 0x5000]),
        scene("write-protection of a group of pages", GROUP, write_protect, &[0, 0x5000, 0xf000]),
        scene("write-protection of blocks and pages", BLOCK + 0x5000, write_protect, &[0, BLOCK + 0x1000]),
        scene("write-protection of a group of pages by what they are", GROUP, modify_to_read_only, &[0, 0x5000, 0xf000]),
        scene("write-protection of blocks and pages at once", BLOCK + 0x5000, take_writes, &[0, BLOCK + 0x1000]),
        scene("harvest of a group of pages", GROUP, harvest, &[0, 0x3000]),
        scene("harvest of blocks and pages", BLOCK + 0x5000, harvest, &[0, BLOCK + 0x1000]),
        only(scene("harvest of pages of which all others are noted", GROUP, harvest, &[0, 0x5000])),
    ]
}
