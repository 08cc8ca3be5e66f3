//! TLBIs: what each form removes, and what it leaves.

use crate::rig::*;
use granule_model::{Barrier, Config, Event, Miss, Rule, System, Violation};

/// One page and the pointer to its table are cached; both entries are cleared.
fn unlinked() -> Rig {
    let mut rig = Rig::new(0);
    rig.make(L3, RAM | PAGE | RW);
    rig.store(L2, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig
}

#[track_caller]
fn free_after(mut rig: Rig, name: &str, operand: u64, barrier: Barrier, rules: &[Rule]) {
    rig.tlbi(name, operand);
    rig.barrier(barrier);
    rig.event(Event::freed(L3, 0x1000));
    rig.expect(rules);
}

#[test]
fn a_table_is_freed_after_an_invalidation_of_all_levels() {
    for name in ["vaae1is", "vaae1os", "vmalle1is", "alle1is"] {
        free_after(unlinked(), name, at(VA), Barrier::DSB_ISH, &[]);
    }
    let broken = [
        // Last level only, local, for one ASID (which leaves what leads to global pages).
        ("vaale1is", at(VA), Barrier::DSB_ISH),
        ("vaae1", at(VA), Barrier::DSB_ISH),
        ("vmalle1", 0, Barrier::DSB_ISH),
        ("vae1is", at(VA), Barrier::DSB_ISH),
        ("aside1is", 0, Barrier::DSB_ISH),
        // Another address, another regime, shifted by the wrong amount.
        ("vaae1is", at(VA + 0x20_0000), Barrier::DSB_ISH),
        ("vae2is", at(VA), Barrier::DSB_ISH),
        ("vaae1is", (VA >> 14) & 0x0fff_ffff_ffff, Barrier::DSB_ISH),
        // Not complete.
        ("vaae1is", at(VA), Barrier::DSB_ISHST),
        ("vaae1is", at(VA), Barrier::DSB_NSH),
        ("vaae1is", at(VA), Barrier::ISB),
        ("vaae1is", at(VA), Barrier::DMB_ISH),
    ];
    for (name, operand, barrier) in broken {
        free_after(unlinked(), name, operand, barrier, &[Rule::FreedInUse]);
    }
}

#[test]
fn any_address_below_an_entry_reaches_it() {
    let mut rig = unlinked();
    rig.tlbi("vaae1is", at(VA + 0x1f_f000));
    rig.barrier(Barrier::DSB_ISH);
    rig.isb();
    rig.event(Event::freed(L3, 0x1000));
    // The pointer is gone, the page may still be cached.
    rig.expect(&[]);
    rig.reads(1, VA, &[Some(RAM), None]);
    rig.settle(&[Rule::StaleTranslation]);
}

#[derive(Clone, Copy)]
enum Step {
    Barrier(Barrier),
    Tlbi(&'static str, u64),
}

/// CPU 0 removes a page, the CPUs execute these steps, and CPU 1 maps another page there. Returns the CPUs whose TLB
/// may hold both, with the reason.
fn handed_over(steps: &[(u32, Step)]) -> Vec<(u32, Option<Miss>)> {
    let mut rig = Rig::new(0);
    rig.make(L3, RAM | PAGE | RW);
    rig.store(L3, 0);
    for (cpu, step) in steps {
        rig.cpu = *cpu;
        match *step {
            Step::Barrier(barrier) => rig.barrier(barrier),
            Step::Tlbi(name, operand) => rig.tlbi(name, operand),
        }
    }
    rig.cpu = 1;
    rig.store(L3, (RAM + 0x1000) | PAGE | RW);
    let violations = rig.model.violations();
    assert!(
        violations
            .iter()
            .all(|one| one.rule == Rule::BreakBeforeMake)
    );
    let missed = |one: &Violation| one.missed.map(|(_, miss)| miss);
    violations
        .iter()
        .map(|one| (one.cpu, missed(one)))
        .collect()
}

#[test]
fn a_dsb_where_the_tlbi_was_may_count_for_what_another_cpu_removed() {
    use Step::{Barrier as B, Tlbi};
    let dsb = B(Barrier::DSB_ISH);
    let all = Tlbi("vmalle1is", 0);
    let of_another = [(0, Some(Miss::StoreOfAnotherCpu))];
    // The DSB of the CPU that stored counts.
    assert_eq!(handed_over(&[(0, dsb), (1, all), (1, dsb)]), []);
    for first in [Barrier::DSB_ISHST, Barrier::DSB_ISH] {
        let first = B(first);
        assert_eq!(handed_over(&[(1, first), (1, all), (1, dsb)]), of_another);
        // A DSB of the CPU that stored between the TLBI and its completion is too late.
        let late = [(1, first), (1, all), (0, dsb), (1, dsb)];
        assert_eq!(handed_over(&late), of_another);
    }
    // No DSB of anybody that all walkers see.
    let not_visible = [(0, Some(Miss::StoreNotVisible))];
    for steps in [
        &[(1, all), (1, dsb)][..],
        &[(1, B(Barrier::DSB_NSH)), (1, all), (1, dsb)],
        &[(1, all), (0, dsb), (1, dsb)],
    ] {
        assert_eq!(handed_over(steps), not_visible);
    }
}

#[test]
fn a_tlbi_that_may_have_removed_an_entry_is_named_before_later_ones() {
    use Step::{Barrier as B, Tlbi};
    let dsb = B(Barrier::DSB_ISH);
    let all = [(1, dsb), (1, Tlbi("vmalle1is", 0)), (1, dsb)];
    let of_another = [(0, Some(Miss::StoreOfAnotherCpu))];
    let other_asid = (1, Tlbi("aside1is", 7 << 48));
    let local = (0, Tlbi("vmalle1", 0));
    for later in [
        // It reaches no such entry; it is local; no DSB completes it.
        &[other_asid, (1, dsb)][..],
        &[(0, dsb), (1, Tlbi("vmalle1", 0)), (1, dsb)],
        &[(0, dsb), (1, Tlbi("vmalle1is", 0))],
    ] {
        assert_eq!(handed_over(&[&all[..], later].concat()), of_another);
    }
    // An entry that a TLBI does not reach is not removed by it, whatever a lock orders.
    let own = [(1, dsb), (1, Tlbi("vmalle1", 0)), (1, dsb)];
    let of_its_own = (1, Some(Miss::StoreOfAnotherCpu));
    let both = [of_its_own, (0, Some(Miss::LocalOnly))];
    assert_eq!(handed_over(&own), both);
    // And what the other CPU removes itself is gone: only the entry of CPU 1 is left.
    let both = [&own[..], &[(0, dsb), local, (0, dsb)]].concat();
    assert_eq!(handed_over(&both), [of_its_own]);
}

#[test]
fn only_what_was_removed_may_be_covered_by_a_dsb_of_another_cpu() {
    // Changed, not removed: another CPU's DSB is not required.
    let mut rig = Rig::new(0);
    rig.make(L3, RAM | PAGE | RW);
    rig.store(L3, RAM | PAGE | RW | RO);
    rig.cpu = 1;
    rig.invalidate("vmalle1is", 0);
    rig.cpu = 0;
    rig.publish();
    rig.sync();
    let miss = rig.model.violations()[0].missed.map(|(_, miss)| miss);
    assert_eq!(miss, Some(Miss::StoreNotVisible));
}

#[test]
fn a_missed_invalidation_says_why() {
    let mut rig = unlinked();
    rig.tlbi("vaale1is", at(VA));
    rig.barrier(Barrier::DSB_ISH);
    rig.event(Event::freed(L3, 0x1000));
    let tlbi = rig.model.events() - 3;
    assert_eq!(
        rig.model.violations()[0].missed,
        Some((tlbi, granule_model::Miss::LastLevelOnly))
    );
}

/// Narrows a page to read-only, then invalidates it by this TLBI; returns whether that sufficed.
fn narrowed(va: u64, name: &str, operand: u64) -> bool {
    let mut rig = Rig::new(0);
    let entry = L3 + ((va >> 12) & 511) * 8;
    rig.make(entry, RAM | PAGE | RW);
    rig.store(entry, RAM | PAGE | RW | RO);
    rig.invalidate(name, operand);
    rig.sync();
    rig.model.violation_count() == 0
}

#[test]
fn level_hints_must_be_right() {
    for (granule, level, legal) in [
        (0b01, 3, true),
        // Not a hint: without a granule, and level 0 of 64K pages.
        (0b00, 2, true),
        (0b11, 0, true),
        (0b01, 2, false),
        (0b01, 1, false),
        (0b01, 0, false),
        (0b10, 3, false),
        (0b11, 3, false),
    ] {
        let operand = at(VA) | (granule << 2 | level) << 44;
        assert_eq!(
            narrowed(VA, "vaale1is", operand),
            legal,
            "{granule} {level}"
        );
    }
}

#[test]
fn ranges_cover_what_their_operands_say() {
    // Base, SCALE 0 and NUM n: 2 * (n + 1) granules.
    let range = |va: u64, num: u64| ((va >> 12) & ((1 << 37) - 1)) | num << 39 | 0b01 << 46;
    // SCALE 1: 64 granules a NUM.
    let scaled = range(VA, 0) | 1 << 44;
    for (what, offset, operand, legal) in [
        ("its last page", 0x3000, range(VA, 1), true),
        ("one page too short", 0x4000, range(VA, 1), false),
        ("begins one too late", 0, range(VA + 0x1000, 1), false),
        ("level 3", 0, range(VA, 0) | 0b11 << 37, true),
        ("level 2", 0, range(VA, 0) | 0b10 << 37, false),
        ("another granule", 0, range(VA, 0) ^ 0b11 << 46, false),
        ("the last page, scaled", 0x3f000, scaled, true),
        ("one page too short, scaled", 0x40000, scaled, false),
    ] {
        assert_eq!(narrowed(VA + offset, "rvaale1is", operand), legal, "{what}");
    }
}

#[test]
fn a_range_with_a_misaligned_base_or_that_wraps_is_unpredictable() {
    let mut rig = Rig::new(0);
    let base = ((VA + 0x1000) >> 12) & ((1 << 37) - 1);
    rig.tlbi("rvaale1is", base | 0b10 << 37 | 0b01 << 46);
    rig.expect(&[Rule::RangeOperand]);
    let top = (u64::MAX >> 12) & ((1 << 37) - 1);
    rig.tlbi("rvaale1is", top | 0b01 << 46);
    rig.expect(&[Rule::RangeOperand]);
}

#[test]
fn asids_are_distinguished() {
    // Process pages in the lower half, ASID 5; another CPU has ASID 6.
    let run = |asid: u64, name: &str, operand: u64| {
        let mut rig = Rig::new(0);
        rig.chain(SPARE);
        rig.store(SPARE + 0x2000, RAM | BLOCK | RW | NG);
        rig.barrier(Barrier::DSB_ISHST);
        rig.write(System::TTBR0_EL1, SPARE | asid << 48);
        rig.write(System::TCR_EL1, TCR);
        rig.expect(&[]);
        rig.store(SPARE + 0x2000, RAM | BLOCK | RW | NG | RO);
        rig.invalidate(name, operand);
        rig.sync();
        rig.model.violation_count() == 0
    };
    for (name, asid, legal) in [
        ("vale1is", 5, true),
        ("vale1is", 6, false),
        ("vaale1is", 6, true),
        ("aside1is", 5, true),
        ("aside1is", 6, false),
        ("vmalle1is", 0, true),
        ("vae1is", 5, true),
    ] {
        assert_eq!(run(5, name, asid << 48), legal, "{name} {asid}");
    }
}

#[test]
fn local_and_broadcast() {
    let local = |cpus: u32, name: &str| {
        let mut rig = Rig::with(Config {
            cpus,
            ..Config::default()
        });
        rig.make(L3, RAM | PAGE | RW);
        rig.store(L3, 0);
        rig.barrier(Barrier::DSB_NSHST);
        rig.tlbi(name, at(VA));
        rig.barrier(Barrier::DSB_NSH);
        rig.isb();
        rig.make(L3, RAM + 0x1000 | PAGE | RW);
        rig.sync();
        rig.model.violation_count()
    };
    assert_eq!(local(1, "vaale1"), 0);
    assert_eq!(local(1, "vaale1is"), 0, "alone, NSH is as ISH");
    assert_ne!(
        local(2, "vaale1is"),
        0,
        "DSB NSH does not complete a broadcast one"
    );

    let mut rig = Rig::new(0);
    rig.make(L3, RAM | PAGE | RW);
    rig.store(L3, 0);
    rig.invalidate("vaale1", at(VA));
    rig.reads(0, VA, &[None]);
    rig.reads(1, VA, &[None, Some(RAM)]);
    rig.store(L3, RAM + 0x1000 | PAGE | RW);
    assert_eq!(rig.model.violations()[0].cpu, 1);
    rig.expect(&[Rule::BreakBeforeMake]);
}

#[test]
fn with_ds_the_base_of_a_range_is_in_units_of_64_kib() {
    use granule_model::Model;
    let run = |shift: u32| {
        let mut model = Model::new(Config::default());
        let event = |model: &mut Model, kind| model.event(0, kind).unwrap();
        let store = |address, value| Event::store(address, value);
        // 16K, 47 bits: three levels. With DS shareability is TCR's.
        let tcr = TCR & !(0x3f << 16 | 0b11 << 30) | 17 << 16 | 0b01 << 30 | 1 << 59 | EPD0;
        let (l1, l2, l3) = (0x4000_0000, 0x4000_4000, 0x4000_8000);
        let page = |access| RAM + 0x10_0000 | PAGE | AF | XN | access;
        let va: u64 = u64::MAX << 47 | 0x10_0000;
        let leaf = l3 + ((va >> 14) & 2047) * 8;
        event(&mut model, store(l1, l2 | TABLE));
        event(&mut model, store(l2, l3 | TABLE));
        event(&mut model, store(leaf, page(0)));
        let clean = Event::lines(System::DC_CIVAC, l1, 0xc000);
        event(&mut model, clean);
        event(&mut model, Event::Barrier(Barrier::DSB_SY));
        let mut rig = Rig { model, cpu: 0 };
        rig.turn_on(tcr, 0, l1);
        rig.reads(0, va, &[Some(RAM + 0x10_0000)]);
        rig.store(leaf, page(RO));
        rig.barrier(Barrier::DSB_ISHST);
        let operand = (va >> shift) & ((1 << 37) - 1) | 0b10 << 46;
        rig.event(Event::System(System::RVAALE1IS, operand));
        rig.barrier(Barrier::DSB_ISH);
        rig.isb();
        rig.sync();
        rig.model.violation_count()
    };
    assert_eq!(run(16), 0);
    assert_eq!(run(14), 1);
}

#[test]
fn a_reserved_hint_is_none() {
    for (lpa2, legal) in [(false, true), (true, false)] {
        let mut rig = Rig::with(Config {
            lpa2,
            ..Config::default()
        });
        rig.make(L3, RAM | PAGE | RW);
        rig.store(L3, 0);
        rig.invalidate("vaale1is", at(VA) | 0b0100 << 44);
        rig.sync();
        assert_eq!(rig.model.violation_count() == 0, legal);
    }
}

#[test]
fn a_regime_with_one_half() {
    // EL2 without E2H: no ASIDs, and the form by address removes table entries too.
    for (name, legal) in [
        ("vae2is", true),
        ("alle2is", true),
        ("vale2is", false),
        ("vaae1is", false),
        ("vmalle1is", false),
    ] {
        let mut rig = Rig::with_page(RAM | PAGE | AF | INNER);
        rig.turn_on_el2();
        rig.store(L2, 0);
        rig.invalidate(name, 0);
        rig.event(Event::freed(L3, 0x1000));
        rig.sync();
        assert_eq!(rig.model.violation_count() == 0, legal, "{name}");
    }
}

#[test]
fn invalidated_entries_linger_until_an_isb() {
    for (isb, rule) in [(true, &[][..]), (false, &[Rule::MissingIsb])] {
        for by_range in [false, true] {
            let mut rig = Rig::new(0);
            rig.make(L3, RAM | PAGE | RW);
            rig.store(L3, 0);
            rig.barrier(Barrier::DSB_ISHST);
            rig.tlbi("vaale1is", at(VA));
            rig.barrier(Barrier::DSB_ISH);
            if isb {
                rig.isb();
            }
            // The other CPU has nothing under way: its part was done by the DSB.
            rig.cpu = 1;
            rig.settle(&[]);
            rig.cpu = 0;
            if by_range {
                rig.event(Event::assume_visible(VA, 0x1000));
            } else {
                rig.sync();
            }
            rig.expect(rule);
        }
    }
}

#[test]
fn an_asid_form_leaves_table_entries_that_lead_to_global_leaves() {
    // A tree for the lower half with a global page: the pointers to its tables are not of the
    // ASID alone, and a form for one ASID need not remove them.
    for (leaf, rules) in [(NG, &[][..]), (0, &[Rule::FreedInUse])] {
        for name in ["aside1is", "vae1is"] {
            let mut rig = Rig::with_page(RAM | PAGE | RW | leaf);
            rig.turn_on(TCR | 1 << 23, L0 | 5 << 48, 0);
            rig.store(L2, 0);
            rig.barrier(Barrier::DSB_ISHST);
            rig.tlbi(name, 5 << 48);
            rig.barrier(Barrier::DSB_ISH);
            rig.isb();
            rig.expect(&[]);
            rig.event(Event::freed(L3, 0x1000));
            rig.expect(rules);
        }
    }
}

#[test]
fn a_level_hint_is_for_table_entries_too() {
    // A hint gives the level of the leaf, and tables from there on are not on the way to it.
    for (hint, rules) in [(3, &[][..]), (2, &[Rule::FreedInUse])] {
        let mut rig = unlinked();
        rig.tlbi("vaae1is", at(VA) | (0b01 << 2 | hint) << 44);
        rig.barrier(Barrier::DSB_ISH);
        rig.isb();
        rig.event(Event::freed(L3, 0x1000));
        rig.expect(rules);
    }
}
