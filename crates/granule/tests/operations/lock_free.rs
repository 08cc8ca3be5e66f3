//! Single pages made invalid and valid beside the operations on the tables: how many stores, how
//! many TLBIs, and that nothing else changes.

use crate::bench::{Bench, Setting};
use granule::arch::{
    Attributes, Descriptor, Kind, Level, Page, Page4K, Page16K, Page64K, PageSize, Permissions,
    PhysicalAddress, VaRange, VirtualAddress,
};
use granule::forward;
use granule::table::{
    FreeList, Leaves, Live, Offset, PageTables, TableEnvironment, TableError, Visit, lock_free,
};
use granule_testing::host::{self, Event};
use granule_testing::shape::PLAIN;
use granule_trace::recorder::{Counted, Counters};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

/// Stores, TLBIs and DSBs of one call, and what it returned.
type Done = (Result<(), TableError>, u64, u64, u64);

fn set_valid_pages<P: Page>(
    bench: &Bench<P>,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Done {
    let geometry = *bench.tables.geometry();
    let counters = Counters::new();
    let inner = host::environment(&bench.host, bench.setting.capabilities());
    let environment = Counted::new(inner, &counters);
    // SAFETY: the bench's tables, all reached by its host; nobody else uses them.
    let result = unsafe {
        lock_free::set_valid::<P, _>(
            bench.tables.root_table(),
            geometry,
            environment,
            start,
            bytes,
            valid,
        )
    };
    let counts = counters.get();
    (result, counts.stores, counts.tlbi, counts.dsb)
}

fn pages_of<P: Page>() {
    let page = P::SIZE.bytes();
    let geometry = PLAIN.geometry(P::SIZE, 48, VaRange::Upper);
    let mut bench = Bench::<P>::new(&geometry, Setting::LIVE);
    let block = bench.arch.entry_bytes(2);
    bench.lay(0, block, block, RW, Leaves::LARGEST);
    bench.lay(block, 2 * block, 8 * page, RW, Leaves::PAGES);
    let pages = bench.reference.address(block);
    let at = |number: u64| VirtualAddress(pages.0 + number * page);
    // Every word of every table there is.
    let words = |bench: &Bench<P>| -> Vec<u64> {
        let mut tables = vec![bench.tables.root_table().0];
        bench.tables.visit_all(|entry| {
            if entry.kind == Kind::Table {
                tables.push(entry.output.0);
            }
            Visit::EVERYTHING
        });
        tables
            .iter()
            .flat_map(|table| bench.host.table(*table))
            .collect()
    };
    let before = words(&bench);
    let changed = |bench: &Bench<P>| -> Vec<(u64, u64)> {
        let now = words(bench);
        assert_eq!(now.len(), before.len());
        let pairs = before.iter().copied().zip(now);
        pairs.filter(|(old, new)| old != new).collect()
    };
    bench.host.take_events();

    assert_eq!(
        set_valid_pages(&bench, at(2), page, false),
        (Ok(()), 1, 1, 2)
    );
    let events = bench.host.take_events();
    let kinds: Vec<_> = events
        .iter()
        .map(|event| match event {
            Event::Store { .. } | Event::Change { .. } => "store",
            Event::DsbIshst => "dsb ishst",
            Event::Tlbi(_) => "tlbi",
            Event::DsbIsh => "dsb ish",
            Event::Isb => "isb",
            _ => "memory",
        })
        .collect();
    assert_eq!(kinds, ["store", "dsb ishst", "tlbi", "dsb ish", "isb"]);
    // The valid bit goes, the software's mark comes; all else is kept.
    let [(old, new)] = changed(&bench)[..] else {
        panic!("{:x?}", changed(&bench));
    };
    assert_eq!((old & 1, new), (1, (old & !1) | 1 << 63));
    assert!(bench.tables.query(at(2)).is_none());
    assert!(bench.tables.query(at(1)).is_some() && bench.tables.query(at(3)).is_some());
    // As it is already: nothing.
    assert_eq!(
        set_valid_pages(&bench, at(2), page, false),
        (Ok(()), 0, 0, 0)
    );
    assert_eq!(
        set_valid_pages(&bench, at(2), page, true),
        (Ok(()), 1, 0, 1)
    );
    assert_eq!(
        set_valid_pages(&bench, at(2), page, true),
        (Ok(()), 0, 0, 0)
    );
    assert_eq!(changed(&bench), []);
    // Several at once: one operation by range.
    assert_eq!(
        set_valid_pages(&bench, at(0), 8 * page, false),
        (Ok(()), 8, 1, 2)
    );
    assert_eq!(
        set_valid_pages(&bench, at(0), 8 * page, true),
        (Ok(()), 8, 0, 1)
    );
    assert_eq!(changed(&bench), []);

    // Where there are no pages nothing is split, and holes and odd addresses are refused.
    let base = bench.reference.address(0);
    let (result, stores, tlbi, _) = set_valid_pages(&bench, base, page, false);
    assert!(
        matches!(result, Err(TableError::InsideLeaf { .. })),
        "{result:?}"
    );
    assert_eq!((stores, tlbi), (0, 0));
    for valid in [false, true] {
        for (start, bytes) in [(at(8), page), (at(6), 3 * page)] {
            let (result, stores, ..) = set_valid_pages(&bench, start, bytes, valid);
            let address = at(8);
            assert_eq!(
                (result, stores),
                (Err(TableError::NotMapped { address }), 0)
            );
        }
        let odd = VirtualAddress(pages.0 + 8);
        let (result, ..) = set_valid_pages(&bench, odd, page, valid);
        assert!(matches!(result, Err(TableError::Misaligned { .. })));
    }
    assert_eq!(changed(&bench), []);
}

#[test]
fn one_page_takes_one_store_and_one_invalidation() {
    pages_of::<Page4K>();
    // The same code, with tables that take Miri minutes.
    if !cfg!(miri) {
        pages_of::<Page16K>();
        pages_of::<Page64K>();
    }
}

/// An environment with a note of every entry that is looked at or changed.
struct Watched<E> {
    inner: E,
    seen: Rc<RefCell<BTreeSet<(u64, usize)>>>,
}

impl<E> Watched<E> {
    fn note(&self, table: PhysicalAddress, first: usize, count: usize) {
        let entries = (first..first + count).map(|index| (table.0, index));
        self.seen.borrow_mut().extend(entries);
    }
}

// SAFETY: each call is handed on.
unsafe impl<E: TableEnvironment> TableEnvironment for Watched<E> {
    // Entries are sought by loads, which are noted.
    const BY_POINTER: bool = false;

    forward!(self.inner: reach reserve allocate free invalidate capabilities);
    forward!(self.inner after |(table, index)| { self.note(table, index, 1) }: load);
    forward!(self.inner after |(table, index, ..)| { self.note(table, index, 1) }: store exchange);
    forward!(self.inner after |(table, first, count, ..)| {
        self.note(table, first, count);
    }: fill update);
}

/// Others may change every entry meanwhile but the pages' own and those on the way to them.
/// A table that was behind the range may be somebody's data by the time it is looked at.
#[test]
fn nothing_beside_the_pages_and_the_way_to_them_is_looked_at() {
    let page = Page4K::SIZE.bytes();
    let geometry = PLAIN.geometry(Page4K::SIZE, 48, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    // Pages on both sides of a boundary of every level but the first.
    let boundary = bench.arch.entry_bytes(0);
    let from = boundary - 20 * page;
    bench.lay(from, boundary, 40 * page, RW, Leaves::PAGES);
    for (offset, count) in [
        (boundary - page, 1),
        (boundary, 1),
        (boundary - 4 * page, 4),
        (boundary - 20 * page, 20),
        (boundary - 3 * page, 7),
    ] {
        let start = bench.reference.address(offset);
        let bytes = count * page;
        let mut way = BTreeSet::new();
        bench
            .tables
            .visit(start, bytes, |entry| {
                way.insert((entry.table.0, entry.index));
                Visit::EVERYTHING
            })
            .unwrap();
        for valid in [false, true] {
            let seen = Rc::default();
            let environment = Watched {
                inner: host::environment(&bench.host, bench.setting.capabilities()),
                seen: Rc::clone(&seen),
            };
            let root = bench.tables.root_table();
            // SAFETY: the bench's tables, all reached by its host; nobody else uses them.
            let result = unsafe {
                lock_free::set_valid::<Page4K, _>(root, geometry, environment, start, bytes, valid)
            };
            assert_eq!(result, Ok(()));
            assert_eq!(*seen.borrow(), way, "{count} pages from {start}, {valid}");
        }
    }
}

/// A group, or a block, is not a page, whether or not it is valid: to change a part of it takes stores
/// to entries that are not the page's own.
#[test]
fn a_part_of_a_group_or_a_block_is_refused() {
    let page = Page4K::SIZE.bytes();
    let geometry = PLAIN.geometry(Page4K::SIZE, 48, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    let block = bench.arch.entry_bytes(2);
    let group = 16 * page;
    bench.lay(0, 0, block, RW, Leaves::LARGEST);
    bench.lay(block, block, group, RW, Leaves::LARGEST);
    for present_invalid in [false, true] {
        for (leaf, leaf_bytes) in [(0, block), (block, group)] {
            if present_invalid {
                bench.set_invalid(leaf, leaf_bytes).unwrap();
            }
            let before = bench.dump();
            bench.host.take_events();
            for (first, count) in [
                (0, 1),
                (5, 1),
                (leaf_bytes / page - 1, 1),
                (0, leaf_bytes / page),
            ] {
                let start = bench.reference.address(leaf + first * page);
                for valid in [false, true] {
                    let (result, stores, tlbi, dsb) =
                        set_valid_pages(&bench, start, count * page, valid);
                    let Err(TableError::InsideLeaf {
                        edge,
                        leaf: found,
                        leaf_bytes: bytes,
                        ..
                    }) = result
                    else {
                        panic!("{count} pages from {start}, {valid}: {result:?}");
                    };
                    let expected = bench.reference.address(leaf);
                    assert_eq!((found, bytes), (expected, leaf_bytes));
                    assert!(found < edge && edge.0 < found.0 + bytes, "{edge}");
                    assert_eq!((stores, tlbi, dsb), (0, 0, 0));
                }
            }
            assert_eq!(bench.dump(), before);
        }
    }
}

/// Reading live tables is safe, also beside this. Under Miri a load that is not atomic is a data race.
#[test]
fn a_query_may_run_meanwhile() {
    #[repr(align(4096))]
    struct Tables([[u64; 512]; 3]);

    let geometry = PLAIN.geometry(Page4K::SIZE, 39, VaRange::Lower);
    let mut tables = Box::new(Tables([[0; 512]; 3]));
    let at = tables.0.as_mut_ptr().expose_provenance() as u64;
    let rw = RW.encode(&geometry);
    tables.0[0][0] = (at + 0x1000) | 0b11;
    tables.0[1][0] = (at + 0x2000) | 0b11;
    tables.0[2][1] = Descriptor::leaf(&geometry, Level::L3, PhysicalAddress(0x5000), rw).0;
    let at = PhysicalAddress(Box::into_raw(tables).expose_provenance() as u64);
    // SAFETY: the tables lie at their own addresses until the end of the test. No page is needed.
    let environment = || FreeList::new(unsafe { Offset::new(0) }, PageSize::K4).environment();
    // SAFETY: the root of the tables above. No CPU walks them.
    let live = unsafe { Live::<PageTables<Page4K, _>>::from_root(at, geometry, environment()) };
    let live = live.unwrap();
    let page = VirtualAddress(0x1000);
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                let found = live.query(page).map(|there| there.output);
                assert!(found.is_none_or(|output| output.0 == 0x5000));
                std::thread::yield_now();
            }
        });
        for round in 1..=rounds {
            let valid = round % 2 == 0;
            // SAFETY: nothing uses the page, and no other code changes its entry.
            let done = unsafe {
                lock_free::set_valid::<Page4K, _>(at, geometry, environment(), page, 0x1000, valid)
            };
            assert_eq!(done, Ok(()));
            std::thread::yield_now();
        }
    });
    assert!(live.query(page).is_some());
    // SAFETY: the box of above, whose tables nothing uses any more.
    drop(unsafe {
        Box::from_raw(core::ptr::with_exposed_provenance_mut::<Tables>(
            at.0 as usize,
        ))
    });
}
