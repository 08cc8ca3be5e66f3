//! CPUs, exception levels, security states and guests, by their registers.

use super::*;

#[test]
fn a_program_goes_on_where_el1_s_registers_say_so() {
    let mut rig = Rig::running();
    rig.told();
    rig.tracker.returned(rig.by, 1);
    assert_eq!(rig.told(), ["cpu0 User"]);
    // EL3, and EL2 without its host's programs, have other registers.
    rig.tracker.returned(rig.by, 3);
    rig.tracker.returned(rig.by, 2);
    let told: Vec<_> = rig.tracker.take().map(|(_, seen)| seen).collect();
    assert_eq!(told, [Seen::Exception; 2]);
    rig.msr(System::HCR_EL2, 1 << 34 | 1 << 27);
    rig.told();
    rig.tracker.returned(rig.by, 2);
    assert_eq!(rig.told(), ["cpu0 User"]);
}

#[test]
fn each_thing_that_goes_unseen_is_said_once() {
    let mut rig = Rig::new();
    rig.msr(System::TTBR1_EL1, 0x1000);
    rig.msr(System::TCR_EL1, TCR);
    rig.msr(System::SCTLR_EL1, 1);
    rig.msr(System::TTBR1_EL1, 0x2000);
    // TCR2_EL1: zero is what it had.
    let tcr2 = System(0xc103);
    rig.msr(tcr2, 0);
    let told = rig.told();
    let outside = told
        .iter()
        .filter(|it| it.contains("tables outside of RAM"));
    assert_eq!(outside.count(), 1);
    assert!(!told.iter().any(|it| it.contains("tcr2")));
    rig.msr(tcr2, 2);
    assert_eq!(rig.told(), [r#"cpu0 Missing("tcr2_el1")"#]);
    // A guest under stage 2.
    rig.msr(System::HCR_EL2, 1);
    rig.msr(System::TTBR1_EL1, ROOT);
    rig.tracker.invalidated(rig.by, 1, System::VMALLE1, 0);
    let told = rig.told();
    let missing: Vec<_> = told.iter().filter(|it| it.contains("Missing")).collect();
    assert_eq!(missing, [r#"cpu0 Missing("a guest's own tables")"#]);
    assert!(!told.iter().any(|it| it.contains("vmalle1")));
}

#[test]
fn a_second_security_state_is_said_to_go_unseen() {
    const NS: u64 = 1;
    const SMD: u64 = 1 << 7;
    let mut rig = Rig::new();
    // Firmware chooses a state before anything below it translates.
    rig.tracker.register(rig.by, 3, SCR_EL3, NS);
    assert!(rig.told().is_empty());
    let mut rig = Rig::running();
    rig.tracker.register(rig.by, 3, SCR_EL3, SMD);
    assert!(rig.told().is_empty());
    rig.tracker.register(rig.by, 3, SCR_EL3, SMD | NS);
    assert_eq!(rig.told(), [r#"cpu0 Missing("two security states")"#]);
}

#[test]
fn a_cpu_that_goes_off_leaves_its_tables() {
    let mut rig = Rig::running();
    rig.tracker.reset(rig.by);
    assert_eq!(rig.told(), ["cpu0 Reset"]);
    assert!(rig.marks.is_uncached(0));
    rig.store(ROOT, 0x6c6c_6568);
    assert_eq!(rig.told(), [format!("cpu0 free {ROOT:x} 1000")]);
}

#[test]
fn registers_that_a_hypervisor_writes_for_its_guest_are_not_the_machines() {
    let mut rig = Rig::running();
    rig.tracker.register(rig.by, 2, System::HCR_EL2, 1);
    rig.told();
    for register in [System::TTBR0_EL1, System::TTBR1_EL1, System::TCR_EL1] {
        rig.tracker.register(rig.by, 2, register, 0x7000);
    }
    assert_eq!(rig.told(), [r#"cpu0 Missing("a guest's own tables")"#]);
    // With VHE the names are those of EL2's own registers.
    rig.tracker
        .register(rig.by, 2, System::HCR_EL2, 1 | 1 << 34);
    rig.tracker.register(rig.by, 2, System::TTBR1_EL1, ROOT);
    assert_eq!(
        rig.told().last().unwrap(),
        &format!("cpu0 ttbr1_el1 {ROOT:x}")
    );
}

#[test]
fn a_guest_is_entered_by_an_exception_return_of_el2() {
    // The level of the ERET, whether SPSR_EL2 names a level below EL2, HCR_EL2.
    for (level, to_guest, hcr, told) in [
        (2, true, 1, "cpu0 User"),
        (2, false, 1, "cpu0 Exception"),
        (2, true, 0, "cpu0 Exception"),
        // The guest's own programs.
        (1, true, 1, "cpu0 Exception"),
        (1, false, 0, "cpu0 User"),
        // A host with VHE, whose programs are no guests.
        (2, true, 1 | 1 << 34 | 1 << 27, "cpu0 User"),
    ] {
        let mut rig = Rig::running();
        rig.tracker.register(rig.by, 2, System::HCR_EL2, hcr);
        rig.marks.set_to_guest(0, to_guest);
        rig.told();
        rig.tracker.returned(rig.by, level);
        assert_eq!(
            rig.told(),
            [told],
            "EL{level}, {to_guest}, HCR_EL2 {hcr:#x}"
        );
    }
}

#[test]
fn the_lower_half_is_read_by_the_granule_that_tcr_has_then() {
    // A program of 64K pages under a kernel of 4K pages: its tables are told as such, and no walk is
    // told of while EPD0 is set.
    let (root, last) = (RAM + 0x20000, RAM + 0x30000);
    let lower = TCR & !(1 << 7) | 1 << 14;
    let mut rig = Rig::running();
    rig.raw(root, last | TABLE_BITS);
    rig.raw(last + 8, FRAME | PAGE);
    rig.msr(System::TTBR0_EL1, root | 5 << 48);
    rig.msr(System::TCR_EL1, lower | 1 << 7);
    let told = rig.told();
    assert!(told.iter().all(|line| line.contains("_el1")), "{told:?}");
    rig.msr(System::TCR_EL1, lower);
    let told = rig.told();
    for obtained in [
        format!("cpu0 obtain {root:x} 2000"),
        format!("cpu0 obtain {last:x} 10000"),
    ] {
        assert!(told.contains(&obtained), "{told:?}");
    }
    assert_eq!(rig.tracker.translate(0, 0, 0x1_0123), Some(FRAME + 0x123));
    // TLBIs and stores to it are told as always; the last-level table has 8192 entries.
    rig.store(last + 8 * 8191, FRAME | PAGE);
    assert_eq!(rig.told().len(), 1);
}
