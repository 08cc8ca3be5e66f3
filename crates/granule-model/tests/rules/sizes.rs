//! Sizes that no machine has: events that name more than there is, and tables that share what is
//! below them. Bounds are counts; time is none.

use crate::rig::*;
use granule_model::{Access, Barrier, Config, Event, EventError, Rule, System};

const ALL: u64 = 1 << 52;

fn give(rig: &mut Rig, kind: Event) -> Result<(), EventError> {
    let cpu = rig.cpu;
    rig.model.event(cpu, kind)
}

#[test]
fn an_event_may_name_all_of_memory() {
    let data = |address, bytes| Event::data(address, bytes);
    let clean = |address, bytes| Event::lines(System::DC_CIVAC, address, bytes);
    let obtain = |address, bytes| Event::obtained(address, bytes);
    let free = |address, bytes| Event::freed(address, bytes);
    let mut rig = Rig::with(Config::default());
    let tables = (L0, 0x4000);
    // The state of all memory is tracked, and of pages that were something else.
    rig.event(obtain(0, ALL));
    rig.event(free(SPARE, 0x1000));
    rig.expect(&[]);
    rig.store(L2 + 8, SPARE | TABLE);
    assert_eq!(rig.model.violations()[0].rule, Rule::NotTableMemory);
    rig.model.clear_violations();
    rig.store(L2 + 8, 0);
    // The contents of obtained memory are unknown, wherever it is.
    rig.store(L2 + 16, 0x7_0000_0000 | TABLE);
    assert_eq!(rig.model.violations()[0].rule, Rule::UninitialisedTable);
    rig.model.clear_violations();
    rig.event(free(0, tables.0));
    rig.event(free(tables.0 + tables.1, ALL - tables.0 - tables.1));
    // It is linked, and its pointer may be cached.
    rig.expect(&[Rule::FreedInUse, Rule::FreedInUse]);

    // Of all lines, those cleaned are distinguished from those that are not.
    let mut rig = Rig::with(Config::default());
    rig.make(L3, RAM | PAGE | RW | DEVICE);
    rig.event(data(0, ALL));
    rig.event(clean(0, RAM));
    rig.event(clean(RAM + 0x40, ALL - RAM - 0x40));
    rig.barrier(Barrier::DSB_SY);
    rig.expect(&[]);
    rig.model.access(0, VA + 0x40, Access::READ);
    rig.expect(&[]);
    rig.model.access(0, VA, Access::READ);
    rig.expect(&[Rule::NotCleaned]);
    rig.register(System::SCTLR_EL1, 0);
    assert_eq!(rig.model.violations().len(), 1);
    assert_eq!(rig.model.violations()[0].range, (RAM, RAM + 63));
}

#[test]
fn more_descriptors_than_tables_have_are_refused() {
    let mut rig = Rig::off(Config::default());
    let fill = |address, count| Event::fill(address, count, 0, 0);
    assert_eq!(give(&mut rig, fill(0, 8192)), Ok(()));
    for count in [1 << 20, u32::MAX] {
        let refused = Err(EventError::TooManyDescriptors { count });
        assert_eq!(give(&mut rig, fill(0, count)), refused);
    }
    assert_eq!(rig.model.events(), 1);
    let beyond = give(&mut rig, fill(ALL - 8, 2));
    assert!(matches!(beyond, Err(EventError::OutsideMemory { .. })));
}

#[test]
fn tables_that_share_tables_are_given_up_on() {
    // Each entry of each level leads to the one table of the next: 2^36 ways to a page.
    let mut rig = Rig::off(Config::default());
    for (table, below) in [(L0, L1), (L1, L2), (L2, L3)] {
        rig.fill(table, 512, below | TABLE, 0);
    }
    rig.fill(L3, 512, RAM | PAGE | RW, 0x1000);
    rig.clean(L0, 0x4000);
    for (register, value) in [
        (System::MAIR_EL1, MAIR),
        (System::TCR_EL1, TCR | EPD0),
        (System::TTBR1_EL1, L0),
    ] {
        rig.register(register, value);
    }
    rig.isb();
    let (register, value) = (System::SCTLR_EL1, MMU_ON);
    let error = give(&mut rig, Event::System(register, value));
    let Err(EventError::TooManyEntries { visits }) = error else {
        panic!("{error:?}");
    };
    assert!(visits < 1 << 28, "{visits}");
}

#[test]
fn a_table_shared_by_many_entries_is_no_trouble() {
    // As a shadow that is one page everywhere: 64 * 512 * 512 leaves.
    let mut rig = Rig::off(Config::default());
    rig.fill(L0, 0x800, 0, 0);
    rig.store(L0, L1 | TABLE);
    rig.fill(L1, 64, L2 | TABLE, 0);
    rig.fill(L2, 512, L3 | TABLE, 0);
    rig.fill(L3, 512, RAM | PAGE | RW | RO, 0);
    rig.clean(L0, 0x4000);
    rig.turn_on(TCR | EPD0, 0, L0);
    rig.store(L2, 0);
    rig.invalidate("vmalle1is", 0);
    rig.settle(&[]);
}

#[test]
fn address_spaces_and_attributes_that_come_and_do_not_go() {
    // Each time another ASID, none of which is ever invalidated.
    let mut rig = Rig::with_page(RAM | PAGE | RW | NG);
    rig.turn_on(TCR | 1 << 23, L0 | 1 << 48, 0);
    for asid in 1..50_000 {
        rig.write(System::TTBR0_EL1, L0 | asid << 48);
    }
    rig.expect(&[]);
    // Quadratic, this would be 1.25 * 10^9.
    let visits = rig.model.visits();
    assert!(visits < 200_000_000, "{visits}");

    // More sets of attributes than 16 bits count; the first is not the last by then.
    let mut rig = Rig::with(Config::default());
    rig.make(L3, RAM | PAGE | RW);
    for other in 0..70_000 {
        rig.write(System::MAIR_EL1, MAIR | other << 24);
    }
    let visits = rig.model.visits();
    // Each is one look at the whole tree, and not at those before.
    assert!(visits < 1_000_000_000, "{visits}");
    rig.expect(&[]);
    rig.register(System::MAIR_EL1, MAIR & !0xff);
    rig.expect(&[Rule::BreakBeforeMake]);
}

#[test]
fn events_that_wait_for_a_dsb_or_isb_are_bounded() {
    let mut rig = Rig::with(Config::default());
    for _ in 0..100_000 {
        rig.tlbi("vmalle1is", 0);
        rig.event(Event::lines(System::DC_CVAC, L0, 0x1000));
    }
    assert!(rig.model.waiting() < 16, "{}", rig.model.waiting());
    let mut refused = None;
    for page in 0..2_000_000 {
        if let Err(error) = give(&mut rig, Event::System(System::VAAE1IS, page)) {
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(
        refused,
        Some(EventError::TooManyPending { pending }) if pending <= 1 << 20
    ));
}
