//! Frames of another owner, mapped into a space as well.

use crate::frames::Frames;
use crate::groups::HARDWARE;
use crate::world::World;
use granule::arch::{Dispatch, Geometry, Page, Page64K, PageSize, VaRange, VirtualAddress};
use granule::space::{Access, Fault, Rights, Settings, SpaceError};
use granule_testing::shape::{LARGE, PLAIN};

/// Maps the first two groups of process `from`, which are one run, into `to` from the same page on.
fn map_shared<P: Page>(world: &mut World<P>, page: u64, count: u64) -> Result<(), SpaceError> {
    let (start, bytes) = (world.address(page), count * world.page());
    let first = world.processes[0].space.page(start).unwrap().frame;
    let content = world.processes[0].reference.pages.clone();
    let done = {
        let space = &mut world.processes[1].space;
        // SAFETY: process 0 keeps its frames, and they follow each other.
        unsafe { space.map_shared(start, bytes, first, &mut world.frames) }
    };
    for (at, known) in &mut world.processes[1].reference.pages {
        if (page..page + count).contains(at) && done.is_ok() {
            known.value = content[at].value;
        }
    }
    done
}

struct Shares(Geometry, Settings, bool);
impl Dispatch for Shares {
    type Output = ();
    fn run<P: Page>(self) {
        let Self(geometry, settings, writable) = self;
        let mut world = World::<P>::new(geometry, settings);
        let (owner, reader) = (world.start(), world.start());
        let group = world.arch.contiguous(3);
        let rights = Rights {
            write: writable,
            ..Rights::READ_WRITE
        };
        world
            .map(owner, group, group, Rights::READ_WRITE, 0)
            .unwrap();
        for page in group..2 * group {
            world.touch(owner, page, Access::Write, page).unwrap();
        }
        let nowhere = map_shared(&mut world, group, 1);
        assert!(matches!(nowhere, Err(SpaceError::NotMapped { .. })));
        world.map(reader, group, group, rights, 0).unwrap();
        map_shared(&mut world, group, group).unwrap();
        assert_eq!(world.processes[1].space.stats().folded, 1);
        for page in group..2 * group {
            // The same content, and the owner's frame: a write would be seen.
            world.touch(reader, page, Access::Read, 0).unwrap();
        }
        let fault = world.touch(reader, group + 3, Access::Write, 77).unwrap();
        assert_eq!(fault, writable.then_some(Fault::Copied));
        world.touch(owner, group + 3, Access::Read, 0).unwrap();
        let twice = map_shared(&mut world, group, 2);
        let address = VirtualAddress(group * world.page());
        assert_eq!(twice, Err(SpaceError::Occupied { address }));
        let child = world.fork(reader).unwrap();
        world.touch(child, group + 1, Access::Read, 0).unwrap();
        // The owner goes first: the frames stay as long as a program has them.
        world.unmap(owner, group, group).unwrap();
        for page in group..2 * group {
            world.touch(reader, page, Access::Read, 0).unwrap();
        }
        world.exit(child);
        if writable {
            let fault = world.touch(reader, group + 5, Access::Write, 1).unwrap();
            assert_eq!(fault, Some(Fault::Reused));
        }
        world.end();
    }
}

#[test]
fn frames_of_another_owner_are_read_and_copied_at_the_first_write() {
    for geometry in [
        PLAIN.geometry(PageSize::K4, 39, VaRange::Lower),
        LARGE.geometry(PageSize::K16, 47, VaRange::Lower),
        LARGE.geometry(PageSize::K64, 42, VaRange::Lower),
    ] {
        for settings in [Settings::PLAIN, HARDWARE] {
            for writable in [false, true] {
                geometry
                    .page_size()
                    .dispatch(Shares(geometry, settings, writable));
                if cfg!(miri) {
                    return;
                }
            }
        }
    }
}

/// A type of frames serves any space, so each call checks the size: a frame of 4 KiB as a page of 64 KiB
/// would be the memory of sixteen owners.
#[test]
fn frames_of_another_page_size_are_refused() {
    let mut world = World::<Page64K>::new(
        PLAIN.geometry(PageSize::K64, 42, VaRange::Lower),
        Settings::PLAIN,
    );
    world.start();
    world.map(0, 0, 4, Rights::READ_WRITE, 0).unwrap();
    world.touch(0, 1, Access::Write, 1).unwrap();
    let mut child = world.new_space().unwrap();
    let (at, bytes) = (world.address(1), world.page());
    let space = &mut world.processes[0].space;
    let frame = space.page(at).unwrap().frame;
    let mut others = Frames::new(0x10_0000, 0x1000, 64, 0);
    let frames = &mut others;
    let refused = Err(SpaceError::WrongFrames {
        given: PageSize::K4,
        page: PageSize::K64,
    });
    assert_eq!(space.fault(at, Access::Write, frames).map(|_| ()), refused);
    assert_eq!(
        space.frame_for(at, Access::Read, frames).map(|_| ()),
        refused
    );
    assert_eq!(space.unmap(at, bytes, frames), refused);
    assert_eq!(space.map_over(at, bytes, Rights::READ, 0, frames), refused);
    assert_eq!(space.discard(at, bytes, frames), refused);
    assert_eq!(space.protect(at, bytes, Rights::READ, frames), refused);
    assert_eq!(space.fork_into(&mut child, frames), refused);
    // SAFETY: the call fails before it maps anything.
    let shared = unsafe { space.map_shared(at, bytes, frame, frames) };
    assert_eq!(shared, refused);
    space.clear(frames);
    assert_eq!(space.page(at).map(|page| page.frame), Some(frame));
    assert_eq!(space.vmas().len(), 1);
    // SAFETY: no CPU walks the tables.
    let _ = unsafe { child.destroy(&mut world.frames) };
    world.end();
}
