//! The barrier after which each change is visible, in effect and complete.

use crate::rig::*;
use granule_model::{
    Access, Barrier, BitChange, Config, Event, Policies, Rule, System, Visibility,
};

#[test]
fn a_new_entry_may_fault_until_dsb_and_isb() {
    let mut rig = Rig::new(0);
    rig.store(L3, RAM | PAGE | RW);
    rig.reads(0, VA, &[None, Some(RAM)]);
    rig.isb();
    rig.reads(0, VA, &[None, Some(RAM)]);
    rig.barrier(Barrier::DSB_ISHST);
    rig.reads(0, VA, &[None, Some(RAM)]);
    rig.isb();
    rig.reads(0, VA, &[Some(RAM)]);
    // The other CPU has speculated too.
    rig.reads(1, VA, &[None, Some(RAM)]);
    rig.cpu = 1;
    rig.isb();
    rig.reads(1, VA, &[Some(RAM)]);
    // A later DSB of the first does not take that back.
    rig.cpu = 0;
    rig.store(L3 + 8, RAM + 0x1000 | PAGE | RW);
    rig.barrier(Barrier::DSB_ISHST);
    rig.reads(1, VA, &[Some(RAM)]);
    rig.reads(1, VA + 0x1000, &[None, Some(RAM + 0x1000)]);
}

#[test]
fn an_access_that_relies_on_a_new_entry_is_reported() {
    let mut rig = Rig::new(0);
    rig.store(L3, RAM | PAGE | RW);
    rig.barrier(Barrier::DSB_ISHST);
    rig.model.access(0, VA, Access::READ);
    rig.expect(&[Rule::MissingIsb]);
    rig.isb();
    rig.model.access(0, VA, Access::READ);
    rig.expect(&[]);
}

#[test]
fn an_operation_ends_with_dsb_and_isb() {
    for (barriers, rules) in [
        (&[Barrier::DSB_ISHST, Barrier::ISB][..], &[][..]),
        (&[Barrier::DSB_ISHST], &[Rule::MissingIsb]),
        (&[Barrier::ISB], &[Rule::StoreNotVisible, Rule::MissingIsb]),
        (&[Barrier::ISB, Barrier::DSB_ISHST], &[Rule::MissingIsb]),
    ] {
        let mut rig = Rig::new(0);
        rig.store(L3, RAM | PAGE | RW);
        for &barrier in barriers {
            rig.barrier(barrier);
        }
        rig.settle(rules);
    }
}

#[test]
fn a_range_that_is_relied_on() {
    let assumed = |start| Event::assume_visible(start, 0x1000);
    let mut rig = Rig::new(0);
    rig.store(L3, RAM | PAGE | RW);
    rig.event(assumed(VA + 0x1000));
    rig.expect(&[]);
    rig.event(assumed(VA));
    assert!(
        rig.model
            .violations()
            .iter()
            .all(|one| one.rule == Rule::StoreNotVisible)
    );
    assert!(rig.model.violation_count() > 0);
    rig.model.clear_violations();
    rig.publish();
    rig.event(assumed(VA));
    rig.expect(&[]);
    rig.make(L3, 0);
    rig.event(assumed(VA + 0x1000));
    rig.expect(&[]);
    rig.event(assumed(VA));
    rig.expect(&[Rule::StaleTranslation]);
}

#[test]
fn tables_are_filled_before_they_are_linked() {
    type Step = fn(&mut Rig);
    let link: Step = |rig| rig.store(L2 + 8, SPARE | TABLE);
    let release: Step = |rig| rig.release(L2 + 8, SPARE | TABLE);
    let fill: Step = |rig| rig.fill(SPARE, 512, RAM | PAGE | RW, 0x1000);
    let dsb: Step = |rig| rig.barrier(Barrier::DSB_ISHST);
    let dmb: Step = |rig| rig.barrier(Barrier::DMB_ISHST);
    let isb: Step = |rig| rig.isb();
    let legal: [&[Step]; 3] = [&[fill, dsb, link], &[fill, release], &[fill, dmb, link]];
    let broken: [&[Step]; 3] = [&[fill, link], &[dsb, fill, link], &[fill, isb, link]];
    for steps in legal {
        let mut rig = Rig::new(0);
        steps.iter().for_each(|step| step(&mut rig));
        rig.expect(&[]);
    }
    for steps in broken {
        let mut rig = Rig::new(0);
        steps.iter().for_each(|step| step(&mut rig));
        rig.expect(&[Rule::UnorderedLink]);
    }
    // An observer that learnt late of the table records that walkers saw it before; what is stored
    // to it since is like any other store.
    for (later, rules) in [(None, &[][..]), (Some(fill), &[Rule::UnorderedLink])] {
        let mut rig = Rig::new(0);
        rig.event(Event::Store {
            address: SPARE,
            count: 512,
            descriptor: RAM | PAGE | RW,
            step: 0x1000,
            visibility: Visibility::Earlier,
        });
        if let Some(later) = later {
            later(&mut rig);
        }
        link(&mut rig);
        rig.expect(rules);
    }
    // Another CPU's barrier does not order this one's stores.
    let mut rig = Rig::new(0);
    fill(&mut rig);
    rig.cpu = 1;
    rig.barrier(Barrier::DSB_ISHST);
    rig.cpu = 0;
    link(&mut rig);
    rig.expect(&[Rule::UnorderedLink]);
}

#[test]
fn an_invalidated_translation_lingers_in_this_cpu_until_an_isb() {
    let mut rig = Rig::new(0);
    rig.make(L3, RAM | PAGE | RW);
    rig.store(L3, 0);
    rig.reads(0, VA, &[None, Some(RAM)]);
    rig.barrier(Barrier::DSB_ISHST);
    rig.tlbi("vaale1is", at(VA));
    rig.reads(1, VA, &[None, Some(RAM)]);
    rig.barrier(Barrier::DSB_ISH);
    rig.reads(1, VA, &[None]);
    rig.reads(0, VA, &[None, Some(RAM)]);
    rig.isb();
    rig.reads(0, VA, &[None]);
}

#[test]
fn an_access_to_what_may_be_stale_is_reported() {
    let mut rig = Rig::new(0);
    rig.make(L3, RAM | PAGE | RW);
    rig.make(L3, RAM | PAGE | RW | RO);
    rig.model.access(1, VA, Access::WRITE);
    rig.expect(&[Rule::StaleTranslation]);
    rig.invalidate("vaale1is", at(VA));
    rig.cpu = 1;
    rig.isb();
    rig.model.access(1, VA, Access::WRITE);
    rig.expect(&[]);
}

#[test]
fn a_dsb_of_the_cpu_itself_shows_its_stores_to_itself_only() {
    for (barrier, rules) in [
        (Barrier::DSB_ISHST, &[][..]),
        (Barrier::DSB_NSH, &[Rule::StoreNotVisible]),
        (Barrier::DSB_NSHST, &[Rule::StoreNotVisible]),
    ] {
        let mut rig = Rig::new(0);
        rig.store(L3, RAM | PAGE | RW);
        rig.barrier(barrier);
        rig.isb();
        rig.reads(0, VA, &[Some(RAM)]);
        rig.settle(rules);

        // Alone, there is nobody else.
        let mut rig = Rig::with(Config::default());
        rig.store(L3, RAM | PAGE | RW);
        rig.barrier(barrier);
        rig.isb();
        rig.settle(&[]);
    }
}

#[test]
fn a_walker_may_miss_that_an_access_flag_was_cleared() {
    let page = RAM | PAGE | RW;
    let clear = BitChange {
        of: 1,
        clear: AF,
        set: 0,
    };
    let update = |address, count, change| Event::Update {
        address,
        count,
        change,
        visibility: Visibility::Live,
    };
    let set_read_only = BitChange {
        of: 1,
        clear: 0,
        set: RO,
    };
    let read_only = BitChange { set: RO, ..clear };
    let invalid = BitChange {
        clear: AF | 1,
        ..clear
    };
    let both = update(SPARE, 2, clear);
    let unordered = &[Rule::UnorderedLink][..];
    for (steps, strict, rules) in [
        (&[both][..], false, &[][..]),
        (&[both], true, unordered),
        // More than the access flag changes.
        (&[update(SPARE, 1, read_only)], false, unordered),
        (&[update(SPARE, 1, invalid)], false, unordered),
        // An earlier store stays unordered.
        (&[update(SPARE + 8, 1, read_only), both], false, unordered),
        (&[update(SPARE, 1, set_read_only), both], false, unordered),
    ] {
        for by_register in [false, true] {
            let mut rig = Rig::with(Config { strict, ..two() });
            rig.fill(SPARE, 512, 0, 0);
            let first = if by_register { L1 | TABLE | AF } else { page };
            rig.fill(SPARE, 2, first, 0x1000);
            rig.barrier(Barrier::DSB_SY);
            for step in steps {
                rig.event(*step);
            }
            if by_register {
                rig.write(System::TTBR0_EL1, SPARE);
                rig.write(System::TCR_EL1, TCR);
            } else {
                rig.store(L2 + 8, SPARE | TABLE);
            }
            let found = rig.model.violations().iter().map(|one| one.rule);
            let found: Vec<Rule> = found.filter(|it| *it == Rule::UnorderedLink).collect();
            assert_eq!(found, rules, "{steps:?}, by register: {by_register}");
        }
    }
}

#[test]
fn tables_that_one_cpu_has_seen_are_not_walked_by_another() {
    for (barrier, rules) in [
        (Barrier::DSB_SY, &[][..]),
        (Barrier::DSB_NSH, &[Rule::UnorderedLink]),
    ] {
        let mut rig = Rig::new(0);
        rig.fill(SPARE, 512, 0, 0);
        rig.store(SPARE, L1 | TABLE);
        rig.barrier(barrier);
        for cpu in 0..2 {
            rig.cpu = cpu;
            rig.write(System::TTBR0_EL1, SPARE);
            rig.write(System::TCR_EL1, TCR);
            rig.expect(if cpu == 0 { &[] } else { rules });
        }
    }
}

#[test]
fn code_runs_by_an_entry_that_its_cpu_made_valid_once_a_dsb_and_an_isb_came() {
    let page = RAM | PAGE | AF | INNER;
    let (dsb, isb) = (Barrier::DSB_ISHST, Barrier::ISB);
    let visible = Rule::StoreNotVisible;
    for (entry, barriers, by, rules) in [
        (page, &[dsb, isb][..], 0, &[][..]),
        (page, &[dsb], 0, &[Rule::MissingIsb]),
        (page, &[isb], 0, &[visible]),
        (page, &[isb, dsb], 0, &[Rule::MissingIsb]),
        (page, &[], 0, &[visible]),
        (page, &[Barrier::DSB_NSH, isb], 0, &[]),
        // Another CPU: whether it synchronised is not known.
        (page, &[dsb], 1, &[]),
        // A page of a program, which the kernel cannot execute: the address is one of another level.
        (page | XN, &[], 0, &[]),
    ] {
        // The handler of a fault on a fetch finds nothing to do, and goes no further.
        for policies in [Policies::NONE, Policies::all()] {
            let mut rig = Rig::with(Config { policies, ..two() });
            rig.store(L3 + 8, entry);
            barriers.iter().for_each(|barrier| rig.barrier(*barrier));
            rig.cpu = by;
            // Not there: the page beside it, and the same place in the half that is not walked.
            for other in [VA, 0x1000, (VA + 0x1000) ^ 1 << 54] {
                rig.event(Event::At(other));
            }
            rig.expect(&[]);
            for _ in 0..2 {
                rig.event(Event::At(VA + 0x1ffc));
            }
            rig.expect(rules);
        }
    }
    // Another entry than the one that was just made valid: of this CPU, before its barriers, or of another CPU.
    for by in [0, 1] {
        let mut rig = Rig::new(0);
        rig.cpu = by;
        rig.make(L3 + 8, page);
        rig.cpu = 0;
        rig.store(L3, page);
        rig.event(Event::At(VA + 0x1000));
        rig.expect(&[]);
    }
    // A table above it, which an older entry stands in.
    let mut rig = Rig::new(0);
    rig.fill(SPARE, 512, page, 0x1000);
    rig.barrier(Barrier::DSB_SY);
    rig.store(L2 + 8, SPARE | TABLE);
    rig.barrier(Barrier::DSB_SY);
    rig.event(Event::At(VA + 0x20_0000));
    rig.expect(&[Rule::MissingIsb]);
}
