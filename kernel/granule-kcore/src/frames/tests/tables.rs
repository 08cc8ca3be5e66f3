//! Pages for tables: reserved pages stay available, whatever others allocate.

#![allow(unsafe_code, reason = "tables that nothing writes")]

use super::super::tables::{Source, Tables};
use super::*;
use granule::table::FreedTable;
use std::cell::RefCell;

/// Frames shared with other users, as behind the kernel's lock.
struct Shared<'s, 'm>(&'s RefCell<Frames<'m>>);

impl Source for Shared<'_, '_> {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        what(&mut self.0.borrow_mut())
    }
}

fn tables<S: Source>(source: S) -> Tables<S> {
    // SAFETY: no table is written in these tests.
    unsafe { Tables::new(source) }
}

#[test]
fn reserved_pages_are_there_when_all_others_are_taken() {
    for page_size in PageSize::ALL {
        let mut memory = uninitialised(100);
        let frames = RefCell::new(filled(page_size, 0x40_0001, 100, &mut memory));
        let mut tables = tables(Shared(&frames));
        assert!(!tables.reserve(101));
        assert_eq!(tables.held(), 0);
        assert!(tables.reserve(37));
        let mut others = Vec::new();
        while let Some(frame) = frames.borrow_mut().allocate(0) {
            others.push(frame);
        }
        assert_eq!(others.len(), 63);
        // Reserving the pages already held needs nothing more; one page more is not available.
        assert!(tables.reserve(37));
        assert!(!tables.reserve(38));

        let mut pages = Vec::new();
        while tables.held() > 0 {
            let run = tables.allocate_run(tables.held() as usize).unwrap();
            assert!((1..=37).contains(&run.count));
            pages.extend((0..run.count as u64).map(|at| run.first.0 + at * page_size.bytes()));
        }
        assert_eq!(tables.allocate_run(1), None);
        let mut all: Vec<_> = pages.iter().map(|page| page / page_size.bytes()).collect();
        all.extend(others.iter().map(|frame| frame.0));
        all.sort_unstable();
        assert_eq!(all, (0x40_0001..0x40_0001 + 100).collect::<Vec<_>>());

        // Runs come back page by page.
        for page in shuffled(&pages) {
            tables.free(unused(page));
        }
        assert_eq!(frames.borrow().free_frames(), 37);
        tables.free(unused(pages[0]));
        assert_eq!(frames.borrow().refused(), 1);
    }
}

#[test]
fn unused_reserved_pages_go_back_with_the_tables() {
    let mut memory = uninitialised(16);
    let frames = RefCell::new(filled(PageSize::K4, 16, 16, &mut memory));
    {
        let mut tables = tables(Shared(&frames));
        assert!(tables.reserve(10));
        assert_eq!(tables.allocate_run(4).map(|run| run.count), Some(4));
        assert_eq!((tables.held(), frames.borrow().reserved()), (6, 6));
        // Left-over reservations serve the next operation.
        assert!(tables.reserve(8));
        assert_eq!(frames.borrow().reserved(), 8);
    }
    assert_eq!(frames.borrow().reserved(), 0);
    assert_eq!(frames.borrow().allocated(), 4);
}

#[test]
fn without_a_reservation_single_pages_come_as_long_as_there_are_any() {
    let mut memory = uninitialised(3);
    let mut frames = filled(PageSize::K64, 0, 3, &mut memory);
    let mut tables = tables(&mut frames);
    assert_eq!(tables.allocate_run(0), None);
    let mut pages: Vec<_> = core::iter::from_fn(|| tables.allocate_run(9)).collect();
    pages.sort_unstable_by_key(|run| run.first);
    let expected = [0, 0x1_0000, 0x2_0000].map(|address| (PhysicalAddress(address), 1));
    assert!(pages.iter().map(|run| (run.first, run.count)).eq(expected));
    assert!(!tables.reserve(1));
    drop(tables);
    assert_eq!((frames.allocated(), frames.reserved()), (3, 0));
}

#[test]
fn runs_are_as_long_as_asked_for_where_memory_allows() {
    let mut memory = uninitialised(1024);
    let mut frames = filled(PageSize::K4, 0, 1024, &mut memory);
    let mut tables = tables(&mut frames);
    assert!(tables.reserve(513));
    let run = tables.allocate_run(513).unwrap();
    assert_eq!(run.count, 512);
    assert_eq!(tables.allocate_run(513).map(|run| run.count), Some(1));
}

/// A page that never became a table.
fn unused(page: u64) -> FreedTable {
    // SAFETY: no tables are made in this test.
    unsafe { FreedTable::unreachable(PhysicalAddress(page)) }
}
