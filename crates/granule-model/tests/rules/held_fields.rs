//! Register fields that TLBs hold, and halves whose walks are disabled.

use crate::rig::*;
use granule_model::{Barrier, Config, Event, Rule, System};

#[test]
fn any_field_of_tcr_but_a1_and_epd_may_be_held() {
    let upper = |bit: u32| TCR | EPD0 | 1 << bit;
    // TBI1, SH1, IRGN1, ORGN1, AS, HWU159, TBID1, NFD1, E0PD1, TCMA1, MTX1.
    let mut held = vec![
        (TCR | EPD0) & !(0b11 << 28) | 0b10 << 28,
        (TCR | EPD0) & !(0b11 << 24) | 0b10 << 24,
        (TCR | EPD0) & !(0b11 << 26) | 0b10 << 26,
        (TCR | EPD0) & !(1 << 36),
    ];
    held.extend([38, 47, 52, 54, 56, 58, 61].map(upper));
    for tcr in held {
        for flush in [false, true] {
            let mut rig = Rig::with(Config::default());
            rig.write(System::TCR_EL1, tcr);
            if flush {
                rig.flush();
            }
            rig.sync();
            rig.expect_unless(flush, Rule::CachedField);
        }
    }
    // A1, and the fields of the half that is not walked.
    for tcr in [upper(22), upper(37), upper(51), (TCR | EPD0) + 9] {
        let mut rig = Rig::with(Config::default());
        rig.write(System::TCR_EL1, tcr);
        rig.settle(&[]);
    }
}

#[test]
fn a_field_is_invalidated_by_another_cpu_after_the_isb() {
    let hpd1 = TCR | EPD0 | 1 << 42;
    for legal in [false, true] {
        let mut rig = Rig::new(0);
        for cpu in [0, 1] {
            rig.cpu = cpu;
            rig.register(System::TCR_EL1, hpd1);
            if cpu == 1 || legal {
                rig.isb();
            }
        }
        rig.tlbi("vmalle1is", 0);
        rig.barrier(Barrier::DSB_ISH);
        for cpu in [1, 0] {
            rig.cpu = cpu;
            rig.isb();
        }
        rig.sync();
        rig.expect_unless(legal, Rule::CachedField);
    }
}

#[test]
fn a_half_that_is_disabled_without_an_isb_is_walked_while_another_cpu_invalidates() {
    // The fields are forgotten by an invalidation only once nothing is walked by them.
    for legal in [false, true] {
        let mut rig = Rig::new(0);
        rig.register(System::TCR_EL1, TCR | EPD0 | 1 << 23);
        if legal {
            rig.isb();
        }
        rig.cpu = 1;
        rig.tlbi("vmalle1is", 0);
        rig.barrier(Barrier::DSB_ISH);
        rig.isb();
        rig.cpu = 0;
        rig.isb();
        let top_byte = 1 << 38;
        rig.write(System::TCR_EL1, TCR | EPD0 | 1 << 23 | top_byte);
        rig.fill(SPARE, 512, 0, 0);
        rig.barrier(Barrier::DSB_ISHST);
        rig.write(System::TTBR1_EL1, SPARE);
        rig.write(System::TCR_EL1, TCR | EPD0 | top_byte);
        rig.sync();
        rig.expect_unless(legal, Rule::CachedField);
    }
}

/// A program's page at 0 under ASID 1, which one CPU walks.
fn program(attributes: u64) -> Rig {
    let mut rig = Rig::with(Config::default());
    let base = 0x5000_0000;
    rig.chain(base);
    rig.store(base + 0x3000, RAM | PAGE | RW | attributes);
    rig.barrier(Barrier::DSB_ISHST);
    rig.write(System::TTBR0_EL1, base | 1 << 48);
    rig.write(System::TCR_EL1, TCR);
    rig.settle(&[]);
    rig
}

#[test]
fn a_disabled_half_is_relied_on_as_empty_after_an_invalidation() {
    let operand = |asid: u64| asid << 48;
    for (name, value, legal) in [
        ("", 0, false),
        ("aside1", operand(2), false),
        ("aside1", operand(1), true),
        ("vmalle1", 0, true),
        ("vaae1", at(0), false),
    ] {
        let mut rig = program(NG);
        rig.write(System::TCR_EL1, TCR | EPD0);
        if !name.is_empty() {
            rig.tlbi(name, value);
            rig.barrier(Barrier::DSB_NSH);
            rig.isb();
        }
        rig.expect(&[]);
        rig.event(Event::assume_visible(0, 0x1000));
        rig.expect_unless(legal, Rule::StaleTranslation);
    }
    // Another ASID is in force, so nothing of the program is found, unless it is global.
    for (attributes, legal) in [(NG, true), (0, false)] {
        let mut rig = program(attributes);
        rig.register(System::TCR_EL1, TCR | EPD0);
        rig.write(System::TTBR0_EL1, 2 << 48);
        rig.sync();
        rig.expect_unless(legal, Rule::StaleTranslation);
    }
}

#[test]
fn an_entry_removed_while_its_half_is_disabled_is_still_held() {
    for (attributes, flush) in [(NG, false), (NG, true), (0, false), (0, true)] {
        let mut rig = program(attributes);
        rig.write(System::TCR_EL1, TCR | EPD0);
        rig.store(0x5000_3000, 0);
        rig.barrier(Barrier::DSB_ISHST);
        if flush {
            rig.tlbi("vaae1is", at(0));
            rig.barrier(Barrier::DSB_ISH);
            rig.isb();
        }
        rig.sync();
        rig.expect_unless(flush, Rule::StaleTranslation);
    }
}

#[test]
fn a_half_without_a_granule_or_of_an_impossible_size_goes_unchecked_and_is_named() {
    let upper = TCR | EPD0;
    for (tcr, reason) in [
        (upper & !(0b11 << 30), "TG1 is 0b00"),
        (TCR & !(0b11 << 14) | 0b11 << 14 | 1 << 23, "TG0 is 0b11"),
        (upper & !(0x3f << 16) | 12 << 16, "T1SZ is 12"),
        (upper & !(0x3f << 16) | 49 << 16, "T1SZ is 49"),
    ] {
        let mut rig = Rig::off(Config::default());
        rig.turn_on(tcr, 0, L0);
        let unchecked = rig.model.unchecked();
        assert_eq!(unchecked.len(), 1, "{tcr:#x}");
        assert!(
            unchecked[0].to_string().contains(reason),
            "{}",
            unchecked[0]
        );
        // It is named once, however often it is turned to.
        rig.write(System::TTBR1_EL1, L1);
        assert_eq!(rig.model.unchecked().len(), 1);
    }
    // 52 bits with DS, a disabled half, and an MMU that is off.
    for (tcr, on) in [
        (upper & !(0x3f << 16) | 12 << 16 | 1 << 59, true),
        (upper & !(0b11 << 30) | 1 << 23, true),
        (upper & !(0b11 << 30), false),
    ] {
        let mut rig = Rig::off(Config::default());
        if on {
            rig.turn_on(tcr, 0, L0);
        } else {
            rig.register(System::TCR_EL1, tcr);
        }
        assert!(rig.model.unchecked().is_empty(), "{tcr:#x}");
    }
    // A size that is written before the MMU is turned off is never used.
    for off in [true, false] {
        let mut rig = Rig::off(Config::default());
        rig.turn_on(upper, 0, L0);
        rig.register(System::TCR_EL1, upper & !(0x3f << 16) | 12 << 16);
        if off {
            rig.register(System::SCTLR_EL1, 0);
        }
        rig.isb();
        assert_eq!(rig.model.unchecked().is_empty(), off);
    }
}
