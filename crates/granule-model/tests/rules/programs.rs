//! Address spaces of programs: what hardware makes of their entries, and what is relied on by ASID.

use crate::rig::*;
use granule_model::{Barrier, Config, Event, Policies, Rule, System};

/// The tables of a program: levels 0 to 3.
const TREE: u64 = 0x5000_0000;
const PAGES: u64 = TREE + 0x3000;
const READ_ONLY_CLEAN: u64 = RO | 1 << 51;
const HA: u64 = 1 << 39;
const HD: u64 = 1 << 40;
const ASID: u64 = 7;

/// One or two CPUs in a program's tree, with these bits in TCR, and a page at 0.
fn program(cpus: u32, tcr: u64, page: u64) -> Rig {
    let one = Config::default();
    program_with(Config { cpus, ..one }, tcr, page)
}

fn program_with(config: Config, tcr: u64, page: u64) -> Rig {
    let cpus = config.cpus;
    let mut rig = Rig::with(config);
    rig.chain(TREE);
    rig.store(PAGES, page);
    rig.barrier(Barrier::DSB_ISHST);
    for cpu in 0..cpus {
        rig.cpu = cpu;
        rig.write(System::TTBR0_EL1, TREE | ASID << 48);
        rig.write(System::TCR_EL1, TCR | tcr);
        rig.flush();
    }
    rig.cpu = 0;
    rig.settle(&[]);
    rig
}

fn found(descriptor: u64) -> Event {
    Event::found(PAGES, descriptor)
}

fn relied(asid: u64) -> Event {
    Event::AssumeVisible {
        start: 0,
        bytes: 0x1000,
        asid: Some(asid as u16),
    }
}

#[test]
fn an_entry_is_found_as_it_was_stored_or_as_hardware_made_it() {
    let page = RAM | PAGE | INNER | XN | NG;
    let clean = page | READ_ONLY_CLEAN;
    for (tcr, stored, loaded, legal) in [
        (0, page | AF, page | AF, true),
        // The access flag.
        (HA, page, page | AF, true),
        (0, page, page | AF, false),
        (HA, page | AF, page, false),
        // The dirty state, with DBM alone.
        (HA | HD, clean | AF, (clean | AF) & !RO, true),
        (HA | HD, clean, (clean | AF) & !RO, true),
        (HA, clean | AF, (clean | AF) & !RO, false),
        (HA | HD, page | AF | RO, page | AF, false),
        (HA | HD, page | AF, page | AF | RO, false),
        // Changes that hardware never makes.
        (HA | HD, clean, (clean | AF) + 0x1000, false),
        (HA | HD, 0, page | AF, false),
        (HA | HD, page & !1, (page & !1) | AF, false),
    ] {
        let mut rig = program(1, tcr, stored);
        rig.event(found(loaded));
        let rules = [Rule::NotRecorded];
        rig.expect(if legal { &[] } else { &rules });
        // It counts as stored from here on.
        rig.event(found(loaded));
        rig.expect(&[]);
        assert_eq!(rig.model.descriptor(PAGES), loaded);
    }
}

#[test]
fn a_page_is_gone_from_an_address_space_after_a_tlbi_of_its_asid() {
    for (name, operand, legal) in [
        ("", 0, false),
        ("aside1is", (ASID + 1) << 48, false),
        ("aside1is", ASID << 48, true),
        ("vale1is", ASID << 48, true),
        ("vale1is", (ASID + 1) << 48, false),
        ("vale1", ASID << 48, false),
    ] {
        let mut rig = program(2, 0, RAM | PAGE | RW | NG);
        rig.store(PAGES, 0);
        rig.barrier(Barrier::DSB_ISHST);
        if !name.is_empty() {
            rig.tlbi(name, operand);
            rig.barrier(Barrier::DSB_ISH);
        }
        // Nobody else relies on it, and the program goes on after an exception return.
        rig.event(relied(ASID + 1));
        rig.expect(&[]);
        rig.event(relied(ASID));
        rig.expect_unless(legal, Rule::StaleTranslation);
    }
}

#[test]
fn an_address_space_that_no_cpu_is_in_is_relied_on_too() {
    for (empty, flush) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = program(1, 0, RAM | PAGE | RW | NG);
        rig.fill(SPARE, 512, 0, 0);
        rig.barrier(Barrier::DSB_ISHST);
        rig.write(System::TTBR0_EL1, SPARE);
        rig.store(if empty { TREE } else { PAGES }, 0);
        rig.barrier(Barrier::DSB_ISHST);
        if flush {
            rig.tlbi("vae1is", ASID << 48);
            rig.barrier(Barrier::DSB_ISH);
        }
        rig.event(relied(ASID));
        let rules = rig.rules();
        assert_eq!(rules.is_empty(), flush, "{empty} {flush}: {rules:?}");
        assert!(rules.iter().all(|rule| *rule == Rule::StaleTranslation));
    }
}

#[test]
fn a_new_page_of_a_program_takes_a_dsb_and_no_isb() {
    for dsb in [false, true] {
        let mut rig = program(2, 0, 0);
        rig.store(PAGES, RAM | PAGE | RW | NG);
        if dsb {
            rig.barrier(Barrier::DSB_ISHST);
        }
        rig.event(relied(ASID));
        let rules = [Rule::StoreNotVisible, Rule::StoreNotVisible];
        rig.expect(if dsb { &[] } else { &rules });
    }
}

#[test]
fn the_empty_tree_by_which_a_cpu_left_a_program_is_not_of_the_program() {
    for (unmaps, asids) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let config = Config {
            cpus: 2,
            policies: Policies::all(),
            ..Config::default()
        };
        let page = RAM | PAGE | NG | AF;
        let mut rig = program_with(config, 0, page | RO);
        rig.fill(SPARE, 512, 0, 0);
        rig.barrier(Barrier::DSB_ISHST);
        // The other CPU leaves, first for an empty tree under the same ASID, and may not have come further.
        rig.cpu = 1;
        for asid in ASID..ASID + asids {
            rig.write(System::TTBR0_EL1, SPARE | asid << 48);
        }
        rig.cpu = 0;
        // A page that may be written now is invalidated on this CPU alone: the other one takes a fault. A
        // page that is gone is gone everywhere.
        rig.store(PAGES, if unmaps { 0 } else { page });
        rig.barrier(Barrier::DSB_ISHST);
        rig.tlbi("vale1", ASID << 48);
        rig.barrier(Barrier::DSB_NSH);
        rig.isb();
        rig.event(Event::User);
        rig.expect(if unmaps {
            &[Rule::StaleTranslation]
        } else {
            &[]
        });
    }
}
