//! Faults in what is done to address spaces of user programs.

use super::scenes::{PAGE, Result};
use super::tables::{GONE, POINTER, STALE, is_tlbi_or_dsb, last_level};
use super::taps::*;
use super::{Fault, fault};
use crate::machine::Tap;
use crate::shape::Shape;
use crate::space::processes::Processes;
use granule::arch::{Descriptor, Kind, Page4K};
use granule::space::{Access, Rights};
use granule::table::Visit;
use granule_model::Rule::*;
use granule_model::{BitChange, Event, System, Visibility};
use std::cell::Cell;

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "the TLBI after a fork made pages read-only is missing",
        fork,
        || drop_all(is_tlbi),
        StaleTranslation,
        STALE,
    ),
    fault(
        "a page is copied at a write, and its entry not broken first",
        copy,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI between a page and its copy is missing",
        copy,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a page of a shared group is copied, and one member not invalidated",
        copy_in_group,
        || nth(5, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a whole group is copied at a write, and one member not broken first",
        copy_next_group,
        || nth(5, is_break, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a whole group is copied at a write, and one member not invalidated",
        copy_next_group,
        || nth(5, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the frames of a group that was copied are given back before the TLBI",
        copy_next_group,
        || delay(is_tlbi_or_dsb, is_given_back),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a block of which a group is copied is not broken first",
        copy_group_of_block,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "frames are given back before the TLBI",
        unmap,
        || delay(is_tlbi_or_dsb, is_given_back),
        StaleTranslation,
        GONE,
    ),
    fault(
        "frames are given back before the DSB ISH",
        unmap,
        || delay(is_ish, is_given_back),
        StaleTranslation,
        "no DSB completed it",
    ),
    fault(
        "a table with released pages is freed before the TLBI",
        exit,
        || delay(is_tlbi_or_dsb, is_freed),
        FreedInUse,
        POINTER,
    ),
    fault(
        "a last-level TLBI where a table with released pages goes",
        exit,
        || tlbis(last_level),
        FreedInUse,
        POINTER,
    ),
    fault(
        "pages become a group at level 0, and are not broken first",
        fold,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI between pages and their group is missing",
        fold,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "one member is not invalidated before it is made part of a group",
        fold,
        || nth(7, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "members that hardware may update are emptied by plain stores",
        fold,
        || replace(is_exchange, by_plain_store),
        LostUpdate,
        "access flag or the dirty state",
    ),
    fault(
        "permissions that hardware may update are changed by a plain store",
        restrict,
        by_load_and_store,
        LostUpdate,
        "access flag or the dirty state",
    ),
    fault(
        "a CPU does not flush before it uses a new generation of ASIDs",
        generations,
        || drop_all(is_flush),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a CPU does not flush because another one began the new generation",
        generation_of_another,
        flushes_of_the_other,
        BreakBeforeMake,
        "",
    ),
    fault(
        "a new generation gives away the number that a CPU still runs under",
        generation_while_running,
        reserved_number_given_away,
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI of an unmap names the number that the process had a generation ago",
        unmap_renewed,
        || tlbis(|op| with_operand(op, op.1 & !ASID | OLD_NUMBER << ASID_SHIFT)),
        StaleTranslation,
        "it does not reach entries of this ASID",
    ),
    fault(
        "a group is made at once over a page that is mapped",
        touch_beside,
        || nth(0, is_user_page, |kind| over_the_group(kind, 16)),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a group is made at once over a hole",
        touch_beside_nothing,
        || nth(0, is_user_page, |kind| over_the_group(kind, 15)),
        UnequalContiguous,
        "",
    ),
    fault(
        "a block is made over a table with a page",
        touch_beside,
        block_over_the_table,
        BreakBeforeMake,
        "",
    ),
    fault(
        "a block of which a page is copied is not broken first",
        copy_in_block,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI between a block and its pages is missing",
        copy_in_block,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the table of a program's block is linked by a plain store",
        copy_in_block,
        || replace(is_link, plain),
        UnorderedLink,
        "",
    ),
    fault(
        "a table becomes a program's block, and its entry is not broken first",
        merge_block,
        || drop_all(is_break_of_link),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI between a table and a program's block is missing",
        merge_block,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the table in whose place a program's block comes is freed before the TLBI",
        merge_block,
        || delay(is_tlbi_or_dsb, is_freed),
        FreedInUse,
        POINTER,
    ),
    fault(
        "a last-level TLBI where a table becomes a program's block",
        merge_block,
        || tlbis(last_level),
        FreedInUse,
        POINTER,
    ),
    fault(
        "frames of a block are given back before the TLBI",
        unmap_block,
        || delay(is_tlbi_or_dsb, is_given_back),
        StaleTranslation,
        GONE,
    ),
    fault(
        "a page goes out of a group, and one of the others keeps the hint",
        unmap_in_group,
        || nth(0, is_leaf_fill, one_grouped),
        MixedContiguous,
        "",
    ),
    fault(
        "a page goes out of a group, and one of the others is not invalidated",
        unmap_in_group,
        || nth(7, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
];

/// Where a TTBR and a TLBI by address have the number.
const ASID_SHIFT: u32 = 48;
pub(super) const ASID: u64 = 0xffff << ASID_SHIFT;
/// That of the first process in the first generation.
const OLD_NUMBER: u64 = 1;

/// Of the flushes in [`generation_of_another`] every second one is CPU 1's: that at the roll-over
/// and that before it uses the new generation.
fn flushes_of_the_other() -> Tap {
    let mut flushes = 0;
    replace_state(is_flush, move |kind| {
        flushes += 1;
        if flushes % 2 == 1 {
            Vec::new()
        } else {
            vec![kind]
        }
    })
}

/// From the first generation's end on, the number that is given out first is everywhere
/// [`OLD_NUMBER`] instead, which CPU 1 runs under.
fn reserved_number_given_away() -> Tap {
    let (mut rolled, mut given) = (false, None);
    Box::new(move |_, mut kind| {
        rolled |= is_flush(&kind);
        if let Event::System(System::TTBR0_EL1, value) = &mut kind
            && rolled
            && *value & ASID != 0
            && *given.get_or_insert(*value & ASID) == *value & ASID
        {
            *value = *value & !ASID | OLD_NUMBER << ASID_SHIFT;
        }
        vec![kind]
    })
}

/// The first of the members that are made anew has the hint still.
fn one_grouped(kind: Event) -> Vec<Event> {
    let Event::Store {
        address,
        count,
        descriptor: first,
        step,
        visibility: order,
    } = kind
    else {
        return vec![kind];
    };
    let fill = |address, count, first| Event::Store {
        address,
        count,
        descriptor: first,
        step,
        visibility: order,
    };
    vec![
        fill(address, 1, first | Descriptor::CONTIGUOUS),
        fill(address + 8, count - 1, first + step),
    ]
}

const BLOCK_BYTES: u64 = 2 << 20;

thread_local! {
    /// The entry that leads to the table of the first page, in the machine of this thread.
    static ENTRY_OF_BLOCK: Cell<u64> = const { Cell::new(0) };
}

fn find_entry_of_block(machine: &Machine) {
    machine.all[0].space.tables().visit_all(|entry| {
        if entry.kind == Kind::Table && entry.bytes == BLOCK_BYTES {
            ENTRY_OF_BLOCK.set(entry.table.0 + entry.index as u64 * 8);
        }
        Visit::EVERYTHING
    });
}

/// The entry that leads to the table becomes empty.
fn is_break_of_link(kind: &Event) -> bool {
    matches!(kind, Event::Store { address, .. } if *address == ENTRY_OF_BLOCK.get())
        && is_break(kind)
}

/// In place of the page a block comes into the entry that leads to its table.
fn block_over_the_table() -> Tap {
    Box::new(|_, kind| match kind {
        Event::Store {
            descriptor,
            visibility,
            ..
        } if is_user_page(&kind) => vec![Event::Store {
            address: ENTRY_OF_BLOCK.get(),
            count: 1,
            descriptor: descriptor & !Descriptor::TABLE_OR_PAGE & !(BLOCK_BYTES - PAGE),
            step: 0,
            visibility,
        }],
        other => vec![other],
    })
}

/// A page that EL0 may access comes.
const fn is_user_page(kind: &Event) -> bool {
    const USER_PAGE: u64 = Descriptor::AP_USER | Descriptor::TABLE_OR_PAGE | Descriptor::VALID;
    matches!(kind, Event::Store { count: 1, descriptor, .. } if *descriptor & USER_PAGE == USER_PAGE)
}

/// The page that comes is the first one of a group, of which so many members are stored.
fn over_the_group(kind: Event, members: u32) -> Vec<Event> {
    match kind {
        Event::Store {
            address,
            descriptor,
            visibility,
            ..
        } => vec![Event::Store {
            address,
            count: members,
            descriptor: descriptor | Descriptor::CONTIGUOUS,
            step: PAGE,
            visibility,
        }],
        other => vec![other],
    }
}

/// Frames are somebody else's from here on.
const fn is_given_back(kind: &Event) -> bool {
    matches!(kind, Event::AssumeVisible { .. })
}

const fn is_exchange(kind: &Event) -> bool {
    matches!(
        kind,
        Event::Store {
            count: 1,
            visibility: Visibility::Exchange,
            ..
        }
    )
}

/// All of a CPU's own TLB.
pub(super) const fn is_flush(kind: &Event) -> bool {
    matches!(kind, Event::System(System::VMALLE1, _))
}

fn by_plain_store(mut kind: Event) -> Vec<Event> {
    if let Event::Store {
        count: 1,
        visibility: order,
        ..
    } = &mut kind
    {
        *order = Visibility::Live;
    }
    vec![kind]
}

/// Each entry of an update is loaded and stored.
fn by_load_and_store() -> Tap {
    Box::new(|model, kind| match kind {
        Event::Update {
            address,
            count,
            change: BitChange { of, clear, set },
            visibility: order,
        } => (0..count)
            .map(|index| address + u64::from(index) * 8)
            .filter(|&address| model.descriptor(address) & of != 0)
            .map(|address| Event::Store {
                address,
                count: 1,
                descriptor: (model.descriptor(address) & !clear) | set,
                step: 0,
                visibility: order,
            })
            .collect(),
        other => vec![other],
    })
}

type Machine = Processes<Page4K>;

/// The first page that programs use: of a group, in a table of its own.
const FIRST: u64 = 0x4000_0000 / PAGE;

/// Two CPUs in one process with so many pages, which `access` touched.
fn machine(pages: u64, access: Access) -> Machine {
    let shape = Shape {
        asid: Some(1),
        hardware: true,
        ..Shape::kernel(39)
    };
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
fn touch_beside(planted: Option<Tap>) -> Result {
    let mut machine = machine(0, Access::Write);
    touch(&mut machine, 5, 1, Access::Write);
    machine.frames.runs = true;
    find_entry_of_block(&machine);
    tap(&machine, planted);
    touch(&mut machine, 0, 1, Access::Write);
    end(machine)
}

/// Two CPUs in one process with a block that was written.
fn machine_with_block() -> Machine {
    let mut machine = machine(0, Access::Write);
    machine.unmap(0, FIRST, 64);
    machine.map(0, FIRST, BLOCK_BYTES / PAGE, Rights::READ_WRITE);
    machine.frames.runs = true;
    touch(&mut machine, 5, 1, Access::Write);
    assert_eq!(machine.all[0].space.stats().blocks, 1);
    machine
}

/// After a fork the parent writes a page of a block.
fn copy_in_block(planted: Option<Tap>) -> Result {
    let mut machine = machine_with_block();
    assert!(machine.fork(0).is_ok());
    tap(&machine, planted);
    touch(&mut machine, 3, 1, Access::Write);
    end(machine)
}

/// A group of a block was read-only, and all of the block becomes writable.
fn merge_block(planted: Option<Tap>) -> Result {
    let mut machine = machine_with_block();
    machine.protect(0, FIRST + 16, 16, Rights::READ);
    find_entry_of_block(&machine);
    tap(&machine, planted);
    machine.protect(0, FIRST, BLOCK_BYTES / PAGE, Rights::READ_WRITE);
    assert_eq!(machine.all[0].space.stats().merged, 1);
    end(machine)
}

/// A block goes.
fn unmap_block(planted: Option<Tap>) -> Result {
    let mut machine = machine_with_block();
    tap(&machine, planted);
    machine.unmap(0, FIRST, BLOCK_BYTES / PAGE);
    end(machine)
}

/// As [`touch_beside`], where the last page of the group is in no VMA.
fn touch_beside_nothing(planted: Option<Tap>) -> Result {
    let mut machine = machine(0, Access::Write);
    touch(&mut machine, 16, 1, Access::Write);
    machine.unmap(0, FIRST + 15, 1);
    machine.frames.runs = true;
    tap(&machine, planted);
    touch(&mut machine, 0, 1, Access::Write);
    end(machine)
}

fn touch(machine: &mut Machine, first: u64, count: u64, access: Access) {
    for page in first..first + count {
        // With a fault planted a page may not come to be.
        let _ = machine.touch(0, FIRST + page, access, page);
    }
    machine.on(0);
}

fn tap(machine: &Machine, tap: Option<Tap>) {
    machine.settle();
    assert_eq!(machine.violations(), Vec::<String>::new());
    machine.world.borrow_mut().tap = tap;
}

fn end(machine: Machine) -> Result {
    machine.settle();
    Result {
        world: machine.world,
    }
}

/// A process with ten pages that were written forks.
fn fork(planted: Option<Tap>) -> Result {
    let mut machine = machine(10, Access::Write);
    tap(&machine, planted);
    assert!(machine.fork(0).is_ok());
    end(machine)
}

/// After a fork the parent writes a page.
fn copy(planted: Option<Tap>) -> Result {
    let mut machine = machine(10, Access::Write);
    assert!(machine.fork(0).is_ok());
    tap(&machine, planted);
    touch(&mut machine, 3, 1, Access::Write);
    end(machine)
}

/// As [`copy`], where the pages are a group.
fn copy_in_group(planted: Option<Tap>) -> Result {
    let mut machine = machine(16, Access::Write);
    assert!(machine.fork(0).is_ok());
    tap(&machine, planted);
    touch(&mut machine, 3, 1, Access::Write);
    end(machine)
}

/// As [`copy`], where the page begins a group, and all of the one before was copied already.
fn copy_next_group(planted: Option<Tap>) -> Result {
    let mut machine = machine(32, Access::Write);
    assert!(machine.fork(0).is_ok());
    touch(&mut machine, 0, 16, Access::Write);
    machine.frames.runs = true;
    tap(&machine, planted);
    touch(&mut machine, 16, 1, Access::Write);
    assert_eq!(machine.all[0].space.stats().copied, 32);
    end(machine)
}

/// As [`copy_next_group`], where a block follows the group that was copied.
fn copy_group_of_block(planted: Option<Tap>) -> Result {
    let mut machine = machine(0, Access::Write);
    machine.unmap(0, FIRST, 64);
    machine.map(0, FIRST - 16, 16 + BLOCK_BYTES / PAGE, Rights::READ_WRITE);
    machine.frames.runs = true;
    for page in [FIRST - 16, FIRST] {
        assert!(machine.touch(0, page, Access::Write, page).is_ok());
    }
    assert!(machine.fork(0).is_ok());
    for page in FIRST - 16..FIRST {
        assert!(machine.touch(0, page, Access::Write, page).is_ok());
    }
    machine.on(0);
    tap(&machine, planted);
    touch(&mut machine, 0, 1, Access::Write);
    let stats = machine.all[0].space.stats();
    assert_eq!((stats.blocks, stats.split, stats.copied), (1, 1, 32));
    end(machine)
}

/// Four of ten pages are unmapped.
fn unmap(planted: Option<Tap>) -> Result {
    let mut machine = machine(10, Access::Write);
    tap(&machine, planted);
    machine.unmap(0, FIRST + 2, 4);
    end(machine)
}

/// All of a process is unmapped, tables too.
fn exit(planted: Option<Tap>) -> Result {
    let mut machine = machine(10, Access::Write);
    tap(&machine, planted);
    machine.unmap(0, FIRST, 64);
    end(machine)
}

/// The last page of a group is touched; all are clean.
fn fold(planted: Option<Tap>) -> Result {
    let mut machine = machine(15, Access::Read);
    tap(&machine, planted);
    touch(&mut machine, 15, 1, Access::Read);
    end(machine)
}

/// One page goes out of a group.
fn unmap_in_group(planted: Option<Tap>) -> Result {
    let mut machine = machine(16, Access::Read);
    tap(&machine, planted);
    machine.unmap(0, FIRST + 3, 1);
    end(machine)
}

/// Pages that hardware may make dirty become read-only.
fn restrict(planted: Option<Tap>) -> Result {
    let mut machine = machine(10, Access::Read);
    tap(&machine, planted);
    machine.protect(0, FIRST, 64, Rights::READ);
    end(machine)
}

/// More processes than numbers run on one CPU, one after the other, twice.
fn generations(planted: Option<Tap>) -> Result {
    let mut machine = machine(2, Access::Write);
    for _ in 0..5 {
        assert!(machine.fork(0).is_ok());
    }
    tap(&machine, planted);
    for turn in 0..12 {
        machine.switch(0, Some(turn % 6));
        touch(&mut machine, 0, 2, Access::Write);
    }
    end(machine)
}

/// Two CPUs in the first of six processes, all of which have two pages.
fn six() -> Machine {
    let mut machine = machine(2, Access::Write);
    for _ in 0..5 {
        assert!(machine.fork(0).is_ok());
    }
    machine
}

/// CPU 0 goes through processes until there is a new generation, which it began.
fn roll_over(machine: &mut Machine) {
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
fn generation_of_another(planted: Option<Tap>) -> Result {
    let mut machine = six();
    for process in 0..3 {
        // CPU 1 has been in several, so its TLB has something under their numbers.
        machine.switch(1, Some(process));
        let _ = machine.touch(1, FIRST, Access::Read, 0);
    }
    tap(&machine, planted);
    roll_over(&mut machine);
    for process in [5, 4, 3] {
        machine.switch(1, Some(process));
        let _ = machine.touch(1, FIRST, Access::Read, 0);
    }
    end(machine)
}

/// A CPU stays in a process while the other one begins a generation, and then follows it.
fn generation_while_running(planted: Option<Tap>) -> Result {
    let mut machine = six();
    tap(&machine, planted);
    roll_over(&mut machine);
    let _ = machine.touch(1, FIRST + 1, Access::Write, 7);
    machine.switch(1, Some(4));
    let _ = machine.touch(1, FIRST, Access::Write, 7);
    end(machine)
}

/// A process gets another number in a new generation; then a page of it is unmapped.
fn unmap_renewed(planted: Option<Tap>) -> Result {
    let mut machine = six();
    machine.switch(1, Some(5));
    roll_over(&mut machine);
    machine.switch(0, Some(0));
    let number = machine.number(0);
    assert!(number.is_some_and(|number| u64::from(number) != OLD_NUMBER));
    touch(&mut machine, 0, 2, Access::Write);
    tap(&machine, planted);
    machine.unmap(0, FIRST, 1);
    end(machine)
}
