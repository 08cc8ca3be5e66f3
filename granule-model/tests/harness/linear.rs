//! The strategies that make the linear map, on live tables of the model: through the map itself
//! (`direct`), and through slots of a fixmap (the published ones).

use crate::bench::{Bench, capabilities, model, turn_on};
use crate::machine::{Cpu, Memory, Pages, Shared, TABLES, World};
use crate::random::Random;
use crate::reference::{Reference, Stretch};
use crate::shape::Shape;
use granule::arch::tlbi::{Invalidation, Reach, TlbCapabilities, TlbiOp};
use granule::arch::{
    Attributes, Descriptor, Geometry, Level, Page, Page4K, Page16K, Page64K, Permissions,
    PhysicalAddress, VirtualAddress,
};
use granule::linear::Census;
use granule::linear::direct::{self, Arena, HasArena};
use granule::linear::window::{Slot, WindowBuilder, Windows};
use granule::linear::{Barriers, Published, Strategy};
use granule::table::{
    Leaves, Liveness, Maintenance, PageTables, Parts, Piece, TableAllocator, TableError, TableRun,
    invalidate, publish,
};
use granule_model::{Access, EventKind, Order, Outcome};
use std::rc::Rc;

/// Where RAM begins that the map shows; it is shown at the beginning of the half.
const RAM: u64 = 0x1_0000_0000;

/// Where the linear map shows a physical address.
const fn shown(geometry: &Geometry, physical: u64) -> u64 {
    geometry.base().0.wrapping_add(physical)
}

/// RAM with holes, as firmware leaves it: aligned and not, one piece with pages only.
fn pieces(geometry: &Geometry, leaves: Leaves) -> Vec<Piece> {
    let page = geometry.page_size().bytes();
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    let read_only = Attributes::normal(Permissions::READ);
    let table = page * geometry.page_size().entries() as u64;
    [
        (0, 2 * table, attributes, leaves),
        (2 * table, 3 * page, read_only, Leaves::PAGES),
        (2 * table + 3 * page, table, attributes, leaves),
        (4 * table + page, 40 * page, attributes, leaves),
        (6 * table, table, attributes, leaves),
    ]
    .map(|(at, bytes, attributes, leaves)| Piece {
        start: VirtualAddress(shown(geometry, RAM + at)),
        output: PhysicalAddress(RAM + at),
        bytes,
        attributes,
        leaves,
    })
    .to_vec()
}

/// What the CPUs find is what the pieces say, and no rule was broken.
fn check(world: &Shared, shape: &Shape, geometry: &Geometry, pieces: &[Piece], seed: u64) {
    let mut reference = Reference::default();
    for piece in pieces {
        let stretch = Stretch {
            hidden: false,
            bytes: piece.bytes,
            output: piece.output.0,
            attributes: piece.attributes,
        };
        reference.map(piece.output.0, stretch);
    }
    let mut world = world.borrow_mut();
    world.event(EventKind::Sync);
    let isb = EventKind::Barrier(granule_model::Barrier::Isb);
    for cpu in 0..shape.cpus {
        world.cpu = cpu;
        world.event(isb);
    }
    let mut random = Random::new(seed);
    let page = geometry.page_size().bytes();
    for piece in pieces {
        let (from, to) = (piece.output.0, piece.output_end().0);
        let mut offsets = vec![from - 1, from, from + page, to - 1, to];
        offsets.extend((0..20).map(|_| from + random.below(piece.bytes)));
        for offset in offsets {
            let cpu = random.below(u64::from(shape.cpus)) as u32;
            let access = random.of(&[Access::READ, Access::WRITE]);
            let va = shown(geometry, offset);
            let outcomes = world.model.access(cpu, va, access);
            let expected = reference.outcome(geometry, offset, access);
            assert_eq!(outcomes, [expected], "{shape:?} {va:#x}");
        }
    }
    let found: Vec<String> = world
        .model
        .violations()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, Vec::<String>::new(), "{shape:?}");
}

/// The arena's pages, which the linear map shows by the time they are given out.
struct ArenaPages {
    arena: Arena,
    world: Shared,
    geometry: Geometry,
}

impl HasArena for ArenaPages {
    fn arena(&mut self) -> Option<&mut Arena> {
        Some(&mut self.arena)
    }
}

// SAFETY: the arena gives each page out once.
unsafe impl TableAllocator for ArenaPages {
    fn reserve(&mut self, tables: usize) -> bool {
        self.arena.reserve(tables)
    }

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let run = self.arena.allocate(most)?;
        let page = self.geometry.page_size().bytes();
        let (address, bytes) = (run.first.0, run.count as u64 * page);
        let mut world = self.world.borrow_mut();
        for table in (0..run.count as u64).map(|table| address + table * page) {
            // What is not the pool is written through the map.
            if table >= RAM {
                let cpu = world.cpu;
                let va = shown(&self.geometry, table);
                let outcomes = world.model.access(cpu, va, Access::WRITE);
                let shown = matches!(outcomes[..], [Outcome::Memory(to)] if to.address == table);
                assert!(
                    shown,
                    "the table at {table:#x} is not shown yet: {outcomes:?}"
                );
            }
        }
        world.event(EventKind::TableObtained { address, bytes });
        Some(run)
    }

    fn free(&mut self, table: PhysicalAddress) {
        self.arena.free(table);
        let (address, bytes) = (table.0, self.geometry.page_size().bytes());
        let freed = EventKind::TableFreed { address, bytes };
        self.world.borrow_mut().event(freed);
    }
}

type WithArena = Parts<Memory<Shared>, ArenaPages, Cpu<Shared>>;

/// Live tables with an arena of so many pages, one of which the root takes.
fn with_arena<P: Page>(shape: &Shape, pool: u64) -> (Shared, PageTables<P, WithArena>) {
    let geometry = shape.geometry::<P>();
    let page = P::SIZE.bytes();
    let world = World::shared(model(shape), 1);
    let (start, end) = (
        PhysicalAddress(TABLES),
        PhysicalAddress(TABLES + pool * page),
    );
    let parts = Parts {
        memory: Memory(Rc::clone(&world)),
        allocator: ArenaPages {
            // SAFETY: nobody else uses the model's memory there, all of which is reached.
            arena: unsafe { Arena::new(start, end, P::SIZE) },
            world: Rc::clone(&world),
            geometry,
        },
        maintenance: Cpu {
            world: Rc::clone(&world),
            can: capabilities(shape, geometry),
        },
    };
    let mut tables = match PageTables::<P, _>::new(geometry, parts) {
        Ok(tables) => tables,
        Err(error) => panic!("{shape:?}: {error}"),
    };
    turn_on(&world, shape, &geometry, tables.root().0);
    tables.make_live();
    (world, tables)
}

/// The map of pieces by `direct`, with a pool of so many pages. The pages of RAM it took.
fn direct<P: Page>(shape: Shape, leaves: Leaves, pool: u64) -> u64 {
    let geometry = shape.geometry::<P>();
    let page = P::SIZE.bytes();
    let (world, mut tables) = with_arena::<P>(&shape, pool);
    let pieces = pieces(&geometry, leaves);
    let census = Census::new(&geometry, &pieces);
    let Some(arena) = tables.environment().arena() else {
        panic!("the bench has no arena");
    };
    let more = direct::arena_pages(&census, arena);
    if more > 0 {
        // In the middle of a piece.
        let first = RAM + 5 * page;
        let end = PhysicalAddress(first + more * page);
        arena.extend(PhysicalAddress(first), end);
    }
    assert_eq!(direct::create(&mut tables, &pieces), Ok(()), "{shape:?}");
    assert_eq!(
        tables.environment().arena().map(|arena| arena.available()),
        Some(pool.saturating_sub(census.tables() + 1))
    );
    check(&world, &shape, &geometry, &pieces, 3);
    more
}

/// A fixmap of all the slots there are, in a table that the tree had before.
struct Fixmap {
    cpu: Cpu<Shared>,
    pages: Pages,
    /// The descriptor of the first slot, and the address that it translates.
    entries: u64,
    va: u64,
    /// What each slot shows.
    open: [Option<u64>; Slot::COUNT],
}

impl Fixmap {
    const fn page(&self) -> u64 {
        self.cpu.can.geometry.page_size().bytes()
    }

    fn set(&self, slot: Slot, descriptor: Descriptor) {
        let store = EventKind::StoreDescriptor {
            address: self.entries + slot.number() as u64 * 8,
            value: descriptor.0,
            order: Order::Plain,
        };
        self.cpu.world.borrow_mut().event(store);
    }

    /// Invalidates the TLB for `count` slots from `slot` on.
    fn forget(&mut self, slot: Slot, count: usize) {
        let page = self.page();
        let what = Invalidation {
            start: self.address(slot),
            bytes: page * count as u64,
            stride: page,
            reach: Reach::LastLevel,
            asid: None,
            level: Some(Level::L3),
        };
        invalidate(&mut self.cpu, &what);
    }

    fn shown(&self, slot: Slot) -> u64 {
        match self.open[slot.number()] {
            Some(table) => table,
            None => panic!("{slot:?} is not open"),
        }
    }
}

// SAFETY: a slot's loads and stores go to the table it was opened for, and each is checked to be
// what the slot's address translates to.
unsafe impl Windows for Fixmap {
    fn address(&self, slot: Slot) -> VirtualAddress {
        VirtualAddress(self.va + slot.number() as u64 * self.page())
    }

    fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        let geometry = self.cpu.can.geometry;
        let bits = Attributes::normal(Permissions::READ_WRITE).encode(&geometry);
        self.set(slot, Descriptor::leaf(&geometry, Level::L3, table, bits));
        publish(&mut self.cpu);
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
        world.event(EventKind::StoreDescriptor {
            address,
            value: descriptor.0,
            order: Order::Plain,
        });
    }
}

// SAFETY: as for the pages.
unsafe impl TableAllocator for Fixmap {
    fn reserve(&mut self, tables: usize) -> bool {
        self.pages.reserve(tables)
    }

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        self.pages.allocate(most)
    }

    fn free(&mut self, table: PhysicalAddress) {
        self.pages.free(table);
    }
}

impl Maintenance for Fixmap {
    fn capabilities(&self) -> &TlbCapabilities {
        self.cpu.capabilities()
    }

    fn dsb_ishst(&mut self) {
        self.cpu.dsb_ishst();
    }

    fn dsb_ish(&mut self) {
        self.cpu.dsb_ish();
    }

    fn isb(&mut self) {
        self.cpu.isb();
    }

    fn tlbi(&mut self, op: TlbiOp) {
        self.cpu.tlbi(op);
    }
}

/// Tables with a fixmap in them, far from the rest.
fn with_fixmap<P: Page>(shape: Shape) -> (Bench<P>, Fixmap) {
    let mut bench = Bench::<P>::new(shape, 1);
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
        true
    });
    let fixmap = Fixmap {
        cpu: Cpu {
            world: Rc::clone(&bench.world),
            can: capabilities(&shape, geometry),
        },
        pages: Pages::from(&bench.world, page, TABLES + 0x1000 * page),
        entries,
        va,
        open: [None; Slot::COUNT],
    };
    (bench, fixmap)
}

fn through<P: Page>(shape: Shape, leaves: Leaves, strategy: Published, barriers: Barriers) {
    let (bench, mut fixmap) = with_fixmap::<P>(shape);
    let geometry = bench.geometry;
    let pieces = pieces(&geometry, leaves);
    let root = bench.tables.root();
    let mut builder = WindowBuilder::<P, _>::new(geometry, strategy, barriers, &mut fixmap);
    assert_eq!(
        builder.create(root, &pieces).map(|_| ()),
        Ok(()),
        "{shape:?} {strategy:?}"
    );
    assert_eq!(fixmap.open, [None; Slot::COUNT], "{strategy:?} {barriers}");
    check(&bench.world, &shape, &geometry, &pieces, 4);
    // The library reads the tables back as if it had made them by `map`.
    // SAFETY: the root and all below are the model's memory, which nobody else changes now.
    let tables = unsafe {
        let machine = crate::machine::machine(&bench.world, capabilities(&shape, geometry));
        PageTables::<P, _>::from_root(root, geometry, Liveness::Live, machine)
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
fn direct_4k() {
    for shape in [Shape::kernel(39), Shape::kernel(48)] {
        for leaves in [Leaves::LARGEST, Leaves::PAGES] {
            assert_eq!(direct::<Page4K>(shape, leaves, 64), 0);
        }
        assert!(direct::<Page4K>(shape, Leaves::PAGES, 5) > 0);
    }
    let wide = Shape {
        wide: true,
        cpus: 4,
        ..Shape::kernel(52)
    };
    assert!(direct::<Page4K>(wide, Leaves::PAGES, 7) > 0);
}

#[test]
fn direct_16k_and_64k() {
    for leaves in [Leaves::LARGEST, Leaves::PAGES] {
        direct::<Page16K>(Shape::kernel(47), leaves, 64);
        direct::<Page64K>(Shape::kernel(42), leaves, 64);
    }
    assert!(direct::<Page16K>(Shape::kernel(47), Leaves::PAGES, 5) > 0);
    assert!(direct::<Page64K>(Shape::kernel(42), Leaves::PAGES, 4) > 0);
}

#[test]
fn through_a_fixmap() {
    let published = Strategy::ALL.into_iter().filter_map(Strategy::published);
    for strategy in published {
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

/// Every valid entry: its table, index and descriptor.
fn entries<P: Page, E>(tables: &PageTables<P, E>) -> Vec<(u64, usize, u64)>
where
    E: granule::table::Environment,
{
    let mut found = Vec::new();
    tables.visit_all(|entry| {
        found.push((entry.table.0, entry.index, entry.descriptor.0));
        true
    });
    found
}

/// Each builder runs out of pages at each single one that it needs: it says so, the tables are as
/// they were, no slot is left open, and no rule is broken.
fn exhausted<P: Page>(shape: Shape, leaves: Leaves) -> u64 {
    let geometry = shape.geometry::<P>();
    let pieces = pieces(&geometry, leaves);
    let needed = Census::new(&geometry, &pieces).tables();
    let mut refused = 0;
    for had in 0..needed {
        let (world, mut tables) = with_arena::<P>(&shape, had + 1);
        let before = entries(&tables);
        let result = direct::create(&mut tables, &pieces);
        let what = format!("direct: {had} of {needed} pages, {shape:?}");
        assert!(
            matches!(result, Err(TableError::OutOfTables { .. })),
            "{what}: {result:?}"
        );
        assert_eq!(entries(&tables), before, "{what}");
        world.borrow_mut().event(EventKind::Sync);
        assert_eq!(world.borrow().model.violations(), [], "{what}");
        refused += 1;
    }
    for strategy in Strategy::ALL.into_iter().filter_map(Strategy::published) {
        let (bench, mut fixmap) = with_fixmap::<P>(shape);
        let root = bench.tables.root();
        let before = entries(&bench.tables);
        for had in 0.. {
            fixmap.pages.left = had;
            let mut builder =
                WindowBuilder::<P, _>::new(geometry, strategy, Barriers::Table, &mut fixmap);
            let result = builder.create(root, &pieces);
            let what = format!("{strategy:?}: {had} pages, {shape:?}");
            assert_eq!(fixmap.open, [None; Slot::COUNT], "{what}");
            bench.settle();
            assert_eq!(bench.violations(), Vec::<String>::new(), "{what}");
            let Err(error) = result else {
                assert!(had > 0, "{what}: nothing was needed");
                break;
            };
            assert!(
                matches!(error, TableError::OutOfTables { needed } if needed as u64 > had),
                "{what}: {error}"
            );
            assert_eq!(entries(&bench.tables), before, "{what}");
            refused += 1;
        }
    }
    refused
}

#[test]
fn every_allocation_of_every_builder_fails() {
    let refused = exhausted::<Page4K>(Shape::kernel(39), Leaves::LARGEST)
        + exhausted::<Page4K>(Shape::kernel(48), Leaves::PAGES)
        + exhausted::<Page16K>(Shape::kernel(47), Leaves::LARGEST)
        + exhausted::<Page64K>(Shape::kernel(42), Leaves::PAGES);
    assert!(refused > 50, "{refused} times");
}
