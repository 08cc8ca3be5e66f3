//! Tables that are given back: what frees one, and what only looks like it.

use super::*;

#[test]
fn a_table_is_freed_when_it_is_stored_to_while_nothing_leads_to_it() {
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.told();
    // Taken apart after it was unlinked: still a table.
    rig.store(L3, 0);
    assert_eq!(rig.told(), [format!("cpu0 store {L3:x} 1 0 Live")]);
    // A string.
    rig.store(L3 + 8, 0x6c6c_6568);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
    rig.store(L3 + 16, FRAME | PAGE);
    assert_eq!(rig.told(), [""; 0]);
    // A table again, with what it holds now.
    rig.store(L2, L3 | TABLE_BITS);
    let told = rig.told();
    assert_eq!(told[0], format!("cpu0 obtain {L3:x} 1000"));
}

#[test]
fn an_entry_that_is_made_invalid_and_keeps_its_address_frees_no_table() {
    const SOFTWARE: u64 = 1 << 63;
    let mut rig = Rig::running();
    rig.store(L2, 0);
    let leaf = (RAM + 0x9000) | PAGE;
    rig.store(L2, L3 | TABLE_BITS);
    rig.store(L3 + 8, leaf);
    rig.store(L2, 0);
    rig.told();
    let waits = SOFTWARE | (leaf & !1);
    rig.store(L3 + 8, waits);
    let at = L3 + 8;
    assert_eq!(rig.told(), [format!("cpu0 store {at:x} 1 {waits:x} Live")]);
    // There is no entry any more whose address the value could keep.
    rig.store(at, waits | 4);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
}

#[test]
fn a_table_that_is_zeroed_is_freed_only_when_nothing_leads_to_it() {
    let mut rig = Rig::running();
    rig.zero(L3);
    // What the instruction stores is told with the CPU's next one.
    rig.barrier(Barrier::DSB_ISHST);
    assert_eq!(
        rig.told(),
        [format!("cpu0 store {L3:x} 1 0 Live"), "cpu0 Dsb".to_owned()]
    );
    rig.store(L2, 0);
    rig.zero(L3 + 64);
    assert_eq!(
        rig.told(),
        [
            format!("cpu0 store {L2:x} 1 0 Live"),
            format!("cpu0 free {L3:x} 1000")
        ]
    );
}

#[test]
fn a_program_s_root_stays_a_table_while_it_waits() {
    let mut rig = Rig::running();
    let (lower, program) = (TCR & !(1 << 7), RAM + 0x6000);
    rig.msr(System::TCR_EL1, lower);
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.store(program + 16, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 6 << 48);
    rig.told();
    rig.store(program, L2 | TABLE_BITS);
    let linked = format!("cpu0 store {program:x} 1 {:x} Live", L2 | TABLE_BITS);
    assert_eq!(rig.told(), [linked]);
    rig.store(program + 8, 0xffff_0000_1234_5678);
    let told = rig.told();
    assert_eq!(told, [format!("cpu0 free {program:x} 1000")]);
    // What it led to is led to by the other tree.
    rig.store(L2 + 8, 0x6c6c_6568);
    assert!(rig.told()[0].contains(" Live"));
}

#[test]
fn programs_that_wait_are_given_back_where_their_tables_are_stored_over() {
    /// Code, which would be a table descriptor with an address outside of RAM.
    const CODE: u64 = 0xaa02_03f4_aa03_03f3;
    let mut rig = Rig::running();
    let (program, below) = (RAM + 0x6000, RAM + 0x8000);
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.msr(System::TCR_EL1, TCR & !(1 << 7));
    rig.store(program + 16, below | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 6 << 48);
    rig.told();
    // The program may go on: its tables are still told.
    rig.store(below, L3 | TABLE_BITS);
    assert_eq!(
        rig.told(),
        [format!("cpu0 store {below:x} 1 {:x} Live", L3 | TABLE_BITS)]
    );
    rig.store(below + 8, CODE);
    let freed = [program, below].map(|table| format!("cpu0 free {table:x} 1000"));
    assert_eq!(rig.told(), freed);
    rig.store(below + 16, CODE);
    assert_eq!(rig.told(), [""; 0]);
    // A CPU may walk this one.
    rig.store(L2 + 8, CODE);
    assert_eq!(
        rig.told(),
        [
            r#"cpu0 Missing("tables outside of RAM")"#.to_owned(),
            format!("cpu0 store {:x} 1 {CODE:x} Live", L2 + 8)
        ]
    );
}

#[test]
fn a_program_s_empty_root_waits_no_more() {
    let program = RAM + 0x6000;
    // A table of another level, which nothing leads to yet; it was in a list of free pages before, or not.
    for link in [false, true] {
        let mut rig = emptied_root(program);
        if link {
            rig.store(program, RAM + 0x8000);
            rig.told();
        }
        rig.store(program, L3 | TABLE_BITS);
        assert_eq!(rig.told(), [format!("cpu0 free {program:x} 1000")]);
    }
}

/// A program's root that had an entry, and that no TTBR has any more.
fn emptied_root(program: u64) -> Rig {
    let mut rig = Rig::running();
    rig.msr(System::TCR_EL1, TCR & !(1 << 7));
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.store(program, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 6 << 48);
    rig.store(program, 0);
    rig.told();
    rig
}

#[test]
fn tables_below_an_unlinked_table_count_as_unlinked() {
    const OTHER: u64 = RAM + 0x9000;
    let mut rig = Rig::running();
    rig.store(ROOT, 0);
    rig.told();
    // Of a program, in memory that was the last table.
    rig.store(L3 + 8, 0x6c6c_6568);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
    // The table between is linked again, with what it holds now.
    rig.store(L2, OTHER | TABLE_BITS);
    rig.told();
    rig.store(ROOT, L2 | TABLE_BITS);
    assert_eq!(rig.told()[0], format!("cpu0 obtain {OTHER:x} 1000"));
    rig.store(OTHER + 8, FRAME | PAGE);
    let stored = format!("cpu0 store {:x} 1 {:x} Live", OTHER + 8, FRAME | PAGE);
    assert_eq!(rig.told(), [stored]);
}

#[test]
fn a_table_takes_the_place_of_one_that_waits() {
    let mut rig = Rig::running();
    let (lower, program) = (TCR & !(1 << 7), RAM + 0x6000);
    rig.msr(System::TCR_EL1, lower);
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.store(program, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 6 << 48);
    rig.told();
    rig.store(L2 + 8, program | TABLE_BITS);
    let told = rig.told();
    assert_eq!(told[0], format!("cpu0 free {program:x} 1000"), "{told:?}");
    assert_eq!(told[1], format!("cpu0 obtain {program:x} 1000"));
}

#[test]
fn tables_smaller_than_a_page_share_it_with_other_data() {
    let mut rig = Rig::new();
    // 42 bits, 4K: eight entries at the top.
    let tcr = TCR & !(63 << 16) | 22 << 16;
    rig.on(tcr);
    let told = rig.told();
    assert!(
        told.contains(&format!("cpu0 obtain {ROOT:x} 40")),
        "{told:?}"
    );
    rig.store(ROOT + 64, 0x1234_5678);
    assert_eq!(rig.told(), [""; 0]);
    rig.store(ROOT + 56, 0);
    rig.store(ROOT + 56, L2 | TABLE_BITS);
    // The value that was there is no change.
    assert_eq!(rig.told().len(), 3);
}

#[test]
fn a_small_table_is_not_as_young_as_what_shares_its_page() {
    const TOP: u64 = RAM + 0x8000;
    // Another CPU stores past its caches, with no barrier: which lines it stored to is known.
    for (stored, how) in [(TOP + 0x800, "Earlier"), (TOP, "Live")] {
        let mut rig = Rig::new();
        rig.on(TCR & !(63 << 16) | 22 << 16);
        rig.by.cpu = 1;
        rig.store(stored, 8);
        rig.by.cpu = 0;
        rig.told();
        rig.msr(System::TTBR1_EL1, TOP);
        let told = rig.told();
        let mut stores = told.iter().filter(|it| it.contains("store")).peekable();
        assert!(stores.peek().is_some(), "{told:?}");
        assert!(stores.all(|it| it.ends_with(how)), "{told:?}");
    }
}

#[test]
fn zeroing_beside_a_small_table_leaves_it() {
    let mut rig = Rig::new();
    rig.on(TCR & !(63 << 16) | 22 << 16);
    rig.tracker.reset(rig.by);
    rig.told();
    // No TTBR leads to the table of 64 bytes now, and the next line is zeroed.
    rig.zero(ROOT + 64);
    assert_eq!(rig.told(), [""; 0]);
    rig.zero(ROOT);
    assert_eq!(rig.told(), [format!("cpu0 free {ROOT:x} 40")]);
}

#[test]
fn a_store_that_is_seen_before_its_call_gives_a_small_root_back() {
    let mut rig = Rig::running();
    let small = TCR & !(1 << 7 | 63) | 22;
    let (waits, runs) = (RAM + 0x6000, RAM + 0x6040);
    rig.msr(System::TTBR0_EL1, waits | 5 << 48);
    rig.msr(System::TCR_EL1, small);
    rig.store(waits, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, runs | 6 << 48);
    rig.told();
    // Another CPU's allocator stores a word of its list, and this CPU zeroes a line beside.
    rig.raw(waits + 32, 0x00dc_ba98_7654_3003);
    rig.zero(runs + 0x40);
    rig.barrier(Barrier::DSB_SY);
    let told = rig.told();
    assert_eq!(told[0], format!("cpu0 free {waits:x} 40"), "{told:?}");
    assert!(!told.iter().any(|it| it.contains("Missing")), "{told:?}");
    // A word that leads to a table is a change of a program that waits.
    let mut rig = Rig::running();
    rig.msr(System::TTBR0_EL1, waits | 5 << 48);
    rig.msr(System::TCR_EL1, small);
    rig.store(waits, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, runs | 6 << 48);
    rig.told();
    rig.raw(waits + 32, L2 | TABLE_BITS);
    rig.zero(runs + 0x40);
    rig.barrier(Barrier::DSB_SY);
    assert!(rig.told()[0].starts_with("cpu0 store"));
}

#[test]
fn a_table_may_lead_to_itself() {
    let mut rig = Rig::running();
    rig.store(ROOT + 8, ROOT | TABLE_BITS);
    assert!(
        rig.told()
            .iter()
            .any(|it| it.starts_with(&format!("cpu0 store {:x}", ROOT + 8)))
    );
    rig.store(ROOT + 8, 0);
    assert_eq!(rig.told().len(), 1);
}

#[test]
fn a_list_in_the_first_words_of_tables_that_wait_is_no_reuse() {
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.told();
    // Not a valid descriptor, in the first word.
    rig.store(L3, RAM + 0x8000);
    assert_eq!(
        rig.told(),
        [format!("cpu0 store {L3:x} 1 {:x} Live", RAM + 0x8000)]
    );
    rig.store(L3 + 8, RAM + 0x8000);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.told();
    rig.store(L3, 0x8001);
    assert_eq!(rig.told(), [format!("cpu0 free {L3:x} 1000")]);
}

#[test]
fn a_kernel_that_begins_anew_has_none_of_the_old_tables() {
    const NEXT: u64 = RAM + 0x8000;
    let mut rig = Rig::running();
    rig.msr(System::SCTLR_EL1, 0);
    rig.told();
    // The same kernel goes on.
    rig.msr(System::SCTLR_EL1, 0b101);
    assert_eq!(rig.told(), ["cpu0 sctlr_el1 5"]);
    rig.msr(System::SCTLR_EL1, 0);
    rig.told();
    // The next one has a table of another level where the old one's third level was.
    rig.raw(NEXT, L3 | TABLE_BITS);
    rig.raw(L3, FRAME | TABLE_BITS);
    rig.msr(System::TTBR1_EL1, NEXT);
    rig.msr(System::SCTLR_EL1, 0b101);
    let told = rig.told();
    let place = |line: &str| told.iter().position(|it| it == line);
    for old in [ROOT, L2, L3] {
        assert!(
            place(&format!("cpu0 free {old:x} 1000")).is_some(),
            "{told:?}"
        );
    }
    let freed = place(&format!("cpu0 free {L3:x} 1000"));
    assert!(
        freed < place(&format!("cpu0 obtain {L3:x} 1000")),
        "{told:?}"
    );
    // What its second level leads to is a table now.
    rig.store(FRAME, 7);
    assert_eq!(rig.told(), [format!("cpu0 store {FRAME:x} 1 7 Live")]);
}

#[test]
fn an_empty_root_of_every_page_size_is_given_back_once() {
    const LOWER: u64 = TCR & !(1 << 7);
    let sized = |tg0: u64| LOWER | tg0 << 14;
    let (empty, program) = (RAM + 0x20000, RAM + 0x30000);
    let mut rig = Rig::running();
    rig.raw(program, L3 | TABLE_BITS);
    let enter = |rig: &mut Rig, from: u64, to: u64, root: u64| {
        rig.msr(System::TCR_EL1, from | 1 << 7);
        rig.msr(System::TTBR0_EL1, root);
        rig.msr(System::TCR_EL1, to | 1 << 7);
        rig.msr(System::TCR_EL1, to);
    };
    // CPU 0 is in it with 4K, CPU 1 with 16K pages.
    enter(&mut rig, TCR, sized(0), empty);
    rig.by.cpu = 1;
    rig.on(sized(2) | 1 << 7);
    enter(&mut rig, sized(2), sized(2), empty);
    // CPU 0 goes to a program of 64K pages and comes back to it with these, while CPU 1 is in it and after
    // CPU 1 has left it: an ISB may still be to come there.
    let freed = |told: &[String]| told.iter().filter(|line| line.contains("free")).count();
    for (cpu, from, to) in [(0, 0, 1), (1, 2, 0)] {
        rig.by.cpu = cpu;
        enter(&mut rig, sized(from), sized(to), program | 5 << 48);
        rig.told();
        rig.msr(System::TTBR0_EL1, empty);
        let told = rig.told();
        assert!(told.iter().any(|line| line.contains("obtain")), "{told:?}");
        assert_eq!(freed(&told), 0, "{told:?}");
    }
    rig.by.cpu = 0;
    // Nobody is in it, and it is used for something else.
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.by.cpu = 1;
    enter(&mut rig, sized(0), sized(1), program | 5 << 48);
    rig.told();
    rig.store(empty + 8, 0x6c6c_6568);
    let told = rig.told();
    assert!(freed(&told) > 0, "{told:?}");
}

#[test]
fn an_empty_root_that_all_have_left_is_no_memory_given_back_when_its_shape_changes() {
    // The CPU that left it may walk it until its next ISB.
    let (empty, program) = (RAM + 0x20000, RAM + 0x30000);
    let lower = TCR & !(1 << 7);
    for (root, freed) in [(empty, 0), (program, 1)] {
        let mut rig = Rig::running();
        rig.raw(program, L3 | TABLE_BITS);
        rig.msr(System::TCR_EL1, lower);
        rig.msr(System::TTBR0_EL1, root);
        rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 5 << 48);
        rig.by.cpu = 1;
        rig.on(lower | 1 << 14);
        rig.told();
        rig.msr(System::TTBR0_EL1, root);
        let told = rig.told();
        let told = told.iter().filter(|line| line.contains("free"));
        assert_eq!(told.count(), freed, "{root:x}");
    }
}
