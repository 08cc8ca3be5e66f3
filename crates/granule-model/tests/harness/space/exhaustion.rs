//! Running out of frames or tables at each single allocation of each operation on a space, while
//! other CPUs run in it and hardware updates its entries: the error is reported, no rule is broken,
//! what the programs have is as it was, and nothing is lost or owned twice.

use super::processes::Processes;
use crate::shape::Shape;
use granule::arch::{Page, Page4K, Page16K, Page64K};
use granule::space::{Access, Rights, SpaceError};
use granule::table::TableError;

/// Tries with nothing, then with one more of one, until it is done; how often it was refused.
fn until_done<P: Page, T>(
    machine: &mut Processes<P>,
    mut operation: impl FnMut(&mut Processes<P>) -> Result<T, SpaceError>,
) -> u64 {
    let mut refused = 0;
    for most in 0..40 {
        for (tables, frames) in [(most, 0), (0, most), (most, most)] {
            let before = (machine.frames.owned(), machine.all.len());
            let mut pages = machine.tables.borrow_mut();
            // At every other try the trees themselves hold the pages.
            (pages.left, pages.reserves) = (tables, !pages.reserves);
            drop(pages);
            machine.frames.left = frames;
            let done = operation(machine);
            machine.tables.borrow_mut().left = u64::MAX;
            machine.frames.left = u64::MAX;
            machine.check();
            match done {
                Ok(_) => return refused,
                Err(
                    SpaceError::OutOfFrames { .. }
                    | SpaceError::Tables(TableError::OutOfTables { .. }),
                ) => {}
                Err(error) => panic!("{error}"),
            }
            assert_eq!((machine.frames.owned(), machine.all.len()), before);
            refused += 1;
        }
    }
    panic!("it is never done");
}

/// Plays on a machine of each kind; how often an operation was refused.
fn all<P: Page>(va_bits: u32, play: impl Fn(&mut Processes<P>) -> u64) -> u64 {
    let mut refused = 0;
    for (hardware, bbm_level) in [(false, 0), (true, 0), (true, 3)] {
        let shape = Shape::kernel(va_bits)
            .asid(1)
            .cpus(3)
            .hardware(hardware)
            .bbm_level(bbm_level);
        let mut machine = Processes::<P>::new(shape, 3);
        machine.start();
        refused += play(&mut machine);
        machine.end();
    }
    refused
}

/// Each operation until it is done, with a first process that CPUs 0 to 2 run; how often one was
/// refused.
pub(super) fn play<P: Page>(machine: &mut Processes<P>) -> u64 {
    let mut refused = 0;
    let pages = machine.geometry.span() / P::SIZE.bytes();
    let table = P::SIZE.entries() as u64;
    let group = P::SIZE.contiguous_entries(granule::arch::Level::L3) as u64;
    // Each with tables of its own at every level.
    let places = [group, pages / 2, pages - table];
    for place in places {
        machine.map(0, place, 2 * group, Rights::READ_WRITE);
    }
    refused += until_done(machine, |machine| {
        machine.touch(0, places[0], Access::Write, 1)
    });
    refused += until_done(machine, |machine| {
        machine.touch(1, places[1], Access::Read, 0)
    });
    refused += until_done(machine, |machine| {
        machine.by_kernel(2, places[2], Access::Write, 3)
    });
    // A page in a table that is there takes a frame, the last of a group too.
    for page in 1..group {
        refused += until_done(machine, |machine| {
            machine.touch(0, places[0] + page, Access::Write, page)
        });
    }
    refused += until_done(machine, |machine| machine.fork(0));
    machine.switch(1, Some(1));
    // A copy out of a group, of a page, by the kernel, by parent and child.
    for (cpu, page) in [(0, places[0] + 5), (1, places[0] + 6), (1, places[2])] {
        refused += until_done(machine, |machine| {
            machine.touch(cpu, page, Access::Write, 9)
        });
    }
    refused += until_done(machine, |machine| {
        machine.by_kernel(1, places[0] + 7, Access::Write, 8)
    });
    refused += until_done(machine, |machine| machine.fork(1));
    // To take away and to restrict takes nothing; half groups, too.
    machine.tables.borrow_mut().left = 0;
    machine.frames.left = 0;
    machine.protect(0, places[0] + 2, 1, Rights::READ);
    machine.unmap(0, places[0] + group / 2, group);
    machine.check();
    machine.switch(1, Some(2));
    machine.exit(1);
    machine.check();
    machine.frames.left = u64::MAX;
    machine.tables.borrow_mut().left = u64::MAX;
    refused
}

/// As [`play`], of blocks.
fn play_with_blocks(machine: &mut Processes<Page4K>) -> u64 {
    let mut refused = 0;
    let block = Page4K::SIZE.entries() as u64;
    machine.map(0, block, 2 * block, Rights::READ_WRITE);
    for page in [block, 2 * block] {
        assert_eq!(machine.touch(0, page, Access::Write, page), Ok(()));
    }
    refused += until_done(machine, |machine| machine.fork(0));
    machine.switch(1, Some(1));
    // A copy takes a table, and a frame; a page that nobody else has, a table.
    for (cpu, page) in [(0, block + 5), (1, block + 5), (1, 2 * block)] {
        refused += until_done(machine, |machine| {
            machine.touch(cpu, page, Access::Write, 9)
        });
    }
    assert!(
        machine
            .all
            .iter()
            .all(|process| process.space.stats().split > 0)
    );
    machine.exit(1);
    machine.on(0);
    machine.check();
    refused += until_done(machine, |machine| {
        machine.try_protect(0, 2 * block + 1, 1, Rights::READ)
    });
    machine.unmap(0, block, block);
    assert!(machine.map(0, block, block, Rights::READ_WRITE));
    assert_eq!(machine.touch(0, block, Access::Write, 1), Ok(()));
    refused += until_done(machine, |machine| machine.try_unmap(0, block + 7, 1));
    machine.check();
    refused
}

#[test]
fn every_allocation_round_blocks_fails_on_the_model() {
    let refused = all::<Page4K>(39, play_with_blocks);
    assert!(refused > 20, "{refused}");
}

#[test]
fn every_allocation_fails_on_the_model() {
    for (size, refused) in [
        ("4k", all::<Page4K>(39, play)),
        ("4k, 48 bits", all::<Page4K>(48, play)),
        ("16k", all::<Page16K>(47, play)),
        ("64k", all::<Page64K>(42, play)),
    ] {
        assert!(refused > 60, "{size}: {refused}");
    }
}
