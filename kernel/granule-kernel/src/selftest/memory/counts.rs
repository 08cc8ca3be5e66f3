//! Tests of the exact cost of changes in a block of 1 GiB, and of changes without memory for their
//! tables.

use super::{Block, Snapshot, assert_as, kernel, ok};
use crate::dev::console::println;
use crate::mm::error::LinearError;
use crate::mm::kernel_tables::{self, Taken};
use crate::mm::merge;
use crate::mm::pageattr::{
    set_direct_map_default, set_direct_map_invalid, set_memory_ro, set_memory_rw, set_memory_valid,
};
use crate::mm::pages::Pages;
use granule::arch::VirtualAddress;
use granule::table::TableError;
use granule_kcore::frames::tables::Source;

const GIB: u64 = 1 << 30;

/// The changes: name, offset in the block, and bytes (0 for one page).
const CHANGES: [(&str, u64, u64); 8] = [
    // The first page, the last, one in the middle of everything, and one between two tables.
    ("first", 0, 0),
    ("middle", GIB / 2 + (768 << 20) / 1024 * 128, 0),
    ("k64", 0x1234_0000, 64 << 10),
    ("m2", 0x1220_0000, 2 << 20),
    // Two pages, or one of 64K, on either side of a boundary of every smaller leaf.
    ("across", GIB / 2 - (64 << 10), 128 << 10),
    ("m32", 0x1200_0000, 32 << 20),
    ("m512", GIB / 2, GIB / 2),
    ("g1", 0, GIB),
];

fn say(test: &str, name: &str, took: &Taken) {
    for (key, value) in took.figures() {
        println!("@granule test.counts.{name}.{test}.{key}={value}");
    }
}

fn took<T, E: core::fmt::Display>(what: &str, work: impl FnOnce() -> Result<T, E>) -> Taken {
    let before = kernel_tables::counted();
    ok(what, work());
    kernel_tables::counted().since(before)
}

#[inline(never)]
pub(super) fn counts() {
    let kernel = kernel();
    let whole = Snapshot::take();
    let block = Block::new(GIB);
    println!("@granule test.counts.start={}", block.physical().0);
    let before = Snapshot::take();
    for (name, offset, bytes) in CHANGES {
        let pages = (bytes / kernel.page()).max(1);
        let start = VirtualAddress(block.start + offset);
        let change = took(name, || set_memory_ro(start, pages));
        say("ro", name, &change);
        let changed = Snapshot::take();
        assert_eq!(
            changed.tables - before.tables,
            change.counts.tables,
            "{name}"
        );
        assert_eq!(before.free - changed.free, change.counts.tables, "{name}");
        assert_eq!(changed.bytes, before.bytes, "{name}");
        println!(
            "@granule test.counts.{name}.leaves={}",
            changed.leaves - before.leaves
        );
        say("rw", name, &took(name, || set_memory_rw(start, pages)));
        say(
            "invalid",
            name,
            &took(name, || set_direct_map_invalid(start, pages)),
        );
        say(
            "default",
            name,
            &took(name, || set_direct_map_default(start, pages)),
        );
        let all = block.bytes() / kernel.page();
        let merged = took(name, || permissions_merge(&block, all));
        say("merge", name, &merged);
        // A contiguous group that contains the block and more.
        merge::merge_candidates();
        assert_as(&before, name);
    }
    block.free();
    assert_as(&whole, "in the end");
}

fn permissions_merge(block: &Block, pages: u64) -> Result<(), LinearError> {
    merge::merge_linear_map(block.at(0), pages).map(|_| ())
}

/// Makes changes with 0, 1, 2 … free frames, until there are enough.
#[inline(never)]
pub(super) fn exhaustion() {
    let kernel = kernel();
    let block = Block::new(GIB);
    let before = Snapshot::take();
    type Call = fn(VirtualAddress, u64) -> Result<(), LinearError>;
    let calls: [(&str, Call); 3] = [
        ("ro", set_memory_ro),
        ("invalid", set_direct_map_invalid),
        ("valid", |start, pages| {
            set_memory_valid(start, pages, false)
        }),
    ];
    for (call_name, call) in calls {
        for (name, offset, bytes) in CHANGES {
            let pages = (bytes / kernel.page()).max(1);
            let start = VirtualAddress(block.start + offset);
            let mut left = 0;
            loop {
                let aside = before.free - left;
                assert!(Pages.with(|frames| frames.reserve(aside)));
                let result = call(start, pages);
                Pages.with(|frames| frames.unreserve(aside));
                match result {
                    Ok(()) => break,
                    Err(LinearError::Table(TableError::OutOfTables { needed })) => {
                        assert!(needed as u64 > left, "{name} with {left} frames");
                        assert_as(&before, name);
                        let reserved = Pages.with(|frames| frames.reserved());
                        assert_eq!(reserved, 0, "frames left aside");
                    }
                    Err(error) => panic!("{name} with {left} frames: {error}"),
                }
                left += 1;
            }
            let now = Snapshot::take();
            assert_eq!(before.free - now.free, left, "tables of {name}");
            println!("@granule test.exhaustion.{call_name}.{name}={left}");
            ok(name, set_direct_map_default(start, pages));
            let merged = merge::merge_candidates();
            let refused = Pages.with(|frames| frames.refused());
            assert_eq!((refused, merged.tables), (0, left), "{name} merged again");
            assert_as(&before, name);
        }
    }
    block.free();
}
