//! Table pages of an operation: reserved before the first change, taken one by one.
//!
//! An environment that [reserves](TableEnvironment::reserve) keeps the pages itself. For any other the
//! tree allocates them beforehand and holds them in a chain through their first entries, which needs
//! no memory. Pages that an operation reserved and did not use serve the next one.

#![allow(unsafe_code, reason = "pages that never became tables")]

use super::environment::{Reservation, TableRun};
use super::pending::FreedTable;
use super::stage::Stage;
use super::{PageTables, TableEnvironment, Visibility};
use crate::arch::page_size::PageChoice;
use crate::arch::{Descriptor, PhysicalAddress};

/// The pages that a tree holds for its next tables.
#[derive(Debug)]
pub(super) struct Held {
    /// The first page, whose first entry has the address of the next.
    first: PhysicalAddress,
    count: usize,
}

impl Held {
    pub(super) const NOTHING: Self = Self {
        first: PhysicalAddress(0),
        count: 0,
    };
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Ensures that the next `tables` pages can be taken, or changes nothing and returns false.
    #[inline(always)]
    pub(super) fn reserve(&mut self, tables: usize) -> bool {
        match self.environment.reserve(tables) {
            Reservation::Granted => true,
            Reservation::Refused => false,
            Reservation::Unsupported => self.hold(tables),
        }
    }

    /// Allocates pages until `tables` are held, or none.
    #[inline(never)]
    fn hold(&mut self, tables: usize) -> bool {
        let before = self.held.count;
        while self.held.count < tables {
            let Some(page) = self.environment.allocate() else {
                self.release(before);
                return false;
            };
            let next = Descriptor(self.held.first.0);
            self.store(page, 0, next, Visibility::Private);
            self.held.first = page;
            self.held.count += 1;
        }
        true
    }

    /// Takes a page that was reserved.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<PhysicalAddress> {
        if self.held.count > 0 {
            Some(self.take_held())
        } else {
            self.environment.allocate()
        }
    }

    /// Takes at most `most` pages that were reserved, in one run.
    #[inline(always)]
    pub(super) fn take_run(&mut self, most: usize) -> Option<TableRun> {
        if self.held.count > 0 {
            let first = self.take_held();
            Some(TableRun { first, count: 1 })
        } else {
            self.environment.allocate_run(most)
        }
    }

    /// Takes the first held page, of at least one.
    #[inline(never)]
    fn take_held(&mut self) -> PhysicalAddress {
        let page = self.held.first;
        self.held.first = PhysicalAddress(self.load(page, 0).0);
        self.held.count -= 1;
        page
    }

    /// Frees held pages until `left` are left.
    #[inline(never)]
    pub(super) fn release(&mut self, left: usize) {
        while self.held.count > left {
            let page = self.take_held();
            // SAFETY: the page was in the private chain `held`, so it never became a table.
            self.environment
                .free(unsafe { FreedTable::unreachable(page) });
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::{FreeList, Live, Maintenance, Offset, TableError};
    use super::*;
    use crate::arch::{
        Attributes, CpuFeatures, Geometry, Page4K, PageSize, Permissions, Regime, VaRange,
        VirtualAddress,
    };
    use crate::forward;
    use crate::table::piece::Leaves;
    use std::vec;
    use std::vec::Vec;

    /// An environment of four functions.
    struct Four(FreeList<Offset>);

    // SAFETY: the list keeps the promises. No CPU walks the tables.
    unsafe impl TableEnvironment for Four {
        forward!(self.0: reach allocate free);
        fn invalidate(&mut self, _instruction: Maintenance) {}
    }

    type Tables = PageTables<Page4K, Four>;

    /// A tree whose environment has so many pages besides the root, which it holds nothing of yet.
    fn tables(memory: &mut Vec<u64>, pages: usize) -> Tables {
        *memory = vec![0; (pages + 2) * 512];
        let start = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(4096);
        let end = start + (pages as u64 + 1) * 4096;
        // SAFETY: the vector is nobody else's, and outlives the tables.
        let list = unsafe {
            let mut list = FreeList::new(Offset::new(0), PageSize::K4);
            list.add(PhysicalAddress(start), PhysicalAddress(end));
            list
        };
        let tables = PageTables::new(geometry(), Four(list)).unwrap();
        assert_eq!((left(&tables), tables.held.count), (pages as u64, 0));
        tables
    }

    fn geometry() -> Geometry {
        let cpu = CpuFeatures {
            mmfr0: 5,
            ..CpuFeatures::NONE
        };
        Geometry::new(&cpu, PageSize::K4, 48, VaRange::Lower, Regime::El1And0).unwrap()
    }

    fn left(tables: &Tables) -> u64 {
        tables.environment().0.available()
    }

    /// Maps a page, which takes three tables.
    fn map(tables: &mut Tables) -> Result<(), TableError> {
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        let output = PhysicalAddress(0x5000);
        tables.map(
            VirtualAddress(0x1000),
            output,
            0x1000,
            attributes,
            Leaves::PAGES,
        )
    }

    /// No CPU walks the tables in spite of the call.
    fn live(tables: Tables) -> Live<Tables> {
        // SAFETY: as said.
        unsafe { tables.make_live() }
    }

    #[test]
    fn pages_that_are_held_come_first_and_are_not_held_twice() {
        let mut memory = Vec::new();
        let mut tables = tables(&mut memory, 8);
        assert!(tables.reserve(5) && tables.reserve(5) && tables.reserve(2));
        assert_eq!((left(&tables), tables.held.count), (3, 5));
        map(&mut tables).unwrap();
        assert_eq!((left(&tables), tables.held.count), (3, 2));
        // One more is allocated for the three that the next operation needs.
        tables.unmap(VirtualAddress(0x1000), 0x1000).unwrap();
        assert_eq!((left(&tables), tables.held.count), (6, 2));
        map(&mut tables).unwrap();
        assert_eq!((left(&tables), tables.held.count), (5, 0));
        tables.destroy();
    }

    #[test]
    fn a_shortage_leaves_what_was_held_before() {
        for held in 0..4 {
            let mut memory = Vec::new();
            let mut tables = tables(&mut memory, 4);
            assert!(tables.reserve(held));
            let first = tables.held.first;
            assert!(!tables.reserve(5));
            let now = (left(&tables) as usize, tables.held.count, tables.held.first);
            assert_eq!(now, (4 - held, held, first));
            // The chain is whole.
            assert_eq!(tables.destroy().0.available(), 5);
        }
    }

    #[test]
    fn pages_that_are_left_are_freed_with_the_tree() {
        type End = fn(Tables) -> Four;
        let ends: [(u64, End); 5] = [
            (6, |tables| tables.destroy()),
            // The root and three tables stay.
            (2, |tables| tables.into_parts().1),
            (2, |tables| live(tables).into_parts().1),
            // SAFETY: no CPU walked the tables.
            (6, |tables| unsafe { live(tables).retire() }.destroy()),
            // Another root, too.
            (1, |tables| match tables.begin_another(geometry()) {
                Ok((_, another)) => another.into_parts().1,
                Err((error, _)) => panic!("{error}"),
            }),
        ];
        for (number, (expected, end)) in ends.into_iter().enumerate() {
            let mut memory = Vec::new();
            let mut tables = tables(&mut memory, 5);
            map(&mut tables).unwrap();
            // The last two.
            assert!(tables.reserve(2));
            assert_eq!(left(&tables), 0);
            assert_eq!(end(tables).0.available(), expected, "{number}");
        }
    }
}
