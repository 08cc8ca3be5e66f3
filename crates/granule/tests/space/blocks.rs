//! Blocks: when they come, and what they become where a part of one is unmapped, protected or copied.

use crate::groups::{HARDWARE, counts};
use crate::world::{World, ran_out};
use granule::arch::bbm::BbmLevel;
use granule::arch::{Dispatch, Geometry, Page, Page4K, PageSize, VaRange};
use granule::space::{Access, Advice, Fault, LargeLeaves, LargestLeaf, Rights, Settings, Stats};
use granule_testing::shape::{LARGE, PLAIN};

/// Runs a case for every page size and without and with hardware's updates; blocks of any size are
/// allowed.
#[cfg_attr(miri, allow(unused))]
fn everywhere<T: Dispatch>(case: impl Fn(Geometry, Settings) -> T) {
    for geometry in [
        PLAIN.geometry(PageSize::K4, 39, VaRange::Lower),
        LARGE.geometry(PageSize::K4, 52, VaRange::Lower),
        LARGE.geometry(PageSize::K16, 36, VaRange::Lower),
        LARGE.geometry(PageSize::K64, 42, VaRange::Lower),
    ] {
        for settings in [Settings::PLAIN, HARDWARE] {
            let large_leaves = LargeLeaves {
                most_bytes: u64::MAX,
                ..LargeLeaves::BLOCKS
            };
            let settings = Settings {
                large_leaves,
                ..settings
            };
            geometry.page_size().dispatch(case(geometry, settings));
        }
    }
}

/// A process with a VMA of two blocks, and of one page at either side of them. The first block
/// begins at the page that is returned, the second so many pages behind.
fn world<P: Page>(geometry: Geometry, settings: Settings) -> (World<P>, u64, u64) {
    let block = P::SIZE.entries() as u64;
    let mut world = World::<P>::with_frames(geometry, settings, 100, 600, 5 * P::SIZE.entries());
    world.start();
    world
        .map(0, block - 1, 2 * block + 2, Rights::READ_WRITE, 0)
        .unwrap();
    (world, block, block)
}

impl<P: Page> World<P> {
    pub fn stats(&self, process: usize) -> Stats {
        self.processes[process].space.stats()
    }

    fn is_block(&self, process: usize, page: u64) -> bool {
        let space = &self.processes[process].space;
        space.page(self.address(page)).unwrap().block
    }

    pub fn is_group(&self, process: usize, page: u64) -> bool {
        let space = &self.processes[process].space;
        space.page(self.address(page)).unwrap().contiguous
    }

    fn tlbis(&self) -> usize {
        counts(&self.host.take_events())[0]
    }
}

struct Whole(Geometry, Settings);
impl Dispatch for Whole {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, first, block) = world::<P>(self.0, self.1);
        let group = world.arch.contiguous(3);
        world.touch(0, first, Access::Write, 1).unwrap();
        world.touch(0, first + block, Access::Write, 2).unwrap();
        // From within one block into the next one, and to a page that is not there.
        let (from, count) = (first + block - group - 1, 2 * group);
        world.protect(0, from, count, Rights::READ).unwrap();
        assert!(!world.is_block(0, first) && !world.is_block(0, first + block));
        world.check();
        for page in [first, first + block] {
            world.touch(0, page + 2, Access::Write, page).unwrap();
        }
        // Only what a change covers wholly becomes a block again.
        world.protect(0, from, count, Rights::READ_WRITE).unwrap();
        assert_eq!(world.stats(0).merged, 0);
        world.protect(0, first, 1, Rights::READ).unwrap();
        world.host.take_events();
        let rights = Rights::READ_WRITE;
        world.protect(0, first, 2 * block, rights).unwrap();
        // All of both changes, three groups are folded, and one invalidation serves both tables.
        let [tlbis, dsbs, ..] = counts(&world.host.take_events());
        assert_eq!((tlbis as u64, dsbs), (1 + 3 * group + 1, 2 + 3 * 3 + 3));
        assert!(world.is_block(0, first) && world.is_block(0, first + block));
        assert_eq!((world.stats(0).split, world.stats(0).merged), (2, 2));
        world.check();
        for page in [first + 2, from, from + count, first + block + 2] {
            world.touch(0, page, Access::Read, 0).unwrap();
            assert_eq!(world.touch(0, page, Access::Write, page), Ok(None));
        }
        // Half a block is another area's now, although all is alike again.
        world.protect(0, first, group, Rights::READ).unwrap();
        world.advise(0, first, block / 2, Advice::Large).unwrap();
        world.protect(0, first, block, rights).unwrap();
        assert!(!world.is_block(0, first) && world.is_group(0, first));
        // A page that was replaced is in no run with the others.
        world.fork(0).unwrap();
        let fault = world.touch(0, first + block + 3, Access::Write, 1);
        assert_eq!(fault, Ok(Some(Fault::Copied)));
        world.exit(1);
        world
            .protect(0, first + block, block, Rights::READ)
            .unwrap();
        assert!(!world.is_block(0, first + block));
        assert_eq!(world.stats(0).merged, 2);
        world.check();
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn a_table_of_which_all_is_alike_again_becomes_a_block() {
    everywhere(Whole);
}

/// One invalidation serves 32 tables; that of a table alone names each page.
#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn many_tables_become_blocks_after_few_invalidations() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let (count, block) = (33, Page4K::SIZE.entries() as u64);
    let frames = ((count + 1) * block) as usize;
    let mut world = World::<Page4K>::with_frames(geometry, HARDWARE, 100, 0, frames);
    world.start();
    let rights = Rights::READ_WRITE;
    world.map(0, block, count * block, rights, 0).unwrap();
    for first in (block..=count * block).step_by(block as usize) {
        world.touch(0, first, Access::Write, first).unwrap();
        for rights in [Rights::READ, rights] {
            world.protect(0, first + 16, 16, rights).unwrap();
        }
        assert!(!world.is_block(0, first));
    }
    world.host.take_events();
    world
        .protect(0, block, count * block, Rights::READ)
        .unwrap();
    let [tlbis, dsbs, ..] = counts(&world.host.take_events());
    assert_eq!((tlbis, dsbs), (1 + 1 + 512, 2 + 3 + 3));
    assert_eq!(world.stats(0).merged, count);
    world.check();
    world.end();
}

/// Tables far from each other, with nothing and with one that is not whole between them, become blocks together.
#[test]
#[cfg_attr(miri, ignore = "gigabytes of addresses")]
fn tables_far_apart_become_blocks_together() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let block = Page4K::SIZE.entries() as u64;
    let giga = block * block;
    let mut world = World::<Page4K>::with_frames(geometry, HARDWARE, 100, 0, 5 * block as usize);
    world.start();
    let rights = Rights::READ_WRITE;
    world.map(0, block, 5 * giga, rights, 0).unwrap();
    let [near, between, far] = [block, giga, 4 * giga];
    for first in [near, between, far] {
        world.touch(0, first, Access::Write, first).unwrap();
        for rights in [Rights::READ, rights] {
            world.protect(0, first + 16, 16, rights).unwrap();
        }
    }
    world.discard(0, between + 16, 1).unwrap();
    world.host.take_events();
    world.protect(0, block, 5 * giga, Rights::READ).unwrap();
    let [tlbis, dsbs, ..] = counts(&world.host.take_events());
    // The change, and the tables.
    assert_eq!((tlbis, dsbs), (1 + 1, 2 + 3));
    assert_eq!(world.stats(0).merged, 2);
    let blocks = [near, between, far].map(|first| world.is_block(0, first));
    assert_eq!(blocks, [true, false, true]);
    world.check();
    world.end();
}

/// The TLBIs and DSBs of changes there and back of a group and of one page, in a block and in groups, on CPUs
/// without TLBI by range and with it.
struct Flipped(Geometry, Settings);
impl Dispatch for Flipped {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, first, block) = world::<P>(self.0, self.1);
        let group = world.arch.contiguous(3);
        let blocks = self.1.large_leaves.largest == LargestLeaf::Block;
        // The second process has TLBIs by range.
        world.start();
        let rights = Rights::READ_WRITE;
        world.map(1, first, block, rights, 0).unwrap();
        for (process, pages) in [(0, group as usize), (1, 1)] {
            for page in (first..first + block).step_by(group as usize) {
                world.touch(process, page + 5, Access::Write, 1).unwrap();
            }
            assert_eq!(world.is_block(process, first), blocks);
            let flip = |world: &mut World<P>, page, count| {
                [Rights::READ, rights].map(|rights| {
                    world.host.take_events();
                    world.protect(process, page, count, rights).unwrap();
                    let [tlbis, dsbs, ..] = counts(&world.host.take_events());
                    (tlbis, dsbs)
                })
            };
            // A block is broken once, by one TLBI, and what comes in its place is published.
            let broken = if blocks { (1, 3) } else { (0, 0) };
            let each = (pages, 2);
            let once = (broken.0 + pages, broken.1 + 2);
            assert_eq!(flip(&mut world, first + group, group), [once, each]);
            assert_eq!(flip(&mut world, first + group, group), [each, each]);
            // A group is broken page by page, as its pages may be cached.
            assert_eq!(flip(&mut world, first + 3, 1), [(pages + 1, 3 + 2), (1, 2)]);
            for page in [first + 3, first + 7] {
                assert_eq!(flip(&mut world, page, 1), [(1, 2), (1, 2)]);
            }
            assert!(!world.is_block(process, first) && !world.is_group(process, first));
            world.check();
            world.protect(process, first, block, Rights::READ).unwrap();
            world.protect(process, first, block, rights).unwrap();
            assert_eq!(world.is_block(process, first), blocks, "whole again");
            assert!(blocks || world.is_group(process, first), "whole again");
            let first_time = if blocks { 1 } else { pages } + 1;
            let flipped = flip(&mut world, first + 3, 1);
            assert_eq!(flipped, [(first_time, 3 + 2), (1, 2)]);
            world.check();
        }
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn what_changes_back_and_forth_is_invalidated_and_nothing_round_it() {
    everywhere(Flipped);
    everywhere(|geometry, settings| {
        let large_leaves = LargeLeaves::GROUPS;
        let settings = Settings {
            large_leaves,
            ..settings
        };
        Flipped(geometry, settings)
    });
}

/// A page of a group that goes and is touched again: the group is taken apart and made again, each time with a
/// TLBI for each of its pages.
#[test]
#[cfg_attr(miri, ignore = "hundreds of pages")]
fn a_page_that_goes_and_comes_back_takes_the_tlbis_of_its_group_twice() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let settings = Settings {
        large_leaves: LargeLeaves::GROUPS,
        ..HARDWARE
    };
    let (mut world, first, _) = world::<Page4K>(geometry, settings);
    let group = world.arch.contiguous(3) as usize;
    world.touch(0, first, Access::Write, first).unwrap();
    for _ in 0..2 {
        assert!(world.is_group(0, first));
        world.host.take_events();
        world.discard(0, first + 3, 1).unwrap();
        assert_eq!(world.tlbis(), group + 1);
        world.touch(0, first + 3, Access::Write, first).unwrap();
        assert_eq!(world.tlbis(), group);
    }
    world.check();
    world.end();
}

struct Written(Geometry, Settings);
impl Dispatch for Written {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, first, block) = world::<P>(self.0, self.1);
        let group = world.arch.contiguous(3);
        world.touch(0, first, Access::Write, 1).unwrap();
        world.protect(0, first, group, Rights::READ).unwrap();
        world.fork(0).unwrap();
        world.exit(1);
        world.protect(0, first, group, Rights::READ_WRITE).unwrap();
        assert!(!world.is_block(0, first), "some are read-only still");
        for page in (first..first + block).step_by(group as usize) {
            assert_eq!(world.stats(0).merged, 0);
            world.touch(0, page, Access::Write, page).unwrap();
        }
        assert!(world.is_block(0, first));
        assert_eq!(world.stats(0).merged, 1);
        // A page that a fork left read-only waits for its next write, which would split a block.
        world.protect(0, first, group, Rights::READ).unwrap();
        let child = world.fork(0).unwrap();
        world.protect(0, first, block, Rights::READ_WRITE).unwrap();
        assert!(!world.is_block(0, first));
        assert_eq!(world.stats(0).merged, 1);
        world.check();
        world.exit(child);
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn a_table_that_is_written_again_becomes_a_block() {
    everywhere(Written);
}

struct Touched(Geometry, Settings);
impl Dispatch for Touched {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, first, block) = world::<P>(self.0, self.1);
        let _ = world.host.take_events();
        let middle = first + block / 2 + 1;
        assert_eq!(
            world.touch(0, middle, Access::Write, 1),
            Ok(Some(Fault::Mapped))
        );
        world
            .by_kernel(0, first + block + 3, Access::Read, 0)
            .unwrap();
        assert_eq!(world.tlbis(), 0);
        for page in [first, first + 1, first + block - 1] {
            assert_eq!(world.touch(0, page, Access::Write, page), Ok(None));
        }
        assert!(world.is_block(0, first) && world.is_block(0, first + block));
        // The pages at either side are in no whole block, nor in a whole group.
        for page in [first - 1, first + 2 * block] {
            world.touch(0, page, Access::Write, page).unwrap();
            assert!(!world.is_block(0, page));
        }
        let stats = world.stats(0);
        assert_eq!((stats.blocks, stats.groups, stats.split), (2, 0, 0));
        assert_eq!(
            (stats.mapped, stats.resident),
            (2 * block + 2, 2 * block + 2)
        );
        world.check();
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn a_first_touch_maps_a_whole_block_without_a_tlbi() {
    everywhere(Touched);
}

/// No advice makes one touch zero more than the limit.
#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn advice_does_not_lift_the_limit() {
    let geometry = LARGE.geometry(PageSize::K16, 36, VaRange::Lower);
    let (mut world, first, block) = world::<granule::arch::Page16K>(geometry, HARDWARE);
    world.advise(0, first, 2 * block, Advice::Large).unwrap();
    world.touch(0, first, Access::Write, 1).unwrap();
    assert!(world.is_group(0, first));
    assert_eq!(world.stats(0).mapped, world.arch.contiguous(3));
    world.check();
    world.end();
}

struct Cut(Geometry, Settings);
impl Dispatch for Cut {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, first, block) = world::<P>(self.0, self.1);
        let group = world.arch.contiguous(3);
        for page in [first + 5, first + block + 5, first + block + 6] {
            world.touch(0, page, Access::Write, page).unwrap();
        }
        // From within one into the next: two tables and one frame list.
        let from = first + block - group - 1;
        world.unmap(0, from, 2 * group + 1).unwrap();
        world.check();
        assert_eq!(world.stats(0).split, 2);
        assert!(world.is_group(0, first) && !world.is_group(0, from - 1));
        assert_eq!(world.stats(0).resident, 2 * block - 2 * group - 1);
        // A whole one goes as it is.
        world.unmap(0, first - 1, 2 * block + 2).unwrap();
        world.check();
        assert_eq!(world.stats(0).resident, 0);
        let rights = Rights::READ_WRITE;
        world.map(0, first, block, rights, 0).unwrap();
        world.touch(0, first, Access::Write, 3).unwrap();
        assert!(world.is_block(0, first));
        world.discard(0, first, block).unwrap();
        assert_eq!((world.stats(0).resident, world.stats(0).split), (0, 2));
        world.touch(0, first + 1, Access::Write, 3).unwrap();
        assert!(world.is_block(0, first), "and comes again");
        // Two edges in one block take one table.
        world.discard(0, first + 8, 1).unwrap();
        assert_eq!(world.stats(0).split, 3);
        world.check();
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn a_block_of_which_a_part_goes_becomes_groups_and_pages() {
    everywhere(Cut);
}

struct Protected(Geometry, Settings);
impl Dispatch for Protected {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, first, block) = world::<P>(self.0, self.1);
        let group = world.arch.contiguous(3);
        for page in [first, first + block] {
            world.touch(0, page, Access::Write, page).unwrap();
        }
        for rights in [Rights::READ, Rights::NONE, Rights::READ_EXECUTE] {
            world.protect(0, first, 2 * block, rights).unwrap();
            world.check();
            world
                .protect(0, first, 2 * block, Rights::READ_WRITE)
                .unwrap();
            world.check();
            assert_eq!(world.touch(0, first + 1, Access::Write, 8), Ok(None));
        }
        assert_eq!(world.stats(0).split, 0, "all of it: it stays whole");
        world
            .protect(0, first + group, block, Rights::READ)
            .unwrap();
        world.check();
        assert_eq!(world.stats(0).split, 2);
        assert!(world.is_group(0, first) && world.is_group(0, first + block + group));
        let there = &world.processes[0].space;
        assert!(!there.page(world.address(first + group)).unwrap().writable);
        assert!(
            there
                .page(world.address(first + group - 1))
                .unwrap()
                .writable
        );
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn a_block_of_which_a_part_is_protected_becomes_groups() {
    everywhere(Protected);
}

struct Forked(Geometry, Settings);
impl Dispatch for Forked {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, first, block) = world::<P>(self.0, self.1);
        for page in [first, first + block] {
            world.touch(0, page, Access::Write, page).unwrap();
        }
        let child = world.fork(0).unwrap();
        world.check();
        assert!(world.is_block(child, first));
        // One page is copied: one split, and one break for both.
        let _ = world.host.take_events();
        let page = first + 9;
        assert_eq!(
            world.touch(0, page, Access::Write, 7),
            Ok(Some(Fault::Copied))
        );
        assert_eq!(world.tlbis(), 1);
        assert_eq!(world.stats(0).split, 1);
        assert!(!world.is_block(0, first) && world.is_block(child, first));
        assert!(!world.is_group(0, first) && world.is_group(0, first + block - 1));
        world.check();
        // The child has the old frame to itself now, in a block whose other pages the parent has.
        let fault = world.touch(child, page, Access::Write, 8);
        assert_eq!(fault, Ok(Some(Fault::Reused)));
        assert_eq!(world.stats(child).split, 1);
        world.check();
        // All of the second block is the parent's again: one fault, and it stays whole.
        world.exit(child);
        let last = first + 2 * block - 1;
        assert_eq!(
            world.touch(0, last, Access::Write, 1),
            Ok(Some(Fault::Reused))
        );
        assert_eq!(world.touch(0, last - 1, Access::Write, 1), Ok(None));
        assert!(world.is_block(0, last));
        assert_eq!(world.stats(0).split, 1);
        world.check();
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn a_block_is_shared_and_split_by_the_first_write() {
    everywhere(Forked);
}

/// Without memory for its table a block stays whole and the areas as they are, whatever was to be
/// done, and at whichever of the allocations.
struct Exhausted(Geometry, Settings);
impl Dispatch for Exhausted {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, first, block) = world::<P>(self.0, self.1);
        for page in [first, first + block] {
            world.touch(0, page, Access::Write, page).unwrap();
        }
        let half = block / 2;
        for (tables, from, count) in [
            (0, first + 1, 1),
            (0, first, half),
            (1, first + half, block),
        ] {
            world.host.set_budget(tables);
            let refused = [
                world.unmap(0, from, count),
                world.discard(0, from, count),
                world.protect(0, from, count, Rights::READ),
            ];
            for refused in refused {
                assert!(refused.is_err_and(|error| ran_out(&error)));
            }
            world.check();
            assert!(world.is_block(0, first) && world.is_block(0, first + block));
            // What cuts no block takes nothing, and neither does what changes nothing.
            let rights = Rights::READ_WRITE;
            world.protect(0, from, count, rights).unwrap();
            world.protect(0, first, block, Rights::READ).unwrap();
            world.protect(0, first, block, rights).unwrap();
            world.host.set_budget(usize::MAX);
        }
        assert_eq!(world.stats(0).split, 0);
        // A copy takes a table and a frame.
        let child = world.fork(0).unwrap();
        for (tables, frames) in [(0, 0), (0, 1), (1, 0)] {
            world.host.set_budget(tables);
            world.frames.budget = frames;
            let refused = world.touch(0, first + 3, Access::Write, 5);
            assert!(refused.is_err_and(|error| ran_out(&error)));
            world.check();
            assert!(world.is_block(0, first));
        }
        world.host.set_budget(1);
        world.frames.budget = 1;
        let fault = world.touch(0, first + 3, Access::Write, 5);
        assert_eq!(fault, Ok(Some(Fault::Copied)));
        world.check();
        world.exit(child);
        world.frames.budget = usize::MAX;
        world.host.set_budget(usize::MAX);
        // A first touch goes on with what there is.
        world.discard(0, first, 2 * block).unwrap();
        let group = world.arch.contiguous(3);
        world.frames.budget = group as usize;
        world.touch(0, first + 1, Access::Write, 5).unwrap();
        assert!(world.is_group(0, first), "no frames for a block");
        world.frames.budget = 1;
        world.touch(0, first + block, Access::Write, 5).unwrap();
        assert!(!world.is_group(0, first + block), "nor for a group");
        world.check();
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn every_allocation_round_a_block_fails_without_effect() {
    everywhere(Exhausted);
}

/// A table that is there stays: to unlink it would take a TLBI.
#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn groups_come_where_an_empty_table_is() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let (mut world, first, _) = world::<Page4K>(geometry, Settings::PLAIN);
    world.frames.budget = 0;
    assert!(world.touch(0, first, Access::Write, 1).is_err());
    world.frames.budget = usize::MAX;
    world.touch(0, first, Access::Write, 1).unwrap();
    assert!(world.is_group(0, first));
    world.check();
    world.end();
}

/// A program that requests pages gets pages; one that requests large leaves gets them beyond the
/// limit.
#[test]
#[cfg_attr(miri, ignore = "thousands of pages")]
fn advice_decides() {
    let geometry = LARGE.geometry(PageSize::K16, 36, VaRange::Lower);
    let settings = Settings {
        bbm: BbmLevel::Level2,
        large_leaves: LargeLeaves {
            most_bytes: 32 << 20,
            ..LargeLeaves::GROUPS
        },
        ..HARDWARE
    };
    let (mut world, first, block) = world::<granule::arch::Page16K>(geometry, settings);
    world.touch(0, first, Access::Write, 1).unwrap();
    assert!(world.is_group(0, first), "by the policy");
    world
        .advise(0, first + block, block, Advice::Large)
        .unwrap();
    world.touch(0, first + block + 7, Access::Write, 1).unwrap();
    assert!(world.is_block(0, first + block));
    world.discard(0, first, 2 * block).unwrap();
    world.advise(0, first, 2 * block, Advice::Pages).unwrap();
    world.touch(0, first + block, Access::Write, 1).unwrap();
    assert!(!world.is_block(0, first + block) && !world.is_group(0, first + block));
    world.check();
    world.end();
}
