//! Faults that are dealt with late: a CPU takes a fault, and before it has the lock of the space
//! another CPU of the same process unmaps the page, protects it, forks, copies it or makes it. What
//! comes of the fault is what the tables are by then, never what they were.

use super::processes::Processes;
use crate::shape::Shape;
use granule::arch::{Page, Page4K, Page16K, Page64K};
use granule::space::{Access, Rights};

/// The state of a page when the fault is taken.
#[derive(Clone, Copy, Debug)]
enum Before {
    Absent,
    Read,
    Written,
    /// Shared with a child.
    Shared,
    /// One of a group.
    Grouped,
    /// One of a group that is shared with a child.
    GroupShared,
    /// One of a block.
    Block,
    /// One of a block that is shared with a child.
    BlockShared,
}

/// The action of the other CPU meanwhile.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    SameFault,
    Write,
    Unmap,
    UnmapAndMapAgain,
    ReadOnly,
    NoRights,
    ReadOnlyAndBack,
    Fork,
    ChildEnds,
}

const BLOCKS: [Before; 2] = [Before::Block, Before::BlockShared];

const BEFORE: [Before; 6] = [
    Before::Absent,
    Before::Read,
    Before::Written,
    Before::Shared,
    Before::Grouped,
    Before::GroupShared,
];

const MEANWHILE: [Meanwhile; 10] = [
    Meanwhile::Nothing,
    Meanwhile::SameFault,
    Meanwhile::Write,
    Meanwhile::Unmap,
    Meanwhile::UnmapAndMapAgain,
    Meanwhile::ReadOnly,
    Meanwhile::NoRights,
    Meanwhile::ReadOnlyAndBack,
    Meanwhile::Fork,
    Meanwhile::ChildEnds,
];

fn prepare<P: Page>(machine: &mut Processes<P>, first: u64, group: u64, before: Before) {
    machine.map(0, first, group, Rights::READ_WRITE);
    let page = first + 3;
    let mut touch = |pages: core::ops::Range<u64>, access| {
        for page in pages {
            assert_eq!(machine.touch(0, page, access, page), Ok(()));
        }
    };
    match before {
        Before::Absent => {}
        Before::Read => touch(page..page + 1, Access::Read),
        Before::Written | Before::Shared => touch(page..page + 1, Access::Write),
        Before::Grouped | Before::GroupShared => touch(first..first + group, Access::Write),
        Before::Block | Before::BlockShared => touch(first..first + 1, Access::Write),
    }
    if matches!(
        before,
        Before::Shared | Before::GroupShared | Before::BlockShared
    ) {
        assert_eq!(machine.fork(0), Ok(1));
    }
    machine.check();
}

fn act<P: Page>(
    machine: &mut Processes<P>,
    (first, group): (u64, u64),
    access: Access,
    what: Meanwhile,
) {
    let page = first + 3;
    machine.on(0);
    match what {
        Meanwhile::Nothing => {}
        Meanwhile::SameFault => machine.late_fault(0, page, access),
        Meanwhile::Write => assert_eq!(machine.touch(0, page, Access::Write, 77), Ok(())),
        Meanwhile::Unmap => machine.unmap(0, page, 1),
        Meanwhile::UnmapAndMapAgain => {
            machine.unmap(0, page, 1);
            assert!(machine.map(0, page, 1, Rights::READ));
        }
        Meanwhile::ReadOnly => machine.protect(0, page, 1, Rights::READ),
        Meanwhile::NoRights => machine.protect(0, page, 1, Rights::NONE),
        Meanwhile::ReadOnlyAndBack => {
            machine.protect(0, page, 1, Rights::READ);
            // All of it, so that it is whole again.
            machine.protect(0, first, group, Rights::READ_WRITE);
        }
        Meanwhile::Fork => assert!(machine.fork(0).is_ok()),
        Meanwhile::ChildEnds => {
            if machine.all.len() > 1 {
                machine.switch(2, Some(1));
                machine.exit(2);
                machine.switch(2, Some(0));
            }
        }
    }
}

fn all<P: Page>(va_bits: u32) {
    let group = P::SIZE.contiguous_entries(granule::arch::Level::L3) as u64;
    each::<P>(va_bits, group, &BEFORE);
}

fn each<P: Page>(va_bits: u32, group: u64, befores: &[Before]) {
    for (hardware, bbm_level) in [(false, 0), (true, 0), (true, 3)] {
        let shape = Shape::kernel(va_bits)
            .asid(1)
            .cpus(3)
            .hardware(hardware)
            .bbm_level(bbm_level);
        for &before in befores {
            for what in MEANWHILE {
                for access in [Access::Read, Access::Write, Access::Execute] {
                    let mut machine = Processes::<P>::new(shape, 5);
                    machine.start();
                    let first = 4 * group;
                    prepare(&mut machine, first, group, before);
                    act(&mut machine, (first, group), access, what);
                    machine.check();
                    // The CPU that took the fault has the lock at last. `late_fault` checks whether
                    // what came of it is what the program may.
                    machine.late_fault(1, first + 3, access);
                    machine.check();
                    // The program tries again, and what it does there holds.
                    assert_eq!(machine.touch(1, first + 3, access, 99), Ok(()));
                    assert_eq!(machine.touch(2, first + 3, Access::Read, 0), Ok(()));
                    machine.check();
                    machine.end();
                }
            }
        }
    }
}

#[test]
fn a_fault_that_comes_late_finds_the_tables_as_they_are_4k() {
    all::<Page4K>(39);
}

#[test]
fn a_fault_that_comes_late_finds_blocks_as_they_are() {
    each::<Page4K>(39, Page4K::SIZE.entries() as u64, &BLOCKS);
}

#[test]
fn a_fault_that_comes_late_finds_the_tables_as_they_are_16k() {
    all::<Page16K>(47);
}

#[test]
fn a_fault_that_comes_late_finds_the_tables_as_they_are_64k() {
    all::<Page64K>(42);
}
