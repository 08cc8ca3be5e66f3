//! Memory that is used again, and unmaps that kernels and hypervisors put off on purpose.

use crate::kernels::{ASID, OTHER, program, settle_memory};
use crate::rig::*;
use granule_model::{Barrier, Config, Event, Policies, Policy, Rule};

#[test]
fn an_unmap_of_the_kernel_may_be_put_off_until_the_addresses_are_mapped_again() {
    let lazy = Policies::NONE.with(Policy::LazyUnmap);
    for policies in [Policies::NONE, lazy] {
        let is_lazy = policies == lazy;
        let mut rig = program(1, policies);
        rig.make(L3, RAM + 0x9000 | PAGE | RW);
        rig.store(L3, 0);
        rig.barrier(Barrier::DSB_ISHST);
        rig.event(reused(RAM + 0x9000));
        rig.expect_unless(is_lazy, Rule::StaleReuse);
        rig.settle(&[]);
        rig.store(L3, RAM + 0x8000 | PAGE | RW);
        rig.expect(if is_lazy {
            &[Rule::BreakBeforeMake]
        } else {
            // It was reported.
            &[]
        });
        // A program's unmap is not put off.
        rig.store(OTHER + 0x3000, 0);
        rig.barrier(Barrier::DSB_ISHST);
        rig.event(Event::User);
        rig.expect(&[Rule::StaleTranslation]);
    }
}

#[test]
fn memory_out_of_the_linear_map_is_not_reused_by_a_mapping_that_was_there_before() {
    // The entry that is unmapped; another one that leads to the memory, and whether it does so before.
    for (policies, unmapped, (other, before), legal) in [
        (Policies::all(), 0, (256, true), true),
        (Policies::NONE, 0, (256, true), false),
        // Another owner's: it was mapped when the memory was free.
        (Policies::all(), 0, (256, false), false),
        // Both are in the linear map.
        (Policies::all(), 0, (1, true), false),
        // Memory of `vmalloc` goes back to its owner, who stores to it by the linear map. That is the other case.
        (Policies::NONE, 256, (0, true), false),
    ] {
        let mut rig = Rig::with(Config {
            policies,
            lazy: Some((VA + 256 * 0x1000, u64::MAX)),
            ..Config::default()
        });
        let leaf = (RAM + 0x9000) | PAGE | RW;
        rig.make(L3 + unmapped * 8, leaf);
        if before {
            rig.make(L3 + other * 8, leaf);
        }
        rig.settle(&[]);
        rig.store(L3 + unmapped * 8, 0);
        if !before {
            rig.make(L3 + other * 8, leaf);
        }
        rig.barrier(Barrier::DSB_ISHST);
        rig.event(reused(RAM + 0x9000));
        rig.expect_unless(legal, Rule::StaleReuse);
    }
}

#[test]
fn a_hypervisor_may_put_off_an_unmap_as_a_kernel_does() {
    let lazy = Policies::NONE.with(Policy::LazyUnmap);
    // The fate of the second mapping of a page, and whether its unmap may be put off.
    for (policies, next, rules) in [
        (lazy, 0, &[][..]),
        (Policies::NONE, 0, &[Rule::StaleReuse]),
        // Another page at the same address meets what was cached.
        (
            lazy,
            RAM + 0x1000 | PAGE | AF | INNER,
            &[Rule::BreakBeforeMake],
        ),
    ] {
        let mut rig = Rig::off(Config {
            policies,
            ..Config::default()
        });
        rig.chain(L0);
        for index in [0, 1] {
            rig.store(L3 + index * 8, RAM | PAGE | AF | INNER);
        }
        settle_memory(&mut rig);
        rig.turn_on_el2();
        rig.store(L3 + 8, 0);
        rig.barrier(Barrier::DSB_ISHST);
        // Its owner stores to it through the first.
        rig.event(reused(RAM));
        if next != 0 {
            rig.expect(&[]);
            rig.store(L3 + 8, next);
        }
        rig.expect(rules);
    }
}

pub(crate) fn reused(start: u64) -> Event {
    Event::Reused { start, bytes: 64 }
}

#[test]
fn nothing_leads_to_memory_that_is_used_again_once_the_program_goes_on() {
    for (taken, tlbi, dsb, rules) in [
        (true, "", false, &[Rule::StaleReuse][..]),
        (true, "vale1is", false, &[Rule::StaleReuse]),
        (true, "vale1is", true, &[]),
        (true, "aside1is", true, &[]),
        (true, "vale1", true, &[Rule::StaleReuse]),
        // The page was unmapped, and its memory is nobody's yet.
        (false, "", false, &[Rule::StaleTranslation]),
        (false, "vale1is", false, &[Rule::StaleTranslation]),
        (false, "vale1is", true, &[]),
    ] {
        let mut rig = program(2, Policies::all());
        rig.store(OTHER + 0x3000, 0);
        rig.barrier(Barrier::DSB_ISHST);
        if taken {
            // By another CPU, some bytes into the page.
            rig.cpu = 1;
            rig.event(reused(RAM + 0x400));
            rig.cpu = 0;
            rig.expect(&[]);
        }
        if !tlbi.is_empty() {
            rig.tlbi(tlbi, ASID << 48);
        }
        if dsb {
            rig.barrier(Barrier::DSB_ISH);
        }
        // The CPU that unmaps is not done while another one goes on.
        if tlbi != "vale1" && !taken {
            rig.cpu = 1;
            rig.event(Event::User);
            rig.expect(&[]);
        }
        rig.cpu = u32::from(tlbi == "vale1");
        rig.event(Event::User);
        rig.expect(rules);
        // Once.
        rig.event(Event::User);
        rig.expect(&[]);
    }
}

#[test]
fn nothing_leads_to_memory_that_is_used_again_while_the_program_runs_elsewhere() {
    for (leaves, invalidates, rules) in [
        (false, false, &[Rule::StaleReuse][..]),
        (false, true, &[]),
        // CPU 1 is in its kernel, which may have ended the program.
        (true, false, &[]),
    ] {
        let mut rig = program(2, Policies::all());
        rig.cpu = 1;
        rig.event(Event::User);
        rig.cpu = 0;
        rig.store(OTHER + 0x3000, 0);
        rig.barrier(Barrier::DSB_ISHST);
        if invalidates {
            rig.tlbi("vale1is", ASID << 48);
            rig.barrier(Barrier::DSB_ISH);
        }
        if leaves {
            rig.cpu = 1;
            rig.barrier(Barrier::ISB);
            rig.cpu = 0;
        }
        rig.event(reused(RAM + 0x400));
        rig.expect(rules);
        rig.cpu = 1;
        rig.event(Event::User);
        rig.expect(if leaves { &[Rule::StaleReuse] } else { &[] });
    }
}

#[test]
fn memory_that_is_still_mapped_has_no_other_use() {
    // A block becomes a table of the same pages, which a CPU of level 2 may do in place.
    let mut rig = Rig::new(2);
    rig.make(L2 + 8, RAM | BLOCK | RW);
    rig.fill(SPARE, 512, RAM | PAGE | RW, 0x1000);
    rig.release(L2 + 8, SPARE | TABLE);
    rig.publish();
    rig.event(reused(RAM + 0x3000));
    rig.expect(&[]);
    // The page that is taken out of it is.
    rig.store(SPARE + 8, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.event(reused(RAM + 0x2000));
    rig.expect(&[]);
    rig.event(reused(RAM + 0x1000));
    assert_eq!(rig.model.violations()[0].rule, Rule::StaleReuse);
}
