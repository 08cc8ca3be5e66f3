//! The contiguous hint: when it comes and goes, and what hardware noted in between.

use crate::world::World;
use granule::arch::bbm::BbmLevel;
use granule::arch::{Dispatch, Geometry, Page, Page4K, PageSize, VaRange};
use granule::space::{Access, Advice, Fault, LargeLeaves, Rights, Settings};
use granule::table::Visibility;
use granule_testing::host::Event;
use granule_testing::shape::{LARGE, PLAIN};

pub const HARDWARE: Settings = Settings {
    hardware_access: true,
    hardware_dirty: true,
    ..Settings::PLAIN
};

pub fn geometries() -> [Geometry; 3] {
    [
        PLAIN.geometry(PageSize::K4, 39, VaRange::Lower),
        LARGE.geometry(PageSize::K16, 47, VaRange::Lower),
        LARGE.geometry(PageSize::K64, 42, VaRange::Lower),
    ]
}

/// A world with one process and a VMA of two groups, from the second group of the space on, in which
/// pages come one by one.
fn world<P: Page>(geometry: Geometry, settings: Settings) -> (World<P>, u64) {
    let mut world = World::<P>::new(geometry, settings);
    world.frames.runs = false;
    world.start();
    let group = world.arch.contiguous(3);
    world
        .map(0, group, 2 * group, Rights::READ_WRITE, 0)
        .unwrap();
    (world, group)
}

struct Sequential(Geometry, Settings, bool);
impl Dispatch for Sequential {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group) = world::<P>(self.0, self.1);
        let mut order: Vec<u64> = (group..3 * group).collect();
        if self.2 {
            order.reverse();
        }
        for (touched, page) in order.into_iter().enumerate() {
            let fault = world.touch(0, page, Access::Write, page).unwrap();
            assert_eq!(fault, Some(Fault::Mapped));
            let stats = world.processes[0].space.stats();
            assert_eq!(
                stats.folded,
                (touched as u64 + 1) / group,
                "after {touched}"
            );
        }
        world.check();
        // Every second page goes: the groups first.
        world.unmap(0, group + 1, 1).unwrap();
        world.check();
        assert_eq!(world.processes[0].space.stats().unfolded, 1);
        // And comes again: the frame is the same, so the group is whole.
        world.touch(0, group + 2, Access::Read, 0).unwrap();
        world.map(0, group + 1, 1, Rights::READ_WRITE, 0).unwrap();
        world.touch(0, group + 1, Access::Write, 5).unwrap();
        world.check();
        assert_eq!(world.processes[0].space.stats().folded, 3);
        // A fork leaves groups as they are, and so does the end of the child.
        let child = world.fork(0).unwrap();
        world.check();
        world.exit(child);
        world.check();
        // All of the group is the parent's alone again: one fault for all of it.
        let fault = world.touch(0, group + 7, Access::Write, 1).unwrap();
        assert_eq!(fault, Some(Fault::Reused));
        let fault = world.touch(0, group + 8, Access::Write, 1).unwrap();
        assert_eq!(fault, None);
        // Of a group that is shared one page is copied, and the group taken apart.
        let child = world.fork(0).unwrap();
        let fault = world.touch(child, group + 3, Access::Write, 9).unwrap();
        assert_eq!(fault, Some(Fault::Copied));
        assert_eq!(world.processes[child].space.stats().unfolded, 1);
        world.check();
        let fault = world.touch(0, group + 3, Access::Write, 8).unwrap();
        assert_eq!(fault, Some(Fault::Reused), "the child has its own by now");
        world.check();
        world.end();
    }
}

#[test]
fn whole_groups_get_the_hint_and_lose_it() {
    let geometries = geometries();
    if cfg!(miri) {
        // Each takes Miri most of a minute: the one with most.
        let settings = Settings {
            bbm: BbmLevel::Level3,
            ..HARDWARE
        };
        let run = Sequential(geometries[0], settings, true);
        geometries[0].page_size().dispatch(run);
        return;
    }
    for geometry in geometries {
        for settings in [Settings::PLAIN, HARDWARE] {
            for bbm in [BbmLevel::Level0, BbmLevel::Level1, BbmLevel::Level3] {
                for downward in [false, true] {
                    let settings = Settings { bbm, ..settings };
                    geometry
                        .page_size()
                        .dispatch(Sequential(geometry, settings, downward));
                }
            }
        }
    }
}

/// Two VMAs with other rights, whose entries are alike until the first is written.
#[test]
fn a_group_never_reaches_into_another_area() {
    for settings in [Settings::PLAIN, HARDWARE] {
        for bbm in [BbmLevel::Level0, BbmLevel::Level3] {
            let settings = Settings { bbm, ..settings };
            let (mut world, group) = world::<Page4K>(geometries()[0], settings);
            for page in group..2 * group {
                world.touch(0, page, Access::Write, page).unwrap();
            }
            world.protect(0, group, group, Rights::READ).unwrap();
            let (half, last) = (group / 2, 2 * group - 1);
            world.protect(0, group, half, Rights::READ_WRITE).unwrap();
            // A page of the second VMA goes and comes again, in the same frame.
            world.frames.reusing = true;
            world.discard(0, last, 1).unwrap();
            world.touch(0, last, Access::Read, 0).unwrap();
            let folded = world.processes[0].space.stats().folded;
            world.touch(0, group, Access::Write, 7).unwrap();
            world.check();
            assert_eq!(folded, 1, "only as one VMA");
            // With the same rights again they are one VMA, and one group.
            world.protect(0, group, group, Rights::READ_WRITE).unwrap();
            for page in group..2 * group {
                world.touch(0, page, Access::Write, page).unwrap();
            }
            world.check();
            assert_eq!(world.processes[0].space.stats().folded, 2);
            world.end();
        }
    }
}

#[test]
fn hardware_updates_of_one_member_are_kept_for_the_group() {
    for bbm in [BbmLevel::Level0, BbmLevel::Level3] {
        let settings = Settings { bbm, ..HARDWARE };
        let (mut world, group) = world::<Page4K>(geometries()[0], settings);
        // All are read, so all are clean; the kernel read some, so those have no access flag.
        for page in group..2 * group {
            if page % 3 == 0 {
                world.by_kernel(0, page, Access::Read, 0).unwrap();
            } else {
                world.touch(0, page, Access::Read, 0).unwrap();
            }
        }
        let state = |world: &World<Page4K>, page| {
            let address = world.address(page);
            world.processes[0].space.page(address).unwrap()
        };
        assert!(state(&world, group).contiguous);
        assert!(!state(&world, group).dirty, "only read");
        // Hardware notes a write in the one member that is written.
        world.touch(0, group + 4, Access::Write, 1).unwrap();
        // And none in another: the group is dirty already.
        world.touch(0, group + 5, Access::Write, 2).unwrap();
        assert!(state(&world, group + 5).dirty);
        // Taken apart, each must record that for itself.
        world.unmap(0, group + 4, 1).unwrap();
        assert!(!state(&world, group + 5).contiguous);
        assert!(state(&world, group + 5).dirty, "the write is forgotten");
        assert!(state(&world, group + 5).accessed);
        world.check();
        world.end();
    }
}

#[test]
fn members_that_hardware_may_update_are_taken_out_one_by_one() {
    // The model judges the order; here: nothing but exchanges and fills, and one invalidation.
    let (mut world, group) = world::<Page4K>(geometries()[0], HARDWARE);
    for page in group..2 * group - 1 {
        world.touch(0, page, Access::Read, 0).unwrap();
    }
    world.host.take_events();
    world.touch(0, 2 * group - 1, Access::Read, 0).unwrap();
    let events = world.host.take_events();
    let cleared = events.iter().filter(|event| {
        matches!(
            event,
            Event::Store {
                count: 1,
                descriptor: 0,
                ..
            }
        )
    });
    assert_eq!(cleared.count() as u64, group);
    assert_eq!(world.processes[0].space.stats().folded, 1);
    world.end();
}

/// Another CPU in the space may walk by the entry as soon as it is stored: what the page held
/// before must be gone by then.
#[test]
fn a_page_is_made_zero_before_others_can_walk_to_it() {
    for settings in [Settings::PLAIN, HARDWARE] {
        let (mut world, group) = world::<Page4K>(geometries()[0], settings);
        for page in group..2 * group {
            world.touch(0, page, Access::Read, 0).unwrap();
            let events = world.host.take_events();
            let stored = events.iter().find_map(|event| match *event {
                Event::Store {
                    count: 1,
                    descriptor,
                    visibility,
                    ..
                } if descriptor & 1 << 6 != 0 => Some(visibility),
                _ => None,
            });
            assert_eq!(stored, Some(Visibility::Publish), "page {page:#x}");
        }
        world.end();
    }
}

#[test]
fn tables_that_are_left_empty_are_given_back_whatever_was_taken_away() {
    for geometry in geometries() {
        if cfg!(miri) && geometry.page_size() != PageSize::K4 {
            continue;
        }
        geometry.page_size().dispatch(Emptied(geometry));
    }
}

struct Emptied(Geometry);
impl Dispatch for Emptied {
    type Output = ();
    fn run<P: Page>(self) {
        let mut world = World::<P>::new(self.0, Settings::PLAIN);
        world.start();
        let table = P::SIZE.entries() as u64;
        let pages = self.0.span() / P::SIZE.bytes();
        // Alone in its tables, across two of them, and beside something in the same one.
        let places = [(pages / 2, 1), (3 * table - 2, 4), (5, 2)];
        for (page, count) in places {
            world.map(0, page, count, Rights::READ_WRITE, 0).unwrap();
            for page in page..page + count {
                world.touch(0, page, Access::Write, page).unwrap();
            }
        }
        let before = world.host.given_out();
        world.unmap(0, 5, 1).unwrap();
        assert_eq!(world.host.given_out(), before, "its neighbour is there");
        for (page, count) in [(0, 7), (3 * table - 2, 4), (pages / 2, 1)] {
            let before = world.host.given_out();
            world.unmap(0, page, count).unwrap();
            assert!(world.host.given_out() < before);
            world.check();
        }
        assert_eq!(world.host.given_out(), 1, "the root");
        world.end();
    }
}

/// The TLBIs, DSBs and ISBs among events, and the stores of leaves that EL0 may use.
pub fn counts(events: &[Event]) -> [usize; 4] {
    let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    [
        count(|event| matches!(event, Event::Tlbi(_) | Event::OtherTlbi(..))),
        count(|event| matches!(event, Event::DsbIshst | Event::DsbIsh)),
        count(|event| matches!(event, Event::Isb)),
        events
            .iter()
            .map(|event| match *event {
                Event::Store {
                    count, descriptor, ..
                } if descriptor & (1 << 6 | 1) == 1 << 6 | 1 => count,
                _ => 0,
            })
            .sum(),
    ]
}

struct AtOnce(Geometry, Settings);
impl Dispatch for AtOnce {
    type Output = ();
    fn run<P: Page>(self) {
        let (mut world, group) = world::<P>(self.0, self.1);
        world.frames.runs = true;
        for (number, start) in [group, 2 * group].into_iter().enumerate() {
            world.host.take_events();
            let fault = world.touch(0, start + 5, Access::Write, 1).unwrap();
            assert_eq!(fault, Some(Fault::Mapped));
            let events = world.host.take_events();
            assert_eq!(counts(&events), [0, 1, 1, group as usize]);
            for page in start..start + group {
                assert_eq!(world.touch(0, page, Access::Write, page), Ok(None));
            }
            assert_eq!(world.host.take_events(), [], "no fault, no change");
            let stats = world.processes[0].space.stats();
            assert_eq!((stats.groups, stats.folded), (number as u64 + 1, 0));
            assert_eq!(
                (stats.mapped, stats.resident),
                (stats.groups * group, stats.mapped)
            );
            world.check();
        }
        world.end();
    }
}

#[test]
fn a_first_touch_maps_a_whole_group_without_a_tlbi() {
    for geometry in geometries() {
        if cfg!(miri) && geometry.page_size() != PageSize::K4 {
            continue;
        }
        for settings in [Settings::PLAIN, HARDWARE] {
            let settings = Settings {
                large_leaves: LargeLeaves::GROUPS,
                ..settings
            };
            geometry.page_size().dispatch(AtOnce(geometry, settings));
        }
    }
}

/// Without large leaves a page is a page, whatever frames there are and whatever a program requests.
#[test]
fn pages_alone_take_no_tlbi_and_get_no_hint() {
    let settings = Settings {
        large_leaves: LargeLeaves::OFF,
        ..Settings::PLAIN
    };
    for (runs, advice) in [
        (false, Advice::None),
        (true, Advice::None),
        (true, Advice::Large),
    ] {
        let (mut world, group) = world::<Page4K>(geometries()[0], settings);
        world.frames.runs = runs;
        world.advise(0, group, 2 * group, advice).unwrap();
        for page in group..3 * group {
            world.host.take_events();
            let fault = world.touch(0, page, Access::Write, page).unwrap();
            assert_eq!(fault, Some(Fault::Mapped));
            assert_eq!(counts(&world.host.take_events()), [0, 1, 1, 1]);
        }
        let stats = world.processes[0].space.stats();
        assert_eq!(
            (stats.groups, stats.folded, stats.mapped),
            (0, 0, 2 * group)
        );
        world.check();
        world.end();
    }
}

#[test]
fn a_group_is_made_only_where_nothing_is_mapped_and_one_area_has_all_of_it() {
    let (mut world, group) = world::<Page4K>(geometries()[0], Settings::PLAIN);
    world.touch(0, group + 3, Access::Write, 1).unwrap();
    world.frames.runs = true;
    // A page is there already.
    world.touch(0, group + 4, Access::Write, 1).unwrap();
    // The last page of the group is in no area.
    world.unmap(0, 3 * group - 1, 1).unwrap();
    world.touch(0, 2 * group, Access::Write, 1).unwrap();
    assert_eq!(world.processes[0].space.stats().groups, 0);
    assert_eq!(world.processes[0].space.stats().mapped, 3);
    // It is in another area.
    world.map(0, 3 * group - 1, 1, Rights::READ, 0).unwrap();
    world.touch(0, 2 * group + 1, Access::Write, 1).unwrap();
    assert_eq!(world.processes[0].space.stats().groups, 0);
    // A program that requests pages gets pages.
    world.discard(0, group, group).unwrap();
    world.advise(0, group, group, Advice::Pages).unwrap();
    world.touch(0, group, Access::Write, 1).unwrap();
    // They stay pages when the group is complete: to fold it would take TLBIs.
    for page in group..2 * group {
        world.touch(0, page, Access::Write, 1).unwrap();
    }
    let stats = world.processes[0].space.stats();
    assert_eq!((stats.groups, stats.folded), (0, 0));
    world.discard(0, group, group).unwrap();
    world.advise(0, group, group, Advice::None).unwrap();
    world.touch(0, group, Access::Write, 1).unwrap();
    assert_eq!(world.processes[0].space.stats().groups, 1);
    world.check();
    world.end();
}
