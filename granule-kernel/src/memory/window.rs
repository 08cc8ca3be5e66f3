//! Tables through fixmap slots: what the strategy `base` stands on.
//!
//! One slot a level, each a page of the fixmap. Opening stores the slot's descriptor with the
//! barriers a kernel mapping takes; closing clears it and invalidates the TLB for the page.

use crate::layout;
use granule::arch::geometry::{Geometry, Half};
use granule::arch::page_size::{Level, Page};
use granule::arch::tlbi::Reach as TlbiReach;
use granule::arch::tlbi::{Invalidation, TlbCapabilities, TlbiOp};
use granule::arch::{Attributes, Descriptor, Kind, Permissions, PhysicalAddress, VirtualAddress};
use granule::linear::window::{Slot, Windows};
use granule::memblock::Direction;
use granule::table::{
    self, Counters, Environment, Leaves, Maintenance, PageTables, TableAllocator, TableError,
    TableRun, Visibility,
};

/// The slots; the table that translates them is reached, table pages are had (from early memory,
/// mapped or not) and the TLB is kept by `parts`.
#[derive(Debug)]
pub(crate) struct Fixmap<'c, E> {
    parts: E,
    counters: &'c Counters,
    /// The last-level table that translates the slots, and the first slot's entry in it.
    table: PhysicalAddress,
    first: usize,
    step: usize,
    attributes: u64,
    geometry: Geometry,
}

/// The virtual address of a level's slot.
pub(crate) fn slot_address(slot: Slot) -> VirtualAddress {
    // Slot 0 of the fixmap is the console's; levels -1 to 3 follow it.
    let number = (slot.0.number() + 2) as u64;
    VirtualAddress(layout::FIXMAP_VADDR + number * layout::FIXMAP_SLOT_BYTES)
}

impl<'c, E: Environment> Fixmap<'c, E> {
    /// Finds the table that translates the slots, making it if the console's slot did not.
    pub(crate) fn new<P: Page>(
        tables: &mut PageTables<P, impl Environment>,
        spare: PhysicalAddress,
        counters: &'c Counters,
        parts: E,
    ) -> Result<Self, TableError> {
        debug_assert!(tables.geometry().half() == Half::Upper);
        let geometry = *tables.geometry();
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        let start = slot_address(Slot(Level::Minus1));
        let page = P::SIZE.bytes();
        tables.map(start, spare, page, attributes, Leaves::PAGES)?;
        let mut place = None;
        tables.visit(start, page, |entry| {
            if entry.kind == Kind::Leaf {
                place = Some((entry.table, entry.index));
            }
            true
        })?;
        let (table, first) = place.ok_or(TableError::NotMapped { address: start })?;
        let step = (layout::FIXMAP_SLOT_BYTES >> P::SIZE.shift()) as usize;
        let attributes = attributes.encode(&geometry);
        let mut fixmap = Self {
            parts,
            counters,
            table,
            first,
            step,
            attributes,
            geometry,
        };
        fixmap.clear(Slot(Level::Minus1));
        Ok(fixmap)
    }

    fn index(&self, slot: Slot) -> usize {
        self.first + (slot.0.number() + 1) as usize * self.step
    }

    fn clear(&mut self, slot: Slot) {
        let index = self.index(slot);
        // SAFETY: the entry is this slot's in the fixmap's table, which `new` found mapped; this
        // CPU is the only one that runs.
        unsafe {
            self.parts
                .store(self.table, index, Descriptor::INVALID, Visibility::Live)
        };
        let address = slot_address(slot);
        let page = self.geometry.page_size().bytes();
        let what = Invalidation {
            start: address,
            bytes: page,
            stride: page,
            reach: TlbiReach::LastLevel,
            asid: None,
            level: Some(Level::L3),
        };
        table::invalidate(&mut self.parts, &what);
    }
}

// SAFETY: a slot's address translates to the table it was last opened for, because opening stores
// its descriptor and closing invalidates the TLB for it.
unsafe impl<E: Environment> Windows for Fixmap<'_, E> {
    fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        let descriptor = Descriptor::leaf(&self.geometry, Level::L3, table, self.attributes);
        let index = self.index(slot);
        // SAFETY: as in `clear`.
        unsafe {
            self.parts
                .store(self.table, index, descriptor, Visibility::Live)
        };
        table::publish(&mut self.parts);
    }

    fn close(&mut self, slot: Slot) {
        self.clear(slot);
    }

    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor {
        let entry = slot_address(slot).0 as *const u64;
        // SAFETY: the caller has the slot open, so a whole table is mapped there.
        Descriptor(unsafe { entry.add(index).read_volatile() })
    }

    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        self.counters.add(|counts| counts.stores += 1);
        let entry = slot_address(slot).0 as *mut u64;
        // SAFETY: as for `load`.
        unsafe { entry.add(index).write_volatile(descriptor.0) };
    }
}

// SAFETY: every call goes to the allocator.
unsafe impl<E: TableAllocator> TableAllocator for Fixmap<'_, E> {
    fn reserve(&mut self, tables: usize) -> bool {
        self.parts.reserve(tables)
    }

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        self.parts.allocate(most)
    }

    fn free(&mut self, table: PhysicalAddress) {
        self.parts.free(table);
    }
}

impl<E: Maintenance> Maintenance for Fixmap<'_, E> {
    fn capabilities(&self) -> &TlbCapabilities {
        self.parts.capabilities()
    }
    fn dsb_ishst(&mut self) {
        self.parts.dsb_ishst();
    }
    fn dsb_ish(&mut self) {
        self.parts.dsb_ish();
    }
    fn isb(&mut self) {
        self.parts.isb();
    }
    fn tlbi(&mut self, op: TlbiOp) {
        self.parts.tlbi(op);
    }
}

/// Table pages straight from early memory, wherever it is: mapped or not.
#[derive(Debug)]
pub(crate) struct EarlyTables<'m> {
    memory: &'m mut crate::tree::Memory,
    page_bytes: u64,
}

impl<'m> EarlyTables<'m> {
    /// Table pages of `page_bytes` from `memory`.
    pub(crate) const fn new(memory: &'m mut crate::tree::Memory, page_bytes: u64) -> Self {
        Self { memory, page_bytes }
    }
}

// SAFETY: early memory gives each range out once and knows only RAM that is mapped or about to be.
unsafe impl TableAllocator for EarlyTables<'_> {
    fn reserve(&mut self, tables: usize) -> bool {
        let needed = tables as u64 * self.page_bytes;
        self.memory
            .free_pages()
            .map(|range| range.len())
            .sum::<u64>()
            >= needed
    }

    fn allocate(&mut self, _most: usize) -> Option<TableRun> {
        let (size, align) = (self.page_bytes, self.page_bytes);
        let first = self
            .memory
            .allocate(size, align, 0..u64::MAX, Direction::TopDown)
            .ok()?;
        Some(TableRun {
            first: PhysicalAddress(first),
            count: 1,
        })
    }

    fn free(&mut self, table: PhysicalAddress) {
        super::release::give_back(self.memory, table.0, self.page_bytes);
    }
}
