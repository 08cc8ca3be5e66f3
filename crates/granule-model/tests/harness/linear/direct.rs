//! Through the map itself, whose tables come from an arena.

use super::{RAM, check, pieces, shown};
use crate::bench::{capabilities, model, turn_on};
use crate::machine::{Cpu, Shared, TABLES, World};
use crate::shape::Shape;
use granule::arch::{Geometry, Page, Page4K, Page16K, Page64K, PhysicalAddress};
use granule::forward;
use granule::linear::{self, Arena, LeafStats};
use granule::table::{FreedTable, Leaves, PageTables, Reservation, TableEnvironment, TableRun};
use granule_model::{Access, Event, Outcome};
use granule_testing::held::Held;
use granule_testing::host::NothingFreed;
use std::rc::Rc;

/// An arena, whose pages the linear map shows by the time they are given out.
pub(super) struct WithArena {
    arena: Arena<NothingFreed>,
    cpu: Cpu<Shared>,
    geometry: Geometry,
}

impl WithArena {
    pub(super) const fn arena(&mut self) -> Option<&mut Arena<NothingFreed>> {
        Some(&mut self.arena)
    }
}

// SAFETY: the arena gives each page out once, and the CPU reaches the model's memory.
unsafe impl TableEnvironment for WithArena {
    forward!(self.cpu: reach load find_unlike store exchange fill update update_alike);
    forward!(self.cpu: capabilities invalidate);

    fn reserve(&mut self, tables: usize) -> Reservation {
        self.arena.reserve(tables)
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.allocate_run(1).map(|run| run.first)
    }

    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        let run = self.arena.allocate_run(most)?;
        let page = self.geometry.page_size().bytes();
        let (address, bytes) = (run.first.0, run.count as u64 * page);
        let mut world = self.cpu.world.borrow_mut();
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
        world.event(Event::obtained(address, bytes));
        Some(run)
    }

    fn free(&mut self, table: FreedTable) {
        let address = table.address().0;
        self.arena.free(table);
        let bytes = self.geometry.page_size().bytes();
        let freed = Event::freed(address, bytes);
        self.cpu.world.borrow_mut().event(freed);
    }
}

/// Live tables with an arena of so many pages, one of which the root takes.
pub(super) fn with_arena<P: Page>(shape: &Shape, pool: u64) -> (Shared, Held<P, WithArena>) {
    let geometry = shape.geometry::<P>();
    let page = P::SIZE.bytes();
    let world = World::shared(model(shape), 1);
    let (start, end) = (
        PhysicalAddress(TABLES),
        PhysicalAddress(TABLES + pool * page),
    );
    let parts = WithArena {
        // SAFETY: nobody else uses the model's memory there, all of which is reached.
        arena: unsafe { Arena::new(NothingFreed, start, end, P::SIZE) },
        cpu: Cpu {
            world: Rc::clone(&world),
            can: capabilities(shape),
        },
        geometry,
    };
    let tables = match PageTables::<P, _>::new(geometry, parts) {
        Ok(tables) => tables,
        Err(error) => panic!("{shape:?}: {error}"),
    };
    turn_on(&world, shape, &geometry, tables.root_table().0);
    (world, Held::new(tables, true))
}

/// Maps pieces by `direct`, with a pool of so many pages. Returns the pages of RAM that it took.
fn direct<P: Page>(shape: Shape, leaves: Leaves, pool: u64) -> u64 {
    let geometry = shape.geometry::<P>();
    let page = P::SIZE.bytes();
    let (world, mut tables) = with_arena::<P>(&shape, pool);
    let pieces = pieces(&geometry, leaves);
    let stats = LeafStats::new(&geometry, &pieces);
    // SAFETY: the arena is only extended.
    let Some(arena) = unsafe { tables.environment_mut() }.arena() else {
        panic!("the bench has no arena");
    };
    let more = stats.tables.saturating_sub(arena.available());
    if more > 0 {
        // In the middle of a piece.
        let first = RAM + 5 * page;
        let end = PhysicalAddress(first + more * page);
        // SAFETY: the model has memory everywhere, and nothing else is in this part.
        unsafe { arena.extend(PhysicalAddress(first), end) };
    }
    // SAFETY: the model's memory is reached everywhere.
    let created = unsafe { linear::create(&mut tables, &pieces, WithArena::arena) };
    assert_eq!(created, Ok(()), "{shape:?}");
    assert_eq!(
        // SAFETY: nothing changes.
        unsafe { tables.environment_mut() }
            .arena()
            .map(|arena| arena.available()),
        Some(pool.saturating_sub(stats.tables + 1))
    );
    check(&world, &shape, &geometry, &pieces, 3);
    more
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
