//! Memory that is taken from a guest, and faults of guests.

use crate::rig::{PAGE, RAM, Rig, two};
use crate::stage2::{ALL, IPA, L3, OTHER, ROOT, VTCR, WRITE, at};
use granule_model::{Barrier, Config, Event, Policies, Rule, System};

#[test]
fn memory_that_was_taken_from_a_guest_is_reused_once_nothing_leads_there() {
    // The invalidation, each step with its DSB, and whether it is that of the page.
    for (flush, legal) in [
        (&[("ipas2e1is", at(IPA)), ("vmalle1is", 0)][..], true),
        (&[("vmalls12e1is", 0)], true),
        (&[("alle1is", 0)], true),
        (&[], false),
        // What combines both stages is left.
        (&[("ipas2e1is", at(IPA))], false),
        // By virtual address, of EL2, of this CPU alone.
        (&[("vae1is", at(IPA))], false),
        (&[("alle2is", 0)], false),
        (&[("alle1", 0)], false),
    ] {
        for runs in [false, true] {
            let mut guest = Rig::guest(0);
            guest.cpu = 1;
            if runs {
                guest.event(Event::User);
            }
            guest.cpu = 0;
            guest.store(L3, 0);
            guest.barrier(Barrier::DSB_ISHST);
            for (name, operand) in flush {
                guest.tlbi(name, *operand);
                guest.barrier(Barrier::DSB_ISH);
            }
            guest.isb();
            guest.event(Event::reused(RAM, 64));
            guest.expect_unless(legal || !runs, Rule::StaleReuse);
            guest.cpu = 1;
            guest.event(Event::User);
            guest.expect_unless(legal || runs, Rule::StaleReuse);
            guest.event(Event::User);
            guest.expect(&[]);
        }
    }
    // Another guest runs there, which has the same tables under a VMID that was not invalidated, or has not.
    for (vttbr, legal) in [(ROOT | 8 << 48, false), (OTHER | 8 << 48, true)] {
        let mut guest = Rig::guest(0);
        guest.cpu = 1;
        guest.write(System::VTTBR_EL2, vttbr);
        guest.event(Event::User);
        guest.cpu = 0;
        guest.store(L3, 0);
        guest.invalidate_guest("ipas2e1is", at(IPA));
        guest.event(Event::reused(RAM, 64));
        guest.expect_unless(legal, Rule::StaleReuse);
    }
}

#[test]
fn memory_of_a_guest_matters_where_that_guest_runs() {
    // What CPU 1 runs meanwhile: another guest, or a program of the host.
    for (register, other, own) in [
        (System::VTTBR_EL2, OTHER | 8 << 48, ROOT | 7 << 48),
        (System::HCR_EL2, 0, 1),
    ] {
        let mut guest = Rig::guest(0);
        guest.cpu = 1;
        guest.write(register, other);
        guest.event(Event::User);
        guest.cpu = 0;
        guest.store(L3, 0);
        guest.barrier(Barrier::DSB_ISHST);
        guest.event(Event::reused(RAM, 64));
        guest.expect(&[]);
        guest.cpu = 1;
        guest.write(register, own);
        guest.event(Event::User);
        guest.expect(&[Rule::StaleReuse]);
    }
}

#[test]
fn a_fault_of_a_guest_removes_no_entry_that_refuses_what_is_allowed_now() {
    let policies = Policies::all();
    let hint = |level: u64| at(IPA + 0x1000) | (0b01 << 2 | level) << 44;
    for (level, legal) in [(3, true), (2, false)] {
        let mut guest = Rig::guest_with(Config { policies, ..two() }, VTCR);
        guest.make(L3 + 8, RAM | PAGE | ALL & !WRITE);
        guest.store(L3 + 8, RAM | PAGE | ALL);
        guest.invalidate_guest("ipas2e1is", hint(level));
        guest.sync();
        let rules = guest.rules();
        assert_eq!(rules.is_empty(), legal, "{rules:?}");
    }
}
