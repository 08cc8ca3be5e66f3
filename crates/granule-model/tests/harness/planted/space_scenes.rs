//! Scenes in which faults are planted: operations of processes on their address spaces.

use super::scenes::PAGE;
use crate::machine::{Shared, Tap};
use crate::shape::Shape;
use crate::space::processes::Processes;
use granule::arch::{Kind, Page, Page4K};
use granule::space::{Access, Rights};
use granule::table::Visit;
use std::cell::Cell;

pub(super) type Machine = Processes<Page4K>;

/// The first page that programs use: of a group, in a table of its own.
pub(super) const FIRST: u64 = 0x4000_0000 / PAGE;

/// The number of the first process in the first generation.
pub(super) const OLD_NUMBER: u64 = 1;

pub(super) const BLOCK_BYTES: u64 = 2 << 20;

thread_local! {
    /// The entry that leads to the table of the first page, in the machine of this thread.
    static ENTRY_OF_BLOCK: Cell<u64> = const { Cell::new(0) };
}

/// Finds the entry that leads to the table of the first page.
fn find_entry_of_block(machine: &Machine) {
    machine.all[0].space.tables().visit_all(|entry| {
        if entry.kind == Kind::Table && entry.bytes == BLOCK_BYTES {
            ENTRY_OF_BLOCK.set(entry.table.0 + entry.index as u64 * 8);
        }
        Visit::EVERYTHING
    });
}

/// The entry that [`find_entry_of_block`] found.
pub(super) fn entry_of_block() -> u64 {
    ENTRY_OF_BLOCK.get()
}

/// Two CPUs in one process with so many pages, which `access` touched.
pub(super) fn machine(pages: u64, access: Access) -> Machine {
    let shape = Shape::kernel(39).asid(1).hardware(true);
    let mut machine = Machine::new(shape, 1);
    machine.quiet = true;
    machine.start();
    machine.map(0, FIRST, 64, Rights::READ_WRITE);
    // Groups come together page by page.
    machine.frames.runs = false;
    touch(&mut machine, 0, pages, access);
    machine
}

/// The first page of a group is touched, of which another page is mapped.
pub(super) fn touch_beside(planted: Option<Tap>) -> Shared {
    let mut machine = machine(0, Access::Write);
    touch(&mut machine, 5, 1, Access::Write);
    machine.frames.runs = true;
    find_entry_of_block(&machine);
    machine.play(planted, |machine| touch(machine, 0, 1, Access::Write))
}

/// Two CPUs in one process with a block that was written.
pub(super) fn machine_with_block() -> Machine {
    let mut machine = machine(0, Access::Write);
    machine.unmap(0, FIRST, 64);
    machine.map(0, FIRST, BLOCK_BYTES / PAGE, Rights::READ_WRITE);
    machine.frames.runs = true;
    touch(&mut machine, 5, 1, Access::Write);
    assert_eq!(machine.all[0].space.stats().blocks, 1);
    machine
}

/// After a fork the parent writes a page of a block.
pub(super) fn copy_in_block(planted: Option<Tap>) -> Shared {
    let mut machine = machine_with_block();
    assert!(machine.fork(0).is_ok());
    machine.play(planted, |machine| touch(machine, 3, 1, Access::Write))
}

/// A group of a block was read-only, and all of the block becomes writable.
pub(super) fn merge_block(planted: Option<Tap>) -> Shared {
    let mut machine = machine_with_block();
    machine.protect(0, FIRST + 16, 16, Rights::READ);
    find_entry_of_block(&machine);
    machine.play(planted, |machine| {
        machine.protect(0, FIRST, BLOCK_BYTES / PAGE, Rights::READ_WRITE);
        assert_eq!(machine.all[0].space.stats().merged, 1);
    })
}

/// A block goes.
pub(super) fn unmap_block(planted: Option<Tap>) -> Shared {
    machine_with_block().play(planted, |machine| {
        machine.unmap(0, FIRST, BLOCK_BYTES / PAGE)
    })
}

/// As [`touch_beside`], where the last page of the group is in no VMA.
pub(super) fn touch_beside_nothing(planted: Option<Tap>) -> Shared {
    let mut machine = machine(0, Access::Write);
    touch(&mut machine, 16, 1, Access::Write);
    machine.unmap(0, FIRST + 15, 1);
    machine.frames.runs = true;
    machine.play(planted, |machine| touch(machine, 0, 1, Access::Write))
}

pub(super) fn touch(machine: &mut Machine, first: u64, count: u64, access: Access) {
    for page in first..first + count {
        // With a fault planted a page may not come to be.
        let _ = machine.touch(0, FIRST + page, access, page);
    }
    machine.on(0);
}

impl<P: Page> Processes<P> {
    /// Does something with a fault planted, and relies on it. Nothing was wrong before.
    pub(super) fn play(mut self, tap: Option<Tap>, does: impl FnOnce(&mut Self)) -> Shared {
        self.settle();
        assert_eq!(self.violations(), Vec::<String>::new());
        self.world.borrow_mut().tap = tap;
        does(&mut self);
        self.settle();
        self.world
    }
}

/// A process with ten pages that were written forks.
pub(super) fn fork(planted: Option<Tap>) -> Shared {
    machine(10, Access::Write).play(planted, |machine| {
        assert!(machine.fork(0).is_ok());
    })
}

/// After a fork the parent writes a page.
pub(super) fn copy(planted: Option<Tap>) -> Shared {
    let mut machine = machine(10, Access::Write);
    assert!(machine.fork(0).is_ok());
    machine.play(planted, |machine| touch(machine, 3, 1, Access::Write))
}

/// As [`copy`], where the pages are a group.
pub(super) fn copy_in_group(planted: Option<Tap>) -> Shared {
    let mut machine = machine(16, Access::Write);
    assert!(machine.fork(0).is_ok());
    machine.play(planted, |machine| touch(machine, 3, 1, Access::Write))
}

/// As [`copy`], where the page begins a group, and all of the one before was copied already.
pub(super) fn copy_next_group(planted: Option<Tap>) -> Shared {
    let mut machine = machine(32, Access::Write);
    assert!(machine.fork(0).is_ok());
    touch(&mut machine, 0, 16, Access::Write);
    machine.frames.runs = true;
    machine.play(planted, |machine| {
        touch(machine, 16, 1, Access::Write);
        assert_eq!(machine.all[0].space.stats().copied, 32);
    })
}

/// As [`copy_next_group`], where a block follows the group that was copied.
pub(super) fn copy_group_of_block(planted: Option<Tap>) -> Shared {
    let mut machine = machine(0, Access::Write);
    machine.unmap(0, FIRST, 64);
    // The first address is a multiple of the bytes as far as which groups are copied, so it is not this one.
    let inside = BLOCK_BYTES / PAGE;
    let block = FIRST + inside;
    machine.map(0, block - 16, 16 + inside, Rights::READ_WRITE);
    machine.frames.runs = true;
    for page in [block - 16, block] {
        assert!(machine.touch(0, page, Access::Write, page).is_ok());
    }
    assert!(machine.fork(0).is_ok());
    for page in block - 16..block {
        assert!(machine.touch(0, page, Access::Write, page).is_ok());
    }
    machine.on(0);
    machine.play(planted, |machine| {
        touch(machine, inside, 1, Access::Write);
        let stats = machine.all[0].space.stats();
        assert_eq!((stats.blocks, stats.split, stats.copied), (1, 1, 32));
    })
}

/// Four of ten pages are unmapped.
pub(super) fn unmap(planted: Option<Tap>) -> Shared {
    machine(10, Access::Write).play(planted, |machine| machine.unmap(0, FIRST + 2, 4))
}

/// All of a process is unmapped, tables too.
pub(super) fn exit(planted: Option<Tap>) -> Shared {
    machine(10, Access::Write).play(planted, |machine| machine.unmap(0, FIRST, 64))
}

/// The last page of a group is touched; all are clean.
pub(super) fn fold(planted: Option<Tap>) -> Shared {
    machine(15, Access::Read).play(planted, |machine| touch(machine, 15, 1, Access::Read))
}

/// One page goes out of a group.
pub(super) fn unmap_in_group(planted: Option<Tap>) -> Shared {
    machine(16, Access::Read).play(planted, |machine| machine.unmap(0, FIRST + 3, 1))
}

/// Pages that hardware may make dirty become read-only.
pub(super) fn restrict(planted: Option<Tap>) -> Shared {
    machine(10, Access::Read).play(planted, |machine| {
        machine.protect(0, FIRST, 64, Rights::READ)
    })
}

/// More processes than numbers run on one CPU, one after the other, twice.
pub(super) fn generations(planted: Option<Tap>) -> Shared {
    let mut machine = machine(2, Access::Write);
    for _ in 0..5 {
        assert!(machine.fork(0).is_ok());
    }
    machine.play(planted, |machine| {
        for turn in 0..12 {
            machine.switch(0, Some(turn % 6));
            touch(machine, 0, 2, Access::Write);
        }
    })
}

/// Two CPUs in the first of six processes, all of which have two pages.
pub(super) fn six() -> Machine {
    let mut machine = machine(2, Access::Write);
    for _ in 0..5 {
        assert!(machine.fork(0).is_ok());
    }
    machine
}

/// CPU 0 goes through processes until there is a new generation, which it began.
pub(super) fn roll_over(machine: &mut Machine) {
    let before = machine.cpus.rolled();
    for process in 1..5 {
        if machine.cpus.rolled() == before {
            machine.switch(0, Some(process));
            touch(machine, 0, 2, Access::Write);
        }
    }
    assert_eq!(machine.cpus.rolled(), before + 1);
}

/// One CPU begins a generation; the other goes to a process that has a number of it.
pub(super) fn generation_of_another(planted: Option<Tap>) -> Shared {
    let mut machine = six();
    for process in 0..3 {
        // CPU 1 has been in several, so its TLB has something under their numbers.
        machine.switch(1, Some(process));
        let _ = machine.touch(1, FIRST, Access::Read, 0);
    }
    machine.play(planted, |machine| {
        roll_over(machine);
        for process in [5, 4, 3] {
            machine.switch(1, Some(process));
            let _ = machine.touch(1, FIRST, Access::Read, 0);
        }
    })
}

/// A CPU stays in a process while the other one begins a generation, and then follows it.
pub(super) fn generation_while_running(planted: Option<Tap>) -> Shared {
    six().play(planted, |machine| {
        roll_over(machine);
        let _ = machine.touch(1, FIRST + 1, Access::Write, 7);
        machine.switch(1, Some(4));
        let _ = machine.touch(1, FIRST, Access::Write, 7);
    })
}

/// A process gets another number in a new generation; then a page of it is unmapped.
pub(super) fn unmap_renewed(planted: Option<Tap>) -> Shared {
    let mut machine = six();
    machine.switch(1, Some(5));
    roll_over(&mut machine);
    machine.switch(0, Some(0));
    let number = machine.number(0);
    assert!(number.is_some_and(|number| u64::from(number) != OLD_NUMBER));
    touch(&mut machine, 0, 2, Access::Write);
    machine.play(planted, |machine| machine.unmap(0, FIRST, 1))
}
