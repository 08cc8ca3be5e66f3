//! The amount that a first write copies after a fork: a page, or a whole group if the program wrote
//! all of the group beside and goes on there, and for how long that group counts.

use crate::groups::{HARDWARE, geometries};
use crate::world::World;
use granule::arch::bbm::BbmLevel;
use granule::arch::{Dispatch, Geometry, Page, Page4K, PageSize};
use granule::space::{Access, Advice, Fault, LargeLeaves, Rights, Settings};

/// A process with a VMA of three groups, each mapped at once, from the page that is returned on, and its child.
fn world<P: Page>(geometry: Geometry, settings: Settings) -> (World<P>, u64) {
    let settings = Settings {
        large_leaves: LargeLeaves::GROUPS,
        ..settings
    };
    let mut world = World::<P>::new(geometry, settings);
    world.start();
    let group = world.arch.contiguous(3);
    world
        .map(0, group, 3 * group, Rights::READ_WRITE, 0)
        .unwrap();
    for page in group..4 * group {
        world.touch(0, page, Access::Write, page).unwrap();
    }
    assert_eq!(world.stats(0).groups, 3);
    world.fork(0).unwrap();
    (world, group)
}

impl<P: Page> World<P> {
    /// Writes pages of the first process, and returns how many of the writes took a copy.
    fn write_all(&mut self, pages: impl Iterator<Item = u64>) -> u64 {
        let mut copies = 0;
        for page in pages {
            match self.touch(0, page, Access::Write, page + 1000).unwrap() {
                None => {}
                Some(Fault::Copied) => copies += 1,
                Some(other) => panic!("page {page:#x}: {other:?}"),
            }
        }
        self.check();
        copies
    }
}

struct InOrder(Geometry, Settings, bool);
impl Dispatch for InOrder {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group) = world::<P>(self.0, self.1);
        let mut pages: Vec<u64> = (group..4 * group).collect();
        if self.2 {
            pages.reverse();
        }
        // Page by page to the end of a group, then a group at a time.
        assert_eq!(world.write_all(pages.iter().copied()), group + 2);
        assert_eq!(world.stats(0).copied, 3 * group);
        for page in pages {
            assert!(world.is_group(0, page), "{page:#x}");
            assert_eq!(world.touch(0, page, Access::Read, 0), Ok(None));
            // The child has what it had, and need not copy it.
            world.touch(1, page, Access::Read, 0).unwrap();
        }
        for page in group..4 * group {
            let fault = world.touch(1, page, Access::Write, 5).unwrap();
            let first = page % group == 0;
            assert_eq!(fault, first.then_some(Fault::Reused), "{page:#x}");
        }
        world.check();
        world.end();
    }
}

#[test]
fn a_program_that_writes_all_copies_whole_groups() {
    for geometry in geometries() {
        for settings in [Settings::PLAIN, HARDWARE] {
            for (bbm, reverse) in [(BbmLevel::Level0, false), (BbmLevel::Level3, true)] {
                let most = settings == HARDWARE && bbm == BbmLevel::Level0;
                if cfg!(miri) && (geometry.page_size() != PageSize::K4 || !most) {
                    continue;
                }
                let settings = Settings { bbm, ..settings };
                let case = InOrder(geometry, settings, reverse);
                geometry.page_size().dispatch(case);
            }
        }
    }
}

#[test]
fn writes_here_and_there_copy_a_page_each() {
    let (mut world, group) = world::<Page4K>(geometries()[0], Settings::PLAIN);
    let ends = (1..4).flat_map(|number| [number * group, (number + 1) * group - 1]);
    assert_eq!(world.write_all(ends), 6);
    assert_eq!(world.stats(0).copied, 6);
    world.end();
}

/// All of the first group, then the first page of each group that follows: as far as the first 32 MiB reach the
/// groups are copied whole, then a page each.
struct Stride(Geometry);
impl Dispatch for Stride {
    type Output = ();
    fn run<P: Page>(self) {
        let settings = Settings {
            large_leaves: LargeLeaves::GROUPS,
            ..Settings::PLAIN
        };
        let mut world = World::<P>::new(self.0, settings);
        world.start();
        let group = world.arch.contiguous(3);
        let trusted = (32 << 20) / P::SIZE.bytes();
        let (first, end) = (trusted - 2 * group, trusted + 3 * group);
        world
            .map(0, first, end - first, Rights::READ_WRITE, 0)
            .unwrap();
        for page in (first..end).step_by(group as usize) {
            world.touch(0, page, Access::Write, page).unwrap();
        }
        world.fork(0).unwrap();
        assert_eq!(world.write_all(first..first + group), group);
        let rest = (first + group..end).step_by(group as usize);
        assert_eq!(world.write_all(rest), 4);
        assert_eq!(world.stats(0).copied, 2 * group + 3);
        // A program that writes all of a group again is trusted again.
        assert_eq!(world.write_all(trusted..trusted + group + 1), group - 1);
        world.check();
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn a_group_that_was_written_whole_does_not_vouch_for_all_that_follow() {
    for geometry in geometries() {
        geometry.page_size().dispatch(Stride(geometry));
    }
}

/// Writes all of the first group, changes the second, writes its first page, and returns the pages
/// copied for that.
fn after_the_first(change: impl FnOnce(&mut World<Page4K>, u64)) -> u64 {
    let (mut world, group) = world::<Page4K>(geometries()[0], Settings::PLAIN);
    assert_eq!(world.write_all(group..2 * group), group);
    change(&mut world, 2 * group);
    assert_eq!(world.write_all(2 * group..2 * group + 1), 1);
    let copied = world.stats(0).copied - group;
    world.end();
    copied
}

#[test]
#[cfg_attr(miri, ignore = "six worlds, minutes; the test above has the same code")]
fn a_page_is_copied_alone_where_its_group_cannot_or_need_not_be() {
    assert_eq!(after_the_first(|_, _| ()), 16);
    assert_eq!(after_the_first(|world, _| world.frames.runs = false), 1);
    let advised = after_the_first(|world, page| {
        world.advise(0, page, 16, Advice::Pages).unwrap();
    });
    assert_eq!(advised, 1);
    let partly_shared = after_the_first(|world, page| world.unmap(1, page + 5, 1).unwrap());
    assert_eq!(partly_shared, 1);
    let cut = after_the_first(|world, page| world.unmap(0, page + 15, 1).unwrap());
    assert_eq!(cut, 1);
    let shared_again = after_the_first(|world, _| {
        world.fork(0).unwrap();
    });
    assert_eq!(shared_again, 1, "the first is not its own any more");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn groups_of_a_block_are_copied_too() {
    for settings in [Settings::PLAIN, HARDWARE] {
        let mut world = World::<Page4K>::new(geometries()[0], settings);
        world.start();
        world.map(0, 512, 1024, Rights::READ_WRITE, 0).unwrap();
        for page in 512..512 + 1024 {
            world.touch(0, page, Access::Write, page).unwrap();
        }
        assert_eq!(world.stats(0).blocks, 2);
        world.fork(0).unwrap();
        // All of the first block, then the first group of the second.
        assert_eq!(world.write_all(512..1024 + 16), 16 + 31 + 1);
        assert_eq!((world.stats(0).copied, world.stats(0).split), (512 + 16, 2));
        assert!(world.is_group(0, 1024) && world.is_group(0, 1040));
        for page in 512..512 + 1024 {
            world.touch(0, page, Access::Read, 0).unwrap();
            world.touch(1, page, Access::Read, 0).unwrap();
        }
        world.check();
        world.end();
    }
}
