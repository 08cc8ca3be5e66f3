//! Tests of freed tables: the stores that free one, and those that do not.

use super::*;

#[test]
fn a_table_is_freed_when_it_is_stored_to_while_nothing_leads_to_it() {
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.emitted();
    // Taken apart after it was unlinked: still a table.
    rig.store(L3, 0);
    assert_eq!(rig.emitted(), [stored(L3, 0)]);
    // A string.
    rig.store(L3 + 8, 0x6c6c_6568);
    assert_eq!(rig.emitted(), [freed(L3)]);
    rig.store(L3 + 16, FRAME | PAGE);
    assert_eq!(rig.emitted(), [""; 0]);
    // A table again, with its current contents.
    rig.store(L2, L3 | TABLE_BITS);
    let emitted = rig.emitted();
    assert_eq!(emitted[0], obtained(L3));
}

#[test]
fn an_invalid_entry_that_keeps_its_address_does_not_free_its_table() {
    const SOFTWARE: u64 = 1 << 63;
    let mut rig = Rig::running();
    rig.store(L2, 0);
    let leaf = (RAM + 0x9000) | PAGE;
    rig.store(L2, L3 | TABLE_BITS);
    rig.store(L3 + 8, leaf);
    rig.store(L2, 0);
    rig.emitted();
    let waits = SOFTWARE | (leaf & !1);
    rig.store(L3 + 8, waits);
    let at = L3 + 8;
    assert_eq!(rig.emitted(), [stored(at, waits)]);
    // There is no longer an entry whose address the value could keep.
    rig.store(at, waits | 4);
    assert_eq!(rig.emitted(), [freed(L3)]);
}

#[test]
fn a_table_that_is_zeroed_is_freed_only_when_nothing_leads_to_it() {
    let mut rig = Rig::running();
    rig.zero(L3);
    // The stores of the instruction are emitted at the CPU's next one.
    rig.barrier(Barrier::DSB_ISHST);
    assert_eq!(rig.emitted(), [stored(L3, 0), "cpu0 Dsb".to_owned()]);
    rig.store(L2, 0);
    rig.zero(L3 + 64);
    assert_eq!(rig.emitted(), [stored(L2, 0), freed(L3)]);
}

#[test]
fn the_root_of_a_program_stays_a_table_while_it_waits() {
    let program = RAM + 0x6000;
    let mut rig = Rig::with_waiting(program, (program + 16, L2 | TABLE_BITS));
    rig.store(program, L2 | TABLE_BITS);
    let linked = stored(program, L2 | TABLE_BITS);
    assert_eq!(rig.emitted(), [linked]);
    rig.store(program + 8, 0xffff_0000_1234_5678);
    let emitted = rig.emitted();
    assert_eq!(emitted, [freed(program)]);
    // The other tree leads to the same table.
    rig.store(L2 + 8, 0x6c6c_6568);
    assert!(rig.emitted()[0].contains(" Live"));
}

#[test]
fn waiting_programs_are_freed_when_their_tables_are_overwritten() {
    /// Code, which as a table descriptor would have an address outside of RAM.
    const CODE: u64 = 0xaa02_03f4_aa03_03f3;
    let (program, below) = (RAM + 0x6000, RAM + 0x8000);
    let mut rig = Rig::with_waiting(program, (program + 16, below | TABLE_BITS));
    // The program may continue, so stores to its tables are still emitted.
    rig.store(below, L3 | TABLE_BITS);
    assert_eq!(rig.emitted(), [stored(below, L3 | TABLE_BITS)]);
    rig.store(below + 8, CODE);
    let freed = [program, below].map(freed);
    assert_eq!(rig.emitted(), freed);
    rig.store(below + 16, CODE);
    assert_eq!(rig.emitted(), [""; 0]);
    // A CPU may walk this one.
    rig.store(L2 + 8, CODE);
    assert_eq!(
        rig.emitted(),
        [
            r#"cpu0 Missing("tables outside of RAM")"#.to_owned(),
            stored(L2 + 8, 0)
        ]
    );
}

#[test]
fn an_empty_root_of_a_program_does_not_wait() {
    let program = RAM + 0x6000;
    // A table of another level, to which nothing leads yet. It may have been in a list of free
    // pages.
    for link in [false, true] {
        let mut rig = emptied_root(program);
        if link {
            rig.store(program, RAM + 0x8000);
            rig.emitted();
        }
        rig.store(program, L3 | TABLE_BITS);
        assert_eq!(rig.emitted(), [freed(program)]);
    }
}

/// Makes a program's root that had an entry, and that is no longer in a TTBR.
fn emptied_root(program: u64) -> Rig {
    let mut rig = Rig::with_waiting(program, (program, L2 | TABLE_BITS));
    rig.store(program, 0);
    rig.emitted();
    rig
}

#[test]
fn tables_below_an_unlinked_table_count_as_unlinked() {
    const OTHER: u64 = RAM + 0x9000;
    let mut rig = Rig::running();
    rig.store(ROOT, 0);
    rig.emitted();
    // A program's data, in memory that was the last table.
    rig.store(L3 + 8, 0x6c6c_6568);
    assert_eq!(rig.emitted(), [freed(L3)]);
    // The table in between is linked again, with its current contents.
    rig.store(L2, OTHER | TABLE_BITS);
    rig.emitted();
    rig.store(ROOT, L2 | TABLE_BITS);
    assert_eq!(rig.emitted()[0], obtained(OTHER));
    rig.store(OTHER + 8, FRAME | PAGE);
    let stored = stored(OTHER + 8, FRAME | PAGE);
    assert_eq!(rig.emitted(), [stored]);
}

#[test]
fn a_table_replaces_a_waiting_root() {
    let program = RAM + 0x6000;
    let mut rig = Rig::with_waiting(program, (program, L2 | TABLE_BITS));
    rig.store(L2 + 8, program | TABLE_BITS);
    let emitted = rig.emitted();
    assert_eq!(emitted[0], freed(program), "{emitted:?}");
    assert_eq!(emitted[1], obtained(program));
}

#[test]
fn tables_smaller_than_a_page_share_it_with_other_data() {
    let mut rig = Rig::new();
    // 42 bits, 4K: eight entries at the top.
    let tcr = TCR & !(63 << 16) | 22 << 16;
    rig.on(tcr);
    let emitted = rig.emitted();
    assert!(
        emitted.contains(&format!("cpu0 obtain {ROOT:x} 40")),
        "{emitted:?}"
    );
    rig.store(ROOT + 64, 0x1234_5678);
    assert_eq!(rig.emitted(), [""; 0]);
    rig.store(ROOT + 56, 0);
    rig.store(ROOT + 56, L2 | TABLE_BITS);
    // The same value again is not a change.
    assert_eq!(rig.emitted().len(), 3);
}

#[test]
fn other_stores_to_the_page_of_a_small_table_do_not_count() {
    const TOP: u64 = RAM + 0x8000;
    // Another CPU stores past its caches, without a barrier, so its lines are known.
    for (stored, how) in [(TOP + 0x800, "Earlier"), (TOP, "Live")] {
        let mut rig = Rig::new();
        rig.on(TCR & !(63 << 16) | 22 << 16);
        rig.by.cpu = 1;
        rig.store(stored, 8);
        rig.by.cpu = 0;
        rig.emitted();
        rig.msr(System::TTBR1_EL1, TOP);
        let emitted = rig.emitted();
        let mut stores = emitted.iter().filter(|it| it.contains("store")).peekable();
        assert!(stores.peek().is_some(), "{emitted:?}");
        assert!(stores.all(|it| it.ends_with(how)), "{emitted:?}");
    }
}

#[test]
fn zeroing_beside_a_small_table_does_not_free_it() {
    let mut rig = Rig::new();
    rig.on(TCR & !(63 << 16) | 22 << 16);
    rig.tracker.reset(rig.by);
    rig.emitted();
    // No TTBR leads to the table of 64 bytes any more, and the next line is zeroed.
    rig.zero(ROOT + 64);
    assert_eq!(rig.emitted(), [""; 0]);
    rig.zero(ROOT);
    assert_eq!(rig.emitted(), [format!("cpu0 free {ROOT:x} 40")]);
}

#[test]
fn a_store_that_is_in_memory_before_its_callback_frees_a_small_root() {
    let mut rig = Rig::running();
    let small = TCR & !(1 << 7 | 63) | 22;
    let (waits, runs) = (RAM + 0x6000, RAM + 0x6040);
    rig.msr(System::TTBR0_EL1, waits | 5 << 48);
    rig.msr(System::TCR_EL1, small);
    rig.store(waits, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, runs | 6 << 48);
    rig.emitted();
    // Another CPU's allocator stores a word of its list, and this CPU zeroes the next line.
    rig.raw(waits + 32, 0x00dc_ba98_7654_3003);
    rig.zero(runs + 0x40);
    rig.barrier(Barrier::DSB_SY);
    let emitted = rig.emitted();
    assert_eq!(emitted[0], format!("cpu0 free {waits:x} 40"), "{emitted:?}");
    assert!(
        !emitted.iter().any(|it| it.contains("Missing")),
        "{emitted:?}"
    );
    // A word that leads to a table changes a waiting program.
    let mut rig = Rig::running();
    rig.msr(System::TTBR0_EL1, waits | 5 << 48);
    rig.msr(System::TCR_EL1, small);
    rig.store(waits, L2 | TABLE_BITS);
    rig.msr(System::TTBR0_EL1, runs | 6 << 48);
    rig.emitted();
    rig.raw(waits + 32, L2 | TABLE_BITS);
    rig.zero(runs + 0x40);
    rig.barrier(Barrier::DSB_SY);
    assert!(rig.emitted()[0].starts_with("cpu0 store"));
}

#[test]
fn a_table_may_lead_to_itself() {
    let mut rig = Rig::running();
    rig.store(ROOT + 8, ROOT | TABLE_BITS);
    assert!(
        rig.emitted()
            .iter()
            .any(|it| it.starts_with(&format!("cpu0 store {:x}", ROOT + 8)))
    );
    rig.store(ROOT + 8, 0);
    assert_eq!(rig.emitted().len(), 1);
}

#[test]
fn a_list_in_the_first_words_of_waiting_tables_does_not_free_them() {
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.emitted();
    // Not a valid descriptor, in the first word.
    rig.store(L3, RAM + 0x8000);
    assert_eq!(rig.emitted(), [stored(L3, RAM + 0x8000)]);
    rig.store(L3 + 8, RAM + 0x8000);
    assert_eq!(rig.emitted(), [freed(L3)]);
    let mut rig = Rig::running();
    rig.store(L2, 0);
    rig.emitted();
    rig.store(L3, 0x8001);
    assert_eq!(rig.emitted(), [freed(L3)]);
}

#[test]
fn a_new_kernel_has_none_of_the_old_tables() {
    const NEXT: u64 = RAM + 0x8000;
    let mut rig = Rig::running();
    rig.msr(System::SCTLR_EL1, 0);
    rig.emitted();
    // The same kernel continues.
    rig.msr(System::SCTLR_EL1, 0b101);
    assert_eq!(rig.emitted(), ["cpu0 sctlr_el1 5"]);
    rig.msr(System::SCTLR_EL1, 0);
    rig.emitted();
    // The next one has a table of another level in place of the old third level.
    rig.raw(NEXT, L3 | TABLE_BITS);
    rig.raw(L3, FRAME | TABLE_BITS);
    rig.msr(System::TTBR1_EL1, NEXT);
    rig.msr(System::SCTLR_EL1, 0b101);
    let emitted = rig.emitted();
    let place = |line: &str| emitted.iter().position(|it| it == line);
    for old in [ROOT, L2, L3] {
        assert!(place(&freed(old)).is_some(), "{emitted:?}");
    }
    let freed = place(&freed(L3));
    assert!(freed < place(&obtained(L3)), "{emitted:?}");
    // Its second level leads to a table now.
    rig.store(FRAME, 7);
    assert_eq!(rig.emitted(), [stored(FRAME, 7)]);
}

#[test]
fn an_empty_root_of_several_page_sizes_is_freed_when_it_is_unused() {
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
    // CPU 0 uses it with 4K, CPU 1 with 16K pages.
    enter(&mut rig, TCR, sized(0), empty);
    rig.by.cpu = 1;
    rig.on(sized(2) | 1 << 7);
    enter(&mut rig, sized(2), sized(2), empty);
    // CPU 0 switches to a program of 64K pages and back to it with these, while CPU 1 uses it and
    // after CPU 1 has left it: CPU 1 may not have executed an ISB yet.
    let freed = |emitted: &[String]| emitted.iter().filter(|line| line.contains("free")).count();
    for (cpu, from, to) in [(0, 0, 1), (1, 2, 0)] {
        rig.by.cpu = cpu;
        enter(&mut rig, sized(from), sized(to), program | 5 << 48);
        rig.emitted();
        rig.msr(System::TTBR0_EL1, empty);
        let emitted = rig.emitted();
        assert!(
            emitted.iter().any(|line| line.contains("obtain")),
            "{emitted:?}"
        );
        assert_eq!(freed(&emitted), 0, "{emitted:?}");
    }
    rig.by.cpu = 0;
    // No CPU uses it, and its memory is used for something else.
    rig.msr(System::TTBR0_EL1, program | 5 << 48);
    rig.by.cpu = 1;
    enter(&mut rig, sized(0), sized(1), program | 5 << 48);
    rig.emitted();
    rig.store(empty + 8, 0x6c6c_6568);
    let emitted = rig.emitted();
    assert!(freed(&emitted) > 0, "{emitted:?}");
}

#[test]
fn an_unused_empty_root_is_not_freed_when_its_shape_changes() {
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
        rig.emitted();
        rig.msr(System::TTBR0_EL1, root);
        let emitted = rig.emitted();
        let found = emitted.iter().filter(|line| line.contains("free"));
        assert_eq!(found.count(), freed, "{root:x}");
    }
}
