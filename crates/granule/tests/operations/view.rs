//! Views of tables that somebody else owns: what they show of whole tables, and what of damaged ones.

use crate::bench::{Bench, Setting};
use granule::arch::{
    Attributes, Descriptor, Geometry, IntermediateAddress, Kind, Page, Page4K, Page16K, Page64K,
    PageSize, Permissions, PhysicalAddress, Stage2Geometry, VaRange, VirtualAddress,
};
use granule::table::{Entry, Leaves, Stage2, TableError, TableView, Unread, UnreadTable, Visit};
use granule_testing::shape::PLAIN;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::ControlFlow;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

/// A view of a bench's tables shows the same entries as they do themselves, and the same mappings.
fn shows_the_same<P: Page>(va_bits: u32) {
    let geometry = PLAIN.geometry(P::SIZE, va_bits, VaRange::Upper);
    let mut bench = Bench::<P>::new(&geometry, Setting::PRIVATE);
    let page = P::SIZE.bytes();
    bench.lay(3 * page, 0x8000_0000, 40 * page, RW, Leaves::PAGES);
    bench.lay(1 << 30, 1 << 30, 1 << 30, RW, Leaves::LARGEST);
    let view = TableView::new(geometry, bench.tables.root_table(), |table, index| {
        Some(Descriptor(bench.host.word(table.0, index)))
    });
    let (mut own, mut seen) = (Vec::<Entry>::new(), Vec::<Entry>::new());
    bench.tables.visit_all(|entry| {
        own.push(*entry);
        Visit::EVERYTHING
    });
    view.visit_all(|entry| {
        seen.push(*entry.unwrap());
        Visit::EVERYTHING
    });
    assert!(own.len() > 40);
    assert_eq!(seen, own);
    own.clear();
    seen.clear();
    bench.tables.visit_runs(|entry| {
        own.push(*entry);
        Visit::EVERYTHING
    });
    view.visit_runs(|entry| {
        seen.push(*entry.unwrap());
        Visit::EVERYTHING
    });
    assert!(own.iter().any(|entry| entry.count > 1));
    assert_eq!(seen, own);
    for offset in [0, 3 * page, 42 * page + 7, 43 * page, (1 << 30) + 0x1234] {
        let address = bench.reference.address(offset);
        assert_eq!(view.query(address), Ok(bench.tables.query(address)));
    }
    let odd = view.visit(geometry.base(), page + 8, |_| Visit::EVERYTHING);
    assert!(matches!(odd, Err(TableError::Misaligned { .. })));
    let first = view.visit(geometry.base(), 4 * page, |entry| match entry {
        Ok(entry) if entry.kind == Kind::Leaf => ControlFlow::Break(entry.start),
        _ => ControlFlow::Continue(Visit::Descend),
    });
    let expected = bench.reference.address(3 * page);
    assert_eq!(first, Ok(ControlFlow::Break(expected)));
}

#[test]
fn a_view_shows_what_the_tables_show() {
    shows_the_same::<Page4K>(48);
    shows_the_same::<Page16K>(47);
    shows_the_same::<Page64K>(42);
}

const ROOT: PhysicalAddress = PhysicalAddress(0x10_0000);

/// A dump with some words; other words of its tables are zero, and other tables are not there.
struct Dump {
    tables: Vec<u64>,
    words: HashMap<(u64, usize), u64>,
    loads: Cell<u64>,
}

impl Dump {
    fn new(words: &[(u64, usize, u64)]) -> Self {
        let mut tables = vec![ROOT.0];
        tables.extend(words.iter().map(|word| word.0));
        let words = words
            .iter()
            .map(|&(table, index, word)| ((table, index), word));
        Self {
            tables,
            words: words.collect(),
            loads: Cell::new(0),
        }
    }

    fn read(&self, table: PhysicalAddress, index: usize) -> Option<Descriptor> {
        self.loads.set(self.loads.get() + 1);
        let word = self.words.get(&(table.0, index)).copied();
        let there = self.tables.contains(&table.0);
        there.then(|| Descriptor(word.unwrap_or_default()))
    }
}

/// 39 bits of address: the root is of level 1.
fn geometry() -> Geometry {
    PLAIN.geometry(PageSize::K4, 39, VaRange::Lower)
}

#[test]
fn a_missing_table_is_reported_and_the_rest_is_shown() {
    let missing = 0xdead_b000;
    let dump = Dump::new(&[(ROOT.0, 0, missing | 0b11), (ROOT.0, 1, 0x4000_0701)]);
    let view = TableView::new(geometry(), ROOT, |table, index| dump.read(table, index));
    let (mut leaves, mut left_out) = (Vec::new(), Vec::new());
    view.visit_all(|entry| {
        match entry {
            Ok(entry) if entry.kind == Kind::Leaf => leaves.push(entry.start),
            Ok(_) => {}
            Err(unread) => left_out.push(unread),
        }
        Visit::EVERYTHING
    });
    assert_eq!(leaves, [VirtualAddress(1 << 30)]);
    let parts = |unread: &UnreadTable| (unread.table.0, unread.level, unread.start.0, unread.why);
    let level = granule::arch::Level::L2;
    assert_eq!(left_out.len(), 1);
    assert_eq!(parts(&left_out[0]), (missing, level, 0, Unread::Unreadable));
    assert_eq!(
        left_out[0].to_string(),
        "the table of level 2 at 0xdeadb000, for 0x0, cannot be read"
    );
    let unread = view.query(VirtualAddress(0x20_0000)).unwrap_err();
    assert_eq!(
        parts(&unread),
        (missing, level, 0x20_0000, Unread::Unreadable)
    );
    assert_eq!(view.query(VirtualAddress(2 << 30)), Ok(None));
}

#[test]
fn a_table_that_leads_to_itself_is_not_visited_again() {
    // Every entry of the root points to the root.
    let words: Vec<_> = (0..512)
        .map(|index| (ROOT.0, index, ROOT.0 | 0b11))
        .collect();
    let dump = Dump::new(&words);
    let view = TableView::new(geometry(), ROOT, |table, index| dump.read(table, index));
    let (mut tables, mut loops) = (0, 0);
    view.visit_all(|entry| {
        match entry {
            Ok(entry) => tables += u32::from(entry.kind == Kind::Table),
            Err(unread) => loops += u32::from(unread.why == Unread::Loop),
        }
        Visit::EVERYTHING
    });
    assert_eq!((tables, loops), (512, 512));
    assert_eq!(dump.loads.get(), 512);
    // A CPU walks such tables, and the last level sees a page.
    let found = view.query(VirtualAddress(0x1000)).unwrap().unwrap();
    assert_eq!(found.output, ROOT);
}

#[test]
#[cfg_attr(miri, ignore = "a hundred whole tables take Miri minutes")]
fn tables_met_again_and_again_are_limited() {
    // Every entry of the root points to one table of level 2, each of whose entries points to one of
    // level 3: 512 + 512 * 512 tables are met.
    let (second, third) = (0x20_0000, 0x30_0000);
    let mut words: Vec<_> = (0..512)
        .map(|index| (ROOT.0, index, second | 0b11))
        .collect();
    words.extend((0..512).map(|index| (second, index, third | 0b11)));
    words.push((third, 0, 0x4000_0703));
    let dump = Dump::new(&words);
    let view = TableView::new(geometry(), ROOT, |table, index| dump.read(table, index)).limit(100);
    let (mut pages, mut limited) = (0, 0);
    view.visit_all(|entry| {
        match entry {
            Ok(entry) => pages += u32::from(entry.kind == Kind::Leaf),
            Err(unread) => limited += u32::from(unread.why == Unread::Limit),
        }
        Visit::EVERYTHING
    });
    // Root, one table of level 2, 98 of level 3; the other 414 and the root's other 511 are reported.
    assert_eq!((pages, limited), (98, 414 + 511));
    assert_eq!(dump.loads.get(), 100 * 512);
    // The next visit begins anew.
    let first = view.visit(VirtualAddress(0), 4096, |entry| {
        assert!(entry.is_ok());
        Visit::EVERYTHING
    });
    assert_eq!(first, Ok(ControlFlow::Continue(())));
}

#[test]
fn a_guests_root_at_the_end_of_memory_is_only_a_root_that_cannot_be_read() {
    let geometry = Stage2Geometry::new(&PLAIN.features(), PageSize::K4, 40).unwrap();
    assert_eq!(geometry.shape().root_tables(), 2);
    let root = PhysicalAddress(!0xfff);
    let view = TableView::<_, Stage2>::of_guest(geometry, root, |table, _| {
        (table == root).then_some(Descriptor::INVALID)
    });
    assert_eq!(view.query(IntermediateAddress(0)), Ok(None));
    let unread = view.query(IntermediateAddress(1 << 39)).unwrap_err();
    assert_eq!(unread.start, IntermediateAddress(1 << 39));
    assert_eq!(
        (unread.table, unread.why),
        (PhysicalAddress(0), Unread::Unreadable)
    );
}
