//! Memory for tables, and fixmap slots on it that insist on being used as slots are.

use crate::Can;
use granule::arch::{Descriptor, Geometry, Level, PageSize, PhysicalAddress, VirtualAddress};
use granule::linear::fixmap::{FixmapSlots, Slot};
use granule::table::{Maintenance, Reservation, TablePages, invalidate, publish};
use granule_trace::recorder::Counters;
use std::cell::Cell;

/// Where tables lie, far from all that is mapped here.
const TABLES: u64 = 1 << 46;
/// A word that no table contains, so that a page which was not zeroed is noticed.
const GARBAGE: u64 = 0xdead_beef_dead_beef;

/// Memory for tables, handed out a page at a time.
pub(crate) struct Pages {
    pub(crate) words: Vec<Cell<u64>>,
    pub(crate) page: u64,
    pub(crate) next: u64,
}

impl Pages {
    pub(crate) fn new(page: u64, pages: u64) -> Self {
        Self {
            words: vec![Cell::new(GARBAGE); (page / 8 * pages) as usize],
            page,
            next: 0,
        }
    }

    pub(crate) fn word(&self, table: PhysicalAddress, index: usize) -> &Cell<u64> {
        let page = (table.0 - TABLES) / self.page;
        assert!(page < self.next, "{table} was not given out");
        &self.words[(page * self.page / 8) as usize + index]
    }

    /// A pointer to a whole table, in cells, which may be written through it.
    pub(crate) fn pointer_to(&self, table: PhysicalAddress) -> *mut u64 {
        let inside = self.word(table, 0) as *const _ as usize - self.words.as_ptr() as usize;
        self.words.as_ptr().wrapping_byte_add(inside) as *mut u64
    }

    pub(crate) fn take(&mut self) -> Option<PhysicalAddress> {
        let table = TABLES + self.next * self.page;
        let left = self.words.len() as u64 * 8 / self.page - self.next;
        self.next += u64::from(left > 0);
        (left > 0).then_some(PhysicalAddress(table))
    }

    pub(crate) fn empty_root(&mut self) -> PhysicalAddress {
        let root = self.take().unwrap();
        for index in 0..self.page as usize / 8 {
            self.word(root, index).set(0);
        }
        root
    }
}

/// Slots that insist on being used as slots are, and count what is done with them.
pub(crate) struct Checked {
    pub(crate) pages: Pages,
    pub(crate) can: Can,
    pub(crate) shown: [Option<PhysicalAddress>; Slot::COUNT],
    pub(crate) counters: Counters,
    pub(crate) waits: u64,
    /// TLBIs not yet waited for.
    pub(crate) in_flight: bool,
}

impl Checked {
    pub(crate) fn new(pages: Pages, can: Can) -> Self {
        Self {
            pages,
            can,
            shown: [None; Slot::COUNT],
            counters: Counters::new(),
            waits: 0,
            in_flight: false,
        }
    }

    fn table(&self, slot: Slot) -> PhysicalAddress {
        self.shown[slot.number()].expect("a closed slot was used")
    }

    fn clear(&mut self, slot: Slot) {
        self.counters.stores.add(1);
        let shown = self.shown[slot.number()].take();
        assert!(shown.is_some(), "a closed slot was closed");
    }

    fn invalidate(&mut self, slots: usize) {
        let page = self.can.geometry.page_size().bytes();
        let what = granule::arch::tlbi::Invalidation {
            start: VirtualAddress(0xffff_ffff_e010_0000),
            bytes: slots as u64 * page,
            stride: page,
            scope: granule::arch::tlbi::TlbiScope::LastLevel,
            asid: None,
            level: Some(Level::L3),
        };
        let Can { geometry, tlb } = self.can;
        invalidate(&what, &geometry, tlb, |instruction| self.issue(instruction));
    }
}

// SAFETY: every access looks up what its slot shows, and each page is given out once.
unsafe impl FixmapSlots for Checked {
    fn geometry(&self) -> &Geometry {
        &self.can.geometry
    }

    fn pages(&self) -> Option<TablePages> {
        let mut sizes = PageSize::ALL.into_iter();
        let page_size = sizes.find(|it| it.bytes() == self.pages.page)?;
        let end = PhysicalAddress(TABLES + self.pages.words.len() as u64 * 8);
        Some(TablePages { page_size, end })
    }

    fn reserve(&mut self, tables: usize) -> Reservation {
        let all = self.pages.words.len() as u64 * 8 / self.pages.page;
        if self.pages.next + tables as u64 <= all {
            Reservation::Granted
        } else {
            Reservation::Refused
        }
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.counters.tables.add(1);
        self.pages.take()
    }

    fn issue(&mut self, instruction: Maintenance) {
        let counters = &self.counters;
        match instruction {
            Maintenance::DsbIshst => counters.dsb.add(1),
            Maintenance::DsbIsh => {
                counters.dsb.add(1);
                self.waits += u64::from(self.in_flight);
                self.in_flight = false;
            }
            Maintenance::Isb => counters.isb.add(1),
            Maintenance::Tlbi(..) => {
                counters.tlbi.add(1);
                self.in_flight = true;
            }
        }
    }

    fn address(&self, slot: Slot) -> VirtualAddress {
        VirtualAddress(0xffff_ffff_e010_0000 + (slot.number() << 16) as u64)
    }

    unsafe fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        assert!(
            !self.in_flight,
            "a slot was opened before its TLBI was waited for"
        );
        self.counters.stores.add(1);
        let before = self.shown[slot.number()].replace(table);
        assert!(before.is_none(), "an open slot was opened");
        publish(|instruction| self.issue(instruction));
    }

    fn close(&mut self, slot: Slot) {
        self.clear(slot);
        self.invalidate(1);
    }

    fn close_series(&mut self, count: usize) {
        (0..count).for_each(|index| self.clear(Slot::Series(index)));
        self.invalidate(count);
    }

    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor {
        let loaded = self.pages.word(self.table(slot), index).get();
        assert_ne!(loaded, GARBAGE, "an entry was read before it was zeroed");
        Descriptor(loaded)
    }

    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        self.counters.stores.add(1);
        self.pages.word(self.table(slot), index).set(descriptor.0);
    }
}
