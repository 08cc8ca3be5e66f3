//! Pages that may be executed no more, on a CPU that must be shown them invalid before (Cortex-A715
//! 2645198): not one of them goes from one valid entry to the other. And pages that may be executed from now on.

use crate::groups::geometries;
use crate::world::World;
use granule::arch::{Dispatch, Geometry, Page, Page4K, PageSize, VaRange};
use granule::space::{Access, LargeLeaves, Rights, Settings};
use granule_testing::host::Event;
use granule_testing::shape::PLAIN;
use std::collections::BTreeMap;

/// Takes the right to execute from pages, some of them in a group; gives how many entries went from
/// valid to valid, and how many were invalid while the TLB was invalidated.
struct NoMore<'a>(Geometry, Settings, Rights, &'a mut (usize, usize));
impl Dispatch for NoMore<'_> {
    type Output = ();
    fn run<P: Page>(self) {
        let Self(geometry, settings, rights, counts) = self;
        let mut world = World::<P>::new(geometry, settings);
        world.start();
        let group = world.arch.contiguous(3);
        let pages = group + 3;
        let read_write = Rights::READ_WRITE;
        world.map(0, group, pages, read_write, 0).unwrap();
        for page in group..group + pages {
            world.touch(0, page, Access::Write, page).unwrap();
        }
        world
            .protect(0, group, pages, Rights::READ_EXECUTE)
            .unwrap();
        world.check();
        world.host.take_events();
        world.protect(0, group, pages, rights).unwrap();
        world.check();
        let mut entries: BTreeMap<(u64, usize), bool> = BTreeMap::new();
        for event in world.host.take_events() {
            match event {
                Event::Change {
                    table,
                    index,
                    descriptor,
                    ..
                } => {
                    let valid = descriptor & 1 == 1;
                    let before = entries.insert((table, index), valid).unwrap_or(true);
                    counts.0 += usize::from(before && valid);
                }
                Event::Tlbi(_) => {
                    let invalid = entries.values().filter(|valid| !**valid).count();
                    counts.1 = counts.1.max(invalid);
                }
                _ => {}
            }
        }
        // The model decides what a program may do with them.
        for page in [group, group + pages - 1] {
            let access = if rights.write {
                Access::Write
            } else {
                Access::Read
            };
            world.touch(0, page, access, page).unwrap();
        }
        world.check();
        world.end();
    }
}

#[test]
fn they_are_invalid_in_between_where_a_cpu_needs_it_and_only_there() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    for hardware in [false, true] {
        for rights in [Rights::READ, Rights::READ_WRITE, Rights::NONE] {
            // Each takes Miri long: the one with the most to do.
            if cfg!(miri) && !(hardware && rights.write) {
                continue;
            }
            for break_execute in [false, true] {
                let settings = Settings {
                    hardware_access: hardware,
                    hardware_dirty: hardware,
                    break_execute,
                    ..Settings::PLAIN
                };
                let mut counts = (0, 0);
                let case = NoMore(geometry, settings, rights, &mut counts);
                geometry.page_size().dispatch(case);
                let all = 16 + 3;
                let wanted = if break_execute { (0, all) } else { (all, 0) };
                assert_eq!(counts, wanted, "{settings:?} {rights:?}");
            }
        }
    }
}

#[test]
fn parts_of_groups_are_synchronised_before_they_may_be_executed() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let settings = Settings {
        large_leaves: LargeLeaves::GROUPS,
        ..Settings::PLAIN
    };
    let mut world = World::<Page4K>::new(geometry, settings);
    world.start();
    world.map(0, 16, 48, Rights::READ_WRITE, 0).unwrap();
    // The frames of the second group do not follow those of the first.
    for page in [16, 48, 32] {
        world.touch(0, page, Access::Write, page).unwrap();
    }
    assert_eq!(world.stats(0).groups, 3);
    world.protect(0, 21, 22, Rights::READ_EXECUTE).unwrap();
    for page in 21..43 {
        world.touch(0, page, Access::Execute, page).unwrap();
    }
    world.check();
    world.end();
}

const CODE: Rights = Rights {
    execute: true,
    ..Rights::READ_WRITE
};

/// Pages that may be executed, new and copied: by leaves of one page each, or by groups at once.
struct FilledPages(Geometry, bool);
impl Dispatch for FilledPages {
    type Output = ();
    fn run<P: Page>(self) {
        let settings = Settings {
            large_leaves: LargeLeaves::GROUPS,
            ..Settings::PLAIN
        };
        let mut world = World::<P>::new(self.0, settings);
        world.frames.runs = self.1;
        world.start();
        let group = world.arch.contiguous(3);
        world.map(0, group, 3 * group, CODE, 0).unwrap();
        for page in group..4 * group {
            world.touch(0, page, Access::Write, page).unwrap();
            world.check();
        }
        assert_eq!(world.stats(0).groups, if self.1 { 3 } else { 0 });
        world.fork(0).unwrap();
        for page in group..4 * group {
            world.touch(0, page, Access::Write, page + 1000).unwrap();
            world.check();
        }
        assert_eq!(world.stats(0).copied, 3 * group);
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of pages, and the code is that of copies.rs")]
fn new_and_copied_pages_are_synchronised_before_they_may_be_executed() {
    for geometry in geometries() {
        for runs in [false, true] {
            geometry.page_size().dispatch(FilledPages(geometry, runs));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn new_and_copied_blocks_are_synchronised_before_they_may_be_executed() {
    // A page of a block, and a group of one.
    for written in [0..1_u64, 0..512 + 1] {
        let mut world = World::<Page4K>::new(geometries()[0], Settings::PLAIN);
        world.start();
        world.map(0, 512, 1024, CODE, 0).unwrap();
        for page in 512..512 + 1024 {
            world.touch(0, page, Access::Write, page).unwrap();
        }
        world.check();
        assert_eq!(world.stats(0).blocks, 2);
        world.fork(0).unwrap();
        let blocks = written.end.div_ceil(512);
        for page in written {
            world.touch(0, 512 + page, Access::Write, page).unwrap();
            world.check();
        }
        assert_eq!(world.stats(0).split, blocks);
        world.end();
    }
}
