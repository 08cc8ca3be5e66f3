//! Pages that may be written again: at once where nobody else has them, at the first write else.

use crate::groups::HARDWARE;
use crate::world::World;
use granule::arch::bbm::BbmLevel;
use granule::arch::{Dispatch, Geometry, Page, PageSize, VaRange};
use granule::space::{Access, Fault, Rights, Settings};
use granule_testing::shape::{LARGE, PLAIN};

/// Runs a case for every page size, with and without hardware's updates, and with groups broken or
/// changed in place.
fn everywhere<T: Dispatch>(case: impl Fn(Geometry, Settings) -> T) {
    let geometries = [
        PLAIN.geometry(PageSize::K4, 39, VaRange::Lower),
        LARGE.geometry(PageSize::K16, 47, VaRange::Lower),
        LARGE.geometry(PageSize::K64, 42, VaRange::Lower),
    ];
    for geometry in geometries {
        for settings in [Settings::PLAIN, HARDWARE] {
            for bbm in [BbmLevel::Level0, BbmLevel::Level3] {
                // Each takes Miri minutes: the one with the most to do.
                let most = settings == HARDWARE && bbm == BbmLevel::Level0;
                if cfg!(miri) && (geometry.page_size() != PageSize::K4 || !most) {
                    continue;
                }
                let settings = Settings { bbm, ..settings };
                geometry.page_size().dispatch(case(geometry, settings));
            }
        }
    }
}

/// A process with two groups and three pages, all written, none shared.
fn world<P: Page>(geometry: Geometry, settings: Settings) -> (World<P>, u64, u64) {
    let mut world = World::<P>::new(geometry, settings);
    world.start();
    let group = world.arch.contiguous(3);
    let pages = 2 * group + 3;
    let rights = Rights::READ_WRITE;
    world.map(0, group, pages, rights, 0).unwrap();
    for page in group..group + pages {
        world.touch(0, page, Access::Write, page).unwrap();
    }
    (world, group, pages)
}

impl<P: Page> World<P> {
    /// Makes pages read-only, and writable again.
    fn there_and_back(&mut self, page: u64, count: u64) {
        self.protect(0, page, count, Rights::READ).unwrap();
        self.check();
        self.protect(0, page, count, Rights::READ_WRITE).unwrap();
        self.check();
    }

    /// Writes a page as the first process, and returns the fault that it takes.
    fn write(&mut self, page: u64) -> Option<Fault> {
        let fault = self.touch(0, page, Access::Write, page + 100).unwrap();
        self.check();
        fault
    }

    fn is_whole(&self, page: u64) -> bool {
        let address = self.address(page);
        self.processes[0].space.page(address).unwrap().contiguous
    }
}

struct Alone(Geometry, Settings);
impl Dispatch for Alone {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group, pages) = world::<P>(self.0, self.1);
        // One that is only read is a zeroed one of the space's own, and one is not there at all.
        let more = group + pages;
        world.map(0, more, 2, Rights::READ_WRITE, 0).unwrap();
        world.touch(0, more, Access::Read, 0).unwrap();
        world.there_and_back(group, pages + 2);
        assert!(world.is_whole(group) && world.is_whole(2 * group));
        for page in group..more + 1 {
            assert_eq!(world.write(page), None, "page {page:#x}");
        }
        assert_eq!(world.write(more + 1), Some(Fault::Mapped));
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes; that of mixed groups goes through all code")]
fn pages_that_nobody_else_has_are_written_without_a_fault() {
    everywhere(Alone);
}

struct Unreachable(Geometry, Settings);
impl Dispatch for Unreachable {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group, pages) = world::<P>(self.0, self.1);
        for rights in [Rights::NONE, Rights::READ_EXECUTE] {
            world.protect(0, group, pages, rights).unwrap();
            world.check();
            let rights = Rights::READ_WRITE;
            world.protect(0, group, pages, rights).unwrap();
            for page in [group, 2 * group + 1, group + pages - 1] {
                assert_eq!(world.write(page), None, "page {page:#x}");
            }
        }
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes; that of mixed groups goes through all code")]
fn unreadable_pages_become_writable_without_a_fault() {
    everywhere(Unreachable);
}

struct Shared(Geometry, Settings);
impl Dispatch for Shared {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group, pages) = world::<P>(self.0, self.1);
        let child = world.fork(0).unwrap();
        world.there_and_back(group, pages);
        // The reference detects a write that the child would see.
        for page in [group + 1, 2 * group, group + pages - 1] {
            assert_eq!(world.write(page), Some(Fault::Copied), "page {page:#x}");
        }
        let fault = world.touch(child, group + 1, Access::Read, 0).unwrap();
        assert_eq!(fault, None);
        world.exit(child);
        // All are the parent's alone again.
        world.there_and_back(group, pages);
        for page in group..group + pages {
            assert_eq!(world.write(page), None, "page {page:#x}");
        }
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes; that of mixed groups goes through all code")]
fn pages_that_a_child_has_too_are_copied_until_it_ends() {
    everywhere(Shared);
}

struct Mixed(Geometry, Settings);
impl Dispatch for Mixed {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group, pages) = world::<P>(self.0, self.1);
        // The child's own by now: one page of the parent's first group, all but one of its second,
        // and one of those in none.
        let child = world.fork(0).unwrap();
        let (second, last) = (2 * group, group + pages - 1);
        let (own, shared) = (group + 3, second + group - 1);
        for page in (second..shared).chain([own, last]) {
            world.touch(child, page, Access::Write, 7).unwrap();
        }
        world.check();
        world.there_and_back(group, pages);
        assert!(world.is_whole(group) && world.is_whole(second));
        // A group of which others have a part is left as it is, its pages that nobody has included.
        assert_eq!(world.write(own), Some(Fault::Reused));
        assert_eq!(world.write(own + 1), Some(Fault::Copied));
        assert_eq!(world.write(second), Some(Fault::Reused));
        assert_eq!(world.write(last - 1), Some(Fault::Copied));
        assert_eq!(world.write(last), None);
        // With the last one of the second group to itself, the parent has all of it.
        world.touch(child, shared, Access::Write, 8).unwrap();
        world.there_and_back(group, pages);
        for page in second..=shared {
            assert_eq!(world.write(page), None, "page {page:#x}");
        }
        world.exit(child);
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri three minutes")]
fn a_group_of_which_others_have_a_part_is_left_as_it_is() {
    everywhere(Mixed);
}

struct Cut(Geometry, Settings);
impl Dispatch for Cut {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group, _) = world::<P>(self.0, self.1);
        // From within one group until within the next.
        world.protect(0, group + 2, group, Rights::READ).unwrap();
        world.check();
        assert!(!world.is_whole(group) && !world.is_whole(2 * group));
        world
            .protect(0, group + 2, group, Rights::READ_WRITE)
            .unwrap();
        world.check();
        assert!(!world.is_whole(group) && !world.is_whole(2 * group));
        world.there_and_back(group, group);
        assert!(world.is_whole(group) && !world.is_whole(2 * group));
        world.there_and_back(group + 1, 2 * group - 1);
        assert!(!world.is_whole(group) && world.is_whole(2 * group));
        for page in group..3 * group {
            assert_eq!(world.write(page), None, "page {page:#x}");
        }
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes; that of mixed groups goes through all code")]
fn groups_that_were_cut_are_whole_again_by_a_change_of_all_of_them() {
    everywhere(Cut);
}

struct CutBefore(Geometry, Settings);
impl Dispatch for CutBefore {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group, pages) = world::<P>(self.0, self.1);
        // A page within the second group, by itself; then all.
        world.protect(0, 2 * group + 1, 1, Rights::READ).unwrap();
        assert!(!world.is_whole(2 * group));
        world.protect(0, group, pages, Rights::READ_WRITE).unwrap();
        world.check();
        assert!(world.is_whole(group) && world.is_whole(2 * group));
        for page in group..group + pages {
            assert_eq!(world.write(page), None, "page {page:#x}");
        }
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes; that of mixed groups goes through all code")]
fn groups_within_that_were_cut_before_are_whole_again() {
    everywhere(CutBefore);
}

struct Exhausted(Geometry, Settings);
impl Dispatch for Exhausted {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group, pages) = world::<P>(self.0, self.1);
        let child = world.fork(0).unwrap();
        world.touch(child, group + 3, Access::Write, 7).unwrap();
        world.frames.budget = 0;
        world.there_and_back(group, pages);
        // What needs no frame goes on, what does is refused and changes nothing.
        assert_eq!(world.write(group + 3), Some(Fault::Reused));
        let refused = world.touch(0, group + 4, Access::Write, 1);
        assert!(refused.is_err_and(|error| crate::world::ran_out(&error)));
        world.check();
        world.frames.budget = usize::MAX;
        assert_eq!(world.write(group + 4), Some(Fault::Copied));
        world.exit(child);
        world.end();
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes; that of mixed groups goes through all code")]
fn without_a_frame_to_be_had_rights_change_all_the_same() {
    everywhere(Exhausted);
}
