//! Through slots of a fixmap: every load and store has to go through a slot that shows the table it
//! is for.

use super::{RAM, check, pieces, shown};
use crate::bench::{Bench, capabilities};
use crate::machine::{Cpu, Pages, Shared, SharedPages, TABLES};
use crate::shape::Shape;
use granule::arch::tlbi::{Invalidation, TlbiScope};
use granule::arch::{
    Attributes, Descriptor, Geometry, Level, Page, Page4K, Page16K, Page64K, Permissions,
    PhysicalAddress, VirtualAddress,
};
use granule::linear::fixmap::{FixmapSlots, Slot, create};
use granule::linear::{Barriers, Strategy};
use granule::table::{
    Leaves, Live, Maintenance, PageTables, Reservation, TableEnvironment, TablePages, Visit,
    invalidate, publish,
};
use granule_model::{Access, Event, Outcome};
use std::rc::Rc;

/// A fixmap of all the slots there are, in a table that the tree had before.
pub(super) struct Fixmap {
    geometry: Geometry,
    cpu: Cpu<Shared>,
    pub(super) pages: SharedPages,
    /// The descriptor of the first slot, and the address that it translates.
    entries: u64,
    va: u64,
    /// The address that each slot maps.
    pub(super) open: [Option<u64>; Slot::COUNT],
}

impl Fixmap {
    const fn page(&self) -> u64 {
        self.geometry.page_size().bytes()
    }

    fn set(&self, slot: Slot, descriptor: Descriptor) {
        let store = Event::store(self.entries + slot.number() as u64 * 8, descriptor.0);
        self.cpu.world.borrow_mut().event(store);
    }

    fn forget(&mut self, slot: Slot, count: usize) {
        let page = self.page();
        let what = Invalidation {
            start: self.address(slot),
            bytes: page * count as u64,
            stride: page,
            scope: TlbiScope::LastLevel,
            asid: None,
            level: Some(Level::L3),
        };
        let can = self.cpu.can;
        invalidate(&what, &self.geometry, can, |instruction| {
            self.cpu.invalidate(instruction);
        });
    }

    fn shown(&self, slot: Slot) -> u64 {
        match self.open[slot.number()] {
            Some(table) => table,
            None => panic!("{slot:?} is not open"),
        }
    }
}

// SAFETY: a slot's loads and stores go to the table it was opened for, and each is checked to be
// what the slot's address translates to. Pages are given out once.
unsafe impl FixmapSlots for Fixmap {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn pages(&self) -> Option<TablePages> {
        None
    }

    fn reserve(&mut self, tables: usize) -> Reservation {
        self.pages.borrow().reserve(tables)
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.pages.borrow_mut().allocate()
    }

    fn issue(&mut self, instruction: Maintenance) {
        self.cpu.invalidate(instruction);
    }

    fn address(&self, slot: Slot) -> VirtualAddress {
        VirtualAddress(self.va + slot.number() as u64 * self.page())
    }

    unsafe fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        let geometry = self.geometry;
        let bits = Attributes::normal(Permissions::READ_WRITE).encode(&geometry);
        self.set(slot, Descriptor::leaf(&geometry, Level::L3, table, bits));
        publish(|instruction| self.cpu.invalidate(instruction));
        self.open[slot.number()] = Some(table.0);
    }

    fn close(&mut self, slot: Slot) {
        self.set(slot, Descriptor::INVALID);
        self.forget(slot, 1);
        self.open[slot.number()] = None;
    }

    fn close_series(&mut self, count: usize) {
        for index in 0..count {
            self.set(Slot::Series(index), Descriptor::INVALID);
        }
        self.forget(Slot::Series(0), count);
        for index in 0..count {
            self.open[Slot::Series(index).number()] = None;
        }
    }

    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor {
        let table = self.shown(slot);
        Descriptor(
            self.cpu
                .world
                .borrow()
                .model
                .descriptor(table + index as u64 * 8),
        )
    }

    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        let address = self.shown(slot) + index as u64 * 8;
        let va = self.va + slot.number() as u64 * self.page() + index as u64 * 8;
        let mut world = self.cpu.world.borrow_mut();
        let outcomes = world.model.access(0, va, Access::WRITE);
        let right = matches!(outcomes[..], [Outcome::Memory(to)] if to.address == address);
        assert!(right, "{slot:?} shows something else: {outcomes:?}");
        world.event(Event::store(address, descriptor.0));
    }
}

/// Tables with a fixmap in them, far from the rest.
pub(super) fn with_fixmap<P: Page>(shape: Shape) -> (Bench<P>, Fixmap) {
    let mut bench = Bench::<P>::of(shape, 1);
    let geometry = bench.geometry;
    let page = P::SIZE.bytes();
    // A page far from the rest, in the table that the slots are in.
    let table = page * P::SIZE.entries() as u64;
    let va = shown(&geometry, geometry.span() - table);
    let attributes = Attributes::normal(Permissions::READ);
    let (held, output) = (VirtualAddress(va + 32 * page), PhysicalAddress(RAM / 2));
    let held = bench
        .tables
        .map(held, output, page, attributes, Leaves::PAGES);
    assert_eq!(held, Ok(()));
    let mut entries = 0;
    bench.tables.visit_all(|entry| {
        entries = entry.table.0;
        Visit::EVERYTHING
    });
    let fixmap = Fixmap {
        geometry,
        cpu: Cpu {
            world: Rc::clone(&bench.world),
            can: capabilities(&shape),
        },
        pages: Pages::from(&bench.world, page, TABLES + 0x1000 * page),
        entries,
        va,
        open: [None; Slot::COUNT],
    };
    (bench, fixmap)
}

fn through<P: Page>(shape: Shape, leaves: Leaves, strategy: Strategy, barriers: Barriers) {
    let (bench, mut fixmap) = with_fixmap::<P>(shape);
    let geometry = bench.geometry;
    let pieces = pieces(&geometry, leaves);
    let root = bench.tables.root_table();
    assert_eq!(
        // SAFETY: the bench's own tree, which nothing else changes, and slots that are new.
        unsafe { create::<P, _>(&mut fixmap, root, &pieces, strategy, barriers) }.map(|_| ()),
        Ok(()),
        "{shape:?} {strategy:?}"
    );
    assert_eq!(fixmap.open, [None; Slot::COUNT], "{strategy:?} {barriers}");
    check(&bench.world, &shape, &geometry, &pieces, 4);
    // The library reads the tables back as if it had made them by `map`.
    // SAFETY: the root and all below are the model's memory, which nobody else changes now.
    let tables = unsafe {
        let machine = crate::machine::machine(&bench.world, P::SIZE, capabilities(&shape));
        Live::<PageTables<P, _>>::from_root(root, geometry, machine)
    };
    let Ok(tables) = tables else {
        panic!("{shape:?}: the same page size");
    };
    for piece in &pieces {
        let found = tables.query(piece.start).map(|mapping| mapping.output);
        assert_eq!(found, Some(piece.output));
    }
}

#[test]
fn through_a_fixmap() {
    for strategy in Strategy::ALL {
        for barriers in [Barriers::Entry, Barriers::Table] {
            for leaves in [Leaves::LARGEST, Leaves::PAGES] {
                through::<Page4K>(Shape::kernel(39), leaves, strategy, barriers);
            }
            through::<Page4K>(Shape::kernel(48), Leaves::PAGES, strategy, barriers);
        }
        let barriers = Barriers::Table;
        through::<Page16K>(Shape::kernel(47), Leaves::LARGEST, strategy, barriers);
        through::<Page64K>(Shape::kernel(42), Leaves::LARGEST, strategy, barriers);
    }
}
