//! Register writes.

use crate::rig::*;
use granule_model::{Access, Barrier, Config, Event, Rule, System};

/// MMU off, an empty tree in memory, cleaned.
fn off() -> Rig {
    let mut rig = Rig::off(Config::default());
    rig.fill(L0, 512, 0, 0);
    rig.clean(L0, 0x1000);
    rig
}

#[test]
fn the_mmu_goes_on_with_an_empty_tlb_and_registers_in_effect() {
    let mut rig = off();
    rig.turn_on(TCR | EPD0, 0, L0);
    rig.settle(&[]);

    let mut rig = off();
    rig.register(System::TCR_EL1, TCR | EPD0);
    rig.write(System::TTBR1_EL1, L0);
    rig.register(System::SCTLR_EL1, MMU_ON);
    rig.expect(&[Rule::UnknownTlb]);

    let mut rig = off();
    rig.tlbi("vmalle1", 0);
    rig.barrier(Barrier::DSB_NSH);
    rig.register(System::TCR_EL1, TCR | EPD0);
    rig.register(System::TTBR1_EL1, L0);
    rig.register(System::SCTLR_EL1, MMU_ON);
    rig.expect(&[Rule::MissingIsb]);
    rig.model.access(0, VA, Access::READ);
    rig.expect(&[Rule::MissingIsb]);
}

#[test]
fn tables_are_visible_before_a_register_leads_to_them() {
    let mut rig = Rig::new(0);
    rig.fill(SPARE, 512, 0, 0);
    rig.register(System::TTBR1_EL1, SPARE);
    rig.expect(&[Rule::UnorderedLink]);
}

#[test]
fn another_tree_for_the_same_addresses_goes_through_an_empty_one() {
    // Steps of the way: the empty tree, ISB, TLBI, DSB.
    for steps in 0..16 {
        let mut rig = Rig::with(Config::default());
        rig.make(L3, RAM | PAGE | RW);
        // Another tree, which maps the same page elsewhere, and an empty one.
        let other = 0x5000_0000;
        rig.chain(other);
        rig.store(other + 0x3000, RAM + 0x1000 | PAGE | RW);
        rig.fill(SPARE, 512, 0, 0);
        rig.barrier(Barrier::DSB_ISHST);
        if steps & 1 != 0 {
            rig.register(System::TTBR1_EL1, SPARE);
        }
        if steps & 2 != 0 {
            rig.isb();
        }
        if steps & 4 != 0 {
            rig.tlbi("vmalle1", 0);
        }
        if steps & 8 != 0 {
            rig.barrier(Barrier::DSB_NSH);
        }
        rig.expect(&[]);
        rig.write(System::TTBR1_EL1, other);
        assert_eq!(
            rig.model.violation_count() == 0,
            steps == 15,
            "{steps:#06b}"
        );
    }
}

/// A program's tree at `base`, with one block.
fn process(rig: &mut Rig, base: u64, to: u64, attributes: u64) {
    rig.chain(base);
    rig.store(base + 0x2000, to | BLOCK | RW | attributes);
    rig.barrier(Barrier::DSB_ISHST);
}

#[test]
fn processes_switch_by_asid() {
    for (asid, attributes, legal) in [(2, NG, true), (1, NG, false), (2, 0, false)] {
        let mut rig = Rig::with(Config::default());
        process(&mut rig, 0x5000_0000, RAM, attributes);
        process(&mut rig, 0x5010_0000, RAM + 0x20_0000, attributes);
        rig.write(System::TTBR0_EL1, 0x5000_0000 | 1 << 48);
        rig.write(System::TCR_EL1, TCR);
        rig.reads(0, 0x1234, &[Some(RAM + 0x1234)]);
        rig.expect(&[]);
        rig.write(System::TTBR0_EL1, 0x5010_0000 | asid << 48);
        assert_eq!(
            rig.model.violation_count() == 0,
            legal,
            "{asid} {attributes:#x}"
        );
        if legal {
            rig.reads(0, 0x1234, &[Some(RAM + 0x20_1234)]);
        }
    }
}

#[test]
fn a_process_that_is_not_running_keeps_its_entries() {
    let mut rig = Rig::with(Config::default());
    for (base, asid) in [(0x5000_0000, 1u64), (0x5010_0000, 2)] {
        process(&mut rig, base, RAM + (asid << 30), NG);
        rig.write(System::TTBR0_EL1, base | asid << 48);
        rig.write(System::TCR_EL1, TCR);
    }
    rig.expect(&[]);
    // The first is changed and its tables freed while the second runs.
    rig.store(0x5000_2000, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.settle(&[Rule::StaleTranslation]);
    rig.event(Event::freed(0x5000_2000, 0x1000));
    rig.expect(&[Rule::FreedInUse]);
    rig.invalidate("aside1is", 1 << 48);
    rig.event(Event::freed(0x5000_0000, 0x3000));
    rig.expect(&[]);
}

#[test]
fn granule_format_and_output_size_do_not_change_in_use() {
    for tcr in [
        TCR & !(0b11 << 30) | 0b11 << 30,
        TCR | 1 << 59,
        TCR & !(0b111 << 32) | 0b010 << 32,
    ] {
        let mut rig = Rig::with(Config::default());
        rig.register(System::TCR_EL1, tcr | EPD0);
        assert_eq!(rig.model.violations()[0].rule, Rule::FieldInUse);
    }
    // With the half disabled they may.
    let mut rig = Rig::with(Config::default());
    rig.write(System::TCR_EL1, TCR | EPD0 | 1 << 23);
    rig.flush();
    rig.write(System::TCR_EL1, TCR & !(0b111 << 32) | 0b010 << 32 | EPD0);
    rig.settle(&[]);
}

#[test]
fn fields_that_tlbs_hold_need_a_tlbi() {
    for (register, value) in [
        (System::TCR_EL1, TCR | EPD0 | 1 << 39),
        (System::TCR_EL1, TCR | EPD0 | 1 << 42),
        (System::MAIR_EL1, MAIR | 0xbb << 24),
    ] {
        for (isb, flush) in [(true, true), (false, true), (true, false)] {
            let mut rig = Rig::with(Config::default());
            rig.register(register, value);
            if isb {
                rig.isb();
            }
            if flush {
                rig.tlbi("vmalle1", 0);
                rig.barrier(Barrier::DSB_NSH);
            }
            rig.isb();
            rig.sync();
            rig.expect_unless(isb && flush, Rule::CachedField);
        }
    }
}

#[test]
fn memory_attributes_in_use_do_not_change() {
    let mut rig = Rig::with(Config::default());
    rig.make(L3, RAM | PAGE | RW);
    rig.register(System::MAIR_EL1, MAIR & !0xff | 0x44);
    rig.expect(&[Rule::BreakBeforeMake]);
}

#[test]
fn a_disabled_half_still_finds_what_its_tlb_holds() {
    for flush in [false, true] {
        let mut rig = Rig::with(Config::default());
        rig.make(L3, RAM | PAGE | RW);
        rig.write(System::TCR_EL1, TCR | EPD0 | 1 << 23);
        if flush {
            rig.flush();
            rig.reads(0, VA, &[None]);
        } else {
            rig.reads(0, VA, &[None, Some(RAM)]);
        }
        rig.expect(&[]);
    }
}

#[test]
fn a_cpu_that_was_reset_has_an_unknown_tlb() {
    let mut rig = Rig::with(Config::default());
    rig.event(Event::Reset);
    rig.register(System::TCR_EL1, TCR | EPD0);
    rig.write(System::TTBR1_EL1, L0);
    rig.register(System::SCTLR_EL1, MMU_ON);
    rig.expect(&[Rule::UnknownTlb]);
    rig.event(Event::Reset);
    rig.turn_on(TCR | EPD0, 0, L0);
    rig.expect(&[]);
}

#[test]
fn impossible_events_are_refused() {
    use granule_model::EventError;
    let mut rig = Rig::off(Config::default());
    let store = |address| Event::store(address, 0);
    let mut event = |cpu, kind| rig.model.event(cpu, kind);
    assert_eq!(
        event(1, Event::Settled),
        Err(EventError::NoSuchCpu { cpu: 1, cpus: 1 })
    );
    assert_eq!(
        event(0, store(4)),
        Err(EventError::Misaligned { address: 4 })
    );
    assert_eq!(
        event(0, store(1 << 52)),
        Err(EventError::OutsideMemory {
            address: 1 << 52,
            bytes: 8
        })
    );
    assert_eq!(event(0, store((1 << 52) - 8)), Ok(()));
    assert_eq!(rig.model.events(), 1);
}

#[test]
fn a_cpu_that_is_off_hears_of_no_invalidation() {
    for on in [false, true] {
        let mut rig = Rig::off(two());
        rig.fill(L0, 512, 0, 0);
        rig.clean(L0, 0x1000);
        if on {
            rig.cpu = 1;
            rig.isb();
            rig.cpu = 0;
        }
        rig.tlbi("vmalle1is", 0);
        rig.barrier(Barrier::DSB_ISH);
        rig.cpu = 1;
        rig.register(System::MAIR_EL1, MAIR);
        rig.register(System::TCR_EL1, TCR | EPD0);
        rig.write(System::TTBR1_EL1, L0);
        rig.register(System::SCTLR_EL1, MMU_ON);
        rig.expect_unless(on, Rule::UnknownTlb);
    }
}

#[test]
fn fields_that_tlbs_hold_need_a_tlbi_whether_the_mmu_is_on_or_not() {
    let hpd1 = 1 << 42;
    for (register, value) in [
        (System::TCR_EL1, TCR | EPD0 | hpd1),
        (System::TCR_EL1, TCR + (1 << 16) | EPD0),
        // TG1, IPS, DS.
        (System::TCR_EL1, TCR & !(0b11 << 30) | 0b01 << 30 | EPD0),
        (System::TCR_EL1, TCR & !(0b111 << 32) | EPD0),
        (System::TCR_EL1, TCR | 1 << 59 | EPD0),
        (System::MAIR_EL1, MAIR | 0x44 << 24),
    ] {
        for (before, after) in [(false, false), (true, false), (false, true)] {
            let mut rig = Rig::with(Config::default());
            let invalidate = |rig: &mut Rig| {
                rig.flush();
            };
            rig.write(System::TTBR1_EL1, SPARE);
            rig.write(System::SCTLR_EL1, 0);
            if before {
                invalidate(&mut rig);
            }
            rig.write(register, value);
            if after {
                invalidate(&mut rig);
            }
            rig.write(System::SCTLR_EL1, MMU_ON);
            rig.sync();
            let cached = rig.rules().contains(&Rule::CachedField);
            assert_eq!(cached, !before && !after, "{register:?} {value:#x}");
        }
    }
}

#[test]
fn a_switch_of_processes_goes_through_an_empty_tree_of_any_asid() {
    // TCR.A1: the ASID is that of TTBR1, so the empty tree has the old one first, then the new.
    let a1 = TCR | 1 << 22;
    let mut rig = Rig::with_page(RAM | PAGE | RW | NG);
    let (empty, other) = (SPARE, L0);
    rig.turn_on(a1, other, empty | 1 << 48);
    rig.write(System::TTBR0_EL1, empty);
    rig.write(System::TTBR1_EL1, empty | 2 << 48);
    rig.settle(&[]);
    // To rely on the empty tree with the old ASID is wrong: the process may still be found.
    rig.write(System::TTBR1_EL1, empty | 1 << 48);
    rig.settle(&[Rule::StaleTranslation]);
}

/// CPU 1 is reset, the page is unmapped without it, and it comes back without an invalidation.
fn comes_back(tlb_unknown_at_reset: bool) -> Rig {
    let mut rig = Rig::with(Config {
        tlb_unknown_at_reset,
        ..two()
    });
    rig.make(L3, RAM | PAGE | RW);
    rig.cpu = 1;
    rig.turn_on(TCR | EPD0, 0, L0);
    rig.event(Event::Reset);
    rig.cpu = 0;
    rig.store(L3, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.flush();
    rig.expect(&[]);
    rig.cpu = 1;
    rig.register(System::MAIR_EL1, MAIR);
    rig.register(System::TCR_EL1, TCR | EPD0);
    rig.write(System::TTBR1_EL1, L0);
    rig.write(System::SCTLR_EL1, MMU_ON);
    rig
}

#[test]
fn a_cpu_that_was_reset_holds_what_it_held_or_anything() {
    let mut rig = comes_back(false);
    rig.expect(&[]);
    rig.settle(&[Rule::StaleTranslation]);
    // Anything may be in its TLB, not only that.
    let mut rig = comes_back(true);
    rig.expect(&[Rule::UnknownTlb]);
    rig.settle(&[]);
}

#[test]
fn tables_that_only_a_cpu_held_that_was_reset_are_free() {
    for is_off in [true, false] {
        let mut rig = Rig::with(two());
        rig.cpu = 1;
        rig.turn_on(TCR | EPD0, 0, L0);
        for cpu in [0, 1] {
            rig.cpu = cpu;
            rig.write(System::SCTLR_EL1, 0);
            if cpu == 1 && is_off {
                rig.event(Event::Reset);
            }
        }
        rig.cpu = 0;
        rig.tlbi("vmalle1", 0);
        rig.barrier(Barrier::DSB_NSH);
        rig.event(Event::freed(L3, 0x1000));
        rig.expect_unless(is_off, Rule::FreedInUse);
    }
}

#[test]
fn the_regime_that_is_on_is_relied_on() {
    // EL2 with one half, as without VHE.
    let mut rig = Rig::with_page(RAM | PAGE | RW);
    rig.turn_on_el2();
    rig.make(L3, 0);
    rig.event(Event::assume_visible(0, 0x1000));
    rig.expect(&[Rule::StaleTranslation]);
}
