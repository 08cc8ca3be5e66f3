//! Tests of CPUs, exception levels, security states and guests.

use super::*;
use crate::decode::SPSR_EL2;

#[test]
fn an_eret_of_el1_or_of_a_vhe_host_enters_a_program() {
    let mut rig = Rig::running();
    rig.emitted();
    rig.tracker.returned(rig.by, 1);
    assert_eq!(rig.emitted(), ["cpu0 User"]);
    // EL3, and EL2 without programs of a host, use other registers.
    rig.tracker.returned(rig.by, 3);
    rig.tracker.returned(rig.by, 2);
    let emitted: Vec<_> = rig.tracker.take().map(|(_, seen)| seen).collect();
    assert_eq!(emitted, [Seen::Exception; 2]);
    rig.msr(System::HCR_EL2, 1 << 34 | 1 << 27);
    rig.emitted();
    rig.tracker.returned(rig.by, 2);
    assert_eq!(rig.emitted(), ["cpu0 User"]);
}

#[test]
fn each_missing_thing_is_reported_once() {
    let mut rig = Rig::new();
    rig.msr(System::TTBR1_EL1, 0x1000);
    rig.msr(System::TCR_EL1, TCR);
    rig.msr(System::SCTLR_EL1, 1);
    rig.msr(System::TTBR1_EL1, 0x2000);
    // TCR2_EL1: zero is its reset value.
    let tcr2 = System(0xc103);
    rig.msr(tcr2, 0);
    let emitted = rig.emitted();
    let outside = emitted
        .iter()
        .filter(|it| it.contains("tables outside of RAM"));
    assert_eq!(outside.count(), 1);
    assert!(!emitted.iter().any(|it| it.contains("tcr2")));
    rig.msr(tcr2, 2);
    assert_eq!(rig.emitted(), [r#"cpu0 Missing("tcr2_el1")"#]);
    // A guest under stage 2.
    rig.msr(System::HCR_EL2, 1);
    rig.msr(System::TTBR1_EL1, ROOT);
    rig.tracker.invalidated(rig.by, 1, System::VMALLE1, 0);
    let emitted = rig.emitted();
    let missing: Vec<_> = emitted.iter().filter(|it| it.contains("Missing")).collect();
    assert_eq!(missing, [r#"cpu0 Missing("a guest's own tables")"#]);
    assert!(!emitted.iter().any(|it| it.contains("vmalle1")));
}

#[test]
fn a_second_security_state_is_reported_as_missing() {
    const NS: u64 = 1;
    const SMD: u64 = 1 << 7;
    let mut rig = Rig::new();
    // Firmware chooses a state before any lower level translates.
    rig.tracker.register(rig.by, 3, SCR_EL3, NS);
    assert!(rig.emitted().is_empty());
    let mut rig = Rig::running();
    rig.tracker.register(rig.by, 3, SCR_EL3, SMD);
    assert!(rig.emitted().is_empty());
    rig.tracker.register(rig.by, 3, SCR_EL3, SMD | NS);
    assert_eq!(rig.emitted(), [r#"cpu0 Missing("two security states")"#]);
}

#[test]
fn a_cpu_that_goes_off_leaves_its_tables() {
    let mut rig = Rig::running();
    rig.tracker.reset(rig.by);
    assert_eq!(rig.emitted(), ["cpu0 Reset"]);
    assert!(rig.marks.is_uncached(0));
    rig.store(ROOT, 0x6c6c_6568);
    assert_eq!(rig.emitted(), [freed(ROOT)]);
}

#[test]
fn registers_that_a_hypervisor_writes_for_its_guest_are_not_the_machines() {
    let mut rig = Rig::running();
    rig.tracker.register(rig.by, 2, System::HCR_EL2, 1);
    rig.emitted();
    for register in [System::TTBR0_EL1, System::TTBR1_EL1, System::TCR_EL1] {
        rig.tracker.register(rig.by, 2, register, 0x7000);
    }
    assert_eq!(rig.emitted(), [r#"cpu0 Missing("a guest's own tables")"#]);
    // With VHE the names access EL2's own registers.
    rig.tracker
        .register(rig.by, 2, System::HCR_EL2, 1 | 1 << 34);
    rig.tracker.register(rig.by, 2, System::TTBR1_EL1, ROOT);
    assert_eq!(
        rig.emitted().last().unwrap(),
        &format!("cpu0 ttbr1_el1 {ROOT:x}")
    );
}

#[test]
fn a_guest_is_entered_by_an_exception_return_of_el2() {
    // The level of the ERET, whether SPSR_EL2 names a level below EL2, HCR_EL2.
    for (level, to_guest, hcr, expected) in [
        (2, true, 1, "cpu0 User"),
        (2, false, 1, "cpu0 Exception"),
        (2, true, 0, "cpu0 Exception"),
        // The guest's own programs.
        (1, true, 1, "cpu0 Exception"),
        (1, false, 0, "cpu0 User"),
        // A host with VHE, whose programs are not guests.
        (2, true, 1 | 1 << 34 | 1 << 27, "cpu0 User"),
    ] {
        let mut rig = Rig::running();
        rig.tracker.register(rig.by, 2, System::HCR_EL2, hcr);
        let spsr = if to_guest { 0b101 } else { 0b1001 };
        rig.marks.keep(0, 2, SPSR_EL2, spsr);
        rig.emitted();
        rig.tracker.returned(rig.by, level);
        assert_eq!(
            rig.emitted(),
            [expected],
            "EL{level}, {to_guest}, HCR_EL2 {hcr:#x}"
        );
    }
}

#[test]
fn the_lower_half_is_read_with_the_current_granule_of_tcr() {
    // A program of 64K pages under a kernel of 4K pages: its tables are reported with 64K pages,
    // and not at all while EPD0 is set.
    let (root, last) = (RAM + 0x20000, RAM + 0x30000);
    let lower = TCR & !(1 << 7) | 1 << 14;
    let mut rig = Rig::running();
    rig.raw(root, last | TABLE_BITS);
    rig.raw(last + 8, FRAME | PAGE);
    rig.msr(System::TTBR0_EL1, root | 5 << 48);
    rig.msr(System::TCR_EL1, lower | 1 << 7);
    let emitted = rig.emitted();
    assert!(
        emitted.iter().all(|line| line.contains("_el1")),
        "{emitted:?}"
    );
    rig.msr(System::TCR_EL1, lower);
    let emitted = rig.emitted();
    for obtained in [
        format!("cpu0 obtain {root:x} 2000"),
        format!("cpu0 obtain {last:x} 10000"),
    ] {
        assert!(emitted.contains(&obtained), "{emitted:?}");
    }
    assert_eq!(rig.tracker.translate(0, 0, 0x1_0123), Some(FRAME + 0x123));
    // Stores to it are emitted as always; the last-level table has 8192 entries.
    rig.store(last + 8 * 8191, FRAME | PAGE);
    assert_eq!(rig.emitted().len(), 1);
}

#[test]
fn a_change_and_the_entry_of_a_program_come_after_their_task() {
    let mut rig = Rig::running();
    rig.emitted();
    let tasks = [0xffff_0000_0000_1000, 0xffff_0000_0000_2000];
    let run = |rig: &Rig, task| assert!(rig.marks.keep(0, 1, System::SP_EL0, task));
    run(&rig, tasks[0]);
    rig.store(L3, 0);
    rig.store(L3 + 8, FRAME | PAGE);
    run(&rig, tasks[1]);
    // The program's own stack pointer.
    run(&rig, 0x1000);
    rig.tracker.returned(rig.by, 1);
    run(&rig, tasks[0]);
    rig.msr(System::TTBR0_EL1, 0);
    let of_tasks = rig.tracker.take().map(|(_, seen)| match seen {
        Seen::Event(Event::System(System::SP_EL0, task)) => (true, task),
        Seen::Event(Event::Store { address, .. }) => (false, address),
        Seen::Event(Event::User) => (false, 0),
        _ => (false, 1),
    });
    let expected = [
        (true, tasks[0]),
        (false, L3),
        (false, L3 + 8),
        (true, tasks[1]),
        (false, 0),
        (true, tasks[0]),
        (false, 1),
    ];
    assert_eq!(of_tasks.collect::<Vec<_>>(), expected);
}
