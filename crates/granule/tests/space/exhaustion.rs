//! Running out of memory at each allocation that an operation makes.

use crate::world::{World, ran_out};
use granule::arch::{Dispatch, Geometry, Page, PageSize, VaRange};
use granule::space::{Access, Rights, Settings, SpaceError};
use granule_testing::shape::{LARGE, PLAIN};

/// Tries an operation with no table and no frame, then with one more of one, until it is done.
/// Gives how often it was refused.
fn until_done<P: Page>(
    world: &mut World<P>,
    mut operation: impl FnMut(&mut World<P>) -> Result<(), SpaceError>,
) -> usize {
    let mut refused = 0;
    for most in 0.. {
        // Tables that an earlier try made stay, so each try may be the one that is done.
        for (tables, frames) in [(most, 0), (0, most), (most, most)] {
            world.host.set_budget(tables);
            world.frames.budget = frames;
            let done = operation(world);
            world.host.set_budget(usize::MAX);
            world.frames.budget = usize::MAX;
            world.check();
            match done {
                Ok(()) => return refused,
                Err(error) => assert!(ran_out(&error), "{error}"),
            }
            refused += 1;
            assert!(refused < 1000);
        }
    }
    unreachable!()
}

/// The shape, the settings, and whether table pages can be reserved.
struct Exhausted(Geometry, Settings, bool);
impl Dispatch for Exhausted {
    type Output = usize;
    fn run<P: Page>(self) -> usize {
        let mut world = World::<P>::new(self.0, self.1);
        if !self.2 {
            world.host.without_reservations();
        }
        world.start();
        let pages = self.0.span() / P::SIZE.bytes();
        let table = P::SIZE.entries() as u64;
        let mut refused = 0;
        // Far apart, so that each has tables of its own at every level.
        let places = [1, pages / 2 + 1, pages - table - 1, pages - 1];
        for &page in &places {
            world.map(0, page, 1, Rights::READ_WRITE, 0).unwrap();
        }
        refused += until_done(&mut world, |world| {
            world.touch(0, places[0], Access::Write, 1).map(|_| ())
        });
        refused += until_done(&mut world, |world| {
            world.touch(0, places[1], Access::Read, 1).map(|_| ())
        });
        for &page in &places[2..] {
            refused += until_done(&mut world, |world| {
                world.by_kernel(0, page, Access::Write, page)
            });
        }
        refused += until_done(&mut world, |world| world.fork(0).map(|_| ()));
        assert_eq!(world.processes.len(), 2);
        // Of those that are shared now each takes a frame.
        for (process, &page) in places.iter().enumerate() {
            refused += until_done(&mut world, |world| {
                world.touch(process % 2, page, Access::Write, 7).map(|_| ())
            });
        }
        // To take things away and to restrict them takes nothing.
        world.host.set_budget(0);
        world.frames.budget = 0;
        world.protect(0, places[0], 1, Rights::READ).unwrap();
        world.unmap(0, places[1], 1).unwrap();
        world.exit(1);
        world.check();
        world.end();
        refused
    }
}

#[test]
#[cfg_attr(miri, ignore = "reading all tables hundreds of times takes minutes")]
fn every_allocation_fails_once() {
    let mut refused = 0;
    for geometry in [
        PLAIN.geometry(PageSize::K4, 48, VaRange::Lower),
        LARGE.geometry(PageSize::K4, 52, VaRange::Lower),
        LARGE.geometry(PageSize::K16, 47, VaRange::Lower),
        LARGE.geometry(PageSize::K64, 52, VaRange::Lower),
    ] {
        for (hardware, reserves) in [(false, false), (false, true), (true, false), (true, true)] {
            let settings = Settings {
                hardware_access: hardware,
                hardware_dirty: hardware,
                ..Settings::PLAIN
            };
            let one = Exhausted(geometry, settings, reserves);
            refused += geometry.page_size().dispatch(one);
        }
    }
    assert!(refused > 150, "only {refused}");
}

#[test]
fn a_fork_that_fails_leaves_the_parent_as_it_was() {
    for reserves in [false, true] {
        fork_and_fail(reserves);
    }
}

fn fork_and_fail(reserves: bool) {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let mut world = World::<granule::arch::Page4K>::new(geometry, Settings::PLAIN);
    if !reserves {
        world.host.without_reservations();
    }
    world.start();
    world.map(0, 16, 40, Rights::READ_WRITE, 0).unwrap();
    for page in 16..56 {
        world.touch(0, page, Access::Write, page).unwrap();
    }
    // Room for the root and for all tables but one.
    world.host.take_events();
    world.host.set_budget(1 + 2);
    let error = world.fork(0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of memory for tables: the operation needs 3 pages, and fewer are free"
    );
    world.host.set_budget(usize::MAX);
    for page in 16..56 {
        assert_eq!(
            world.touch(0, page, Access::Write, 1),
            Ok(None),
            "as it was"
        );
    }
    // A child without a node for the VMAs, and one that may not have so many.
    world.map(0, 100, 1, Rights::READ, 0).unwrap();
    let nodes = std::mem::take(&mut world.vma_nodes);
    assert_eq!(world.fork(0), Err(SpaceError::OutOfVmaNodes { missing: 1 }));
    (world.vma_nodes, world.settings.most_vmas) = (nodes, 1);
    assert_eq!(world.fork(0), Err(SpaceError::TooManyVmas { most: 1 }));
    world.check();
    world.end();
}
