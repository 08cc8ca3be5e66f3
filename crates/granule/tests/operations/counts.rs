//! Exact counts, through the counters of the recorder and against the host's notes.
//!
//! Each number is worked out by hand from the geometry of the page size: a table has 512, 2048
//! or 8192 entries, and each entry of a new table is stored exactly once.

use crate::bench::Setting;
use crate::changes::READ_ONLY;
use granule::arch::{
    Attributes, Geometry, Page, Page4K, Page16K, Page64K, PageSize, Permissions, PhysicalAddress,
    VaRange, VirtualAddress,
};
use granule::table::{Holes, Leaves, PageTables, Visit};
use granule_testing::held::Held;
use granule_testing::host::{self, Event, Host};
use granule_testing::shape::{LARGE, PLAIN};
use granule_trace::recorder::{Counted, Counters, Counts};

const PAGES: Leaves = Leaves::PAGES;
const LARGEST: Leaves = Leaves::LARGEST;
const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

/// One mapping into an empty tree and what it takes.
struct CountCase {
    what: &'static str,
    start: u64,
    output: u64,
    bytes: u64,
    leaves: Leaves,
    /// Tables besides the root.
    tables: u64,
    /// Stores into the root.
    root_stores: u64,
    /// Leaf entries, contiguous members counted each.
    leaf_entries: u64,
}

/// A mapping, and its tables, stores into the root and leaf entries.
const fn case(
    what: &'static str,
    start: u64,
    output: u64,
    bytes: u64,
    leaves: Leaves,
    [tables, root_stores, leaf_entries]: [u64; 3],
) -> CountCase {
    CountCase {
        what,
        start,
        output,
        bytes,
        leaves,
        tables,
        root_stores,
        leaf_entries,
    }
}

fn count<P: Page>(geometry: &Geometry, live: bool, case: &CountCase) {
    let entries = P::SIZE.bytes() / 8;
    let host = Host::new(geometry, 0x4000_0000, case.tables as usize + 1);
    let counters = Counters::new();
    let setting = if live {
        Setting::LIVE
    } else {
        Setting::PRIVATE
    };
    let inner = host::environment(&host, setting.capabilities());
    let environment = Counted::new(inner, &counters);
    let tables = PageTables::<P, _>::new(*geometry, environment).unwrap();
    assert_eq!(
        counters.get(),
        Counts {
            stores: entries,
            tables: 1,
            ..Counts::default()
        },
        "an empty root"
    );
    let mut tables = Held::new(tables, live);
    let before = counters.get();
    host.take_events();
    let start = VirtualAddress(geometry.base().0 + case.start);
    tables
        .map(
            start,
            PhysicalAddress(case.output),
            case.bytes,
            RW,
            case.leaves,
        )
        .unwrap();
    let after = counters.get();
    let what = case.what;
    assert_eq!(
        after.stores - before.stores,
        case.tables * entries + case.root_stores,
        "{what}: stores"
    );
    assert_eq!(after.tables - before.tables, case.tables, "{what}: tables");
    assert_eq!(after.tlbi, 0, "{what}: TLBIs");
    assert_eq!(after.dsb - before.dsb, u64::from(live), "{what}: DSBs");
    assert_eq!(after.isb - before.isb, u64::from(live), "{what}: ISBs");
    // Nothing is called once an entry: a table takes a handful of calls.
    let calls = host.calls() as u64;
    assert!(
        calls <= 6 * (case.tables + 1),
        "{what}: {calls} calls for {} tables",
        case.tables
    );
    let stored: u64 = host
        .take_events()
        .iter()
        .map(|event| match event {
            Event::Store { count, .. } => *count as u64,
            _ => 0,
        })
        .sum();
    assert_eq!(stored, after.stores - before.stores, "{what}: counters");
    let mut leaf_entries = 0;
    tables.visit_all(|entry| {
        leaf_entries += u64::from(entry.kind == granule::arch::Kind::Leaf);
        Visit::EVERYTHING
    });
    assert_eq!(leaf_entries, case.leaf_entries, "{what}: leaves");
    // Permissions: one store for each leaf entry; then all of it goes and tables are given back.
    let change = READ_ONLY;
    let before = counters.get();
    tables
        .protect(start, case.bytes, change, Holes::Refuse)
        .unwrap();
    let after = counters.get();
    assert_eq!(
        after.stores - before.stores,
        case.leaf_entries,
        "{what}: stores of protect"
    );
    assert_eq!(after.dsb - before.dsb, 2 * u64::from(live), "{what}");
    tables.unmap(start, case.bytes).unwrap();
    assert_eq!(counters.get().tables, 1, "{what}: tables given back");
}

#[test]
fn stores_and_tables_with_4k_pages() {
    // Root at level 0, 512 GiB an entry.
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let gib = 1 << 30;
    #[rustfmt::skip]
    let cases = [
        case("one table of pages", 0, 0, 2 << 20, PAGES, [3, 1, 512]),
        case("64 MiB in pages", gib, 0x8000_0000, 64 << 20, PAGES, [2 + 32, 1, 32 * 512]),
        case("four blocks of 1 GiB", 0, 0x4000_0000, 4 * gib, LARGEST, [1, 1, 4]),
        // Level 1; then level 2 and level 3 before and after the block.
        case("1 GiB and a page on either side", gib - 0x1000, 3 * gib - 0x1000, gib + 0x2000, LARGEST, [1 + 2 + 2, 1, 3]),
        case("pages across two entries of the root", 512 * gib - 0x2000, 0x1000, 0x4000, LARGEST, [6, 2, 4]),
    ];
    for case in &cases[..if cfg!(miri) { 1 } else { cases.len() }] {
        count::<Page4K>(&geometry, false, case);
        count::<Page4K>(&geometry, true, case);
    }
}

#[test]
#[cfg_attr(miri, ignore = "2048 entries take minutes; 4K runs the same code")]
fn stores_and_tables_with_16k_pages() {
    // Root at level 1, 64 GiB an entry.
    let geometry = PLAIN.geometry(PageSize::K16, 47, VaRange::Upper);
    let mib = 1 << 20;
    #[rustfmt::skip]
    let cases = [
        case("two tables of pages", 64 * mib, 64 * mib, 64 * mib, PAGES, [1 + 2, 1, 2 * 2048]),
        case("32 blocks with the hint", 0, 1 << 30, 1 << 30, LARGEST, [1, 1, 32]),
    ];
    for case in &cases {
        count::<Page16K>(&geometry, false, case);
        count::<Page16K>(&geometry, true, case);
    }
}

#[test]
#[cfg_attr(miri, ignore = "8192 entries take minutes; 4K runs the same code")]
fn stores_and_tables_with_64k_pages() {
    // Root at level 1, 4 TiB an entry; with 52-bit output addresses a block.
    let geometry = LARGE.geometry(PageSize::K64, 52, VaRange::Upper);
    let tib = 1 << 40;
    #[rustfmt::skip]
    let cases = [
        case("a table of pages", 512 << 20, 0, 512 << 20, PAGES, [2, 1, 8192]),
        case("three blocks of 4 TiB in the root itself", 4 * tib, 8 * tib, 12 * tib, LARGEST, [0, 3, 3]),
    ];
    for case in &cases {
        count::<Page64K>(&geometry, false, case);
        count::<Page64K>(&geometry, true, case);
    }
}
