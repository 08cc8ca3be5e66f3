//! Memory that is used again, and unmaps that kernels and hypervisors put off on purpose.

use crate::kernels::{ASID, EMPTY, OTHER, program, settle_memory};
use crate::rig::*;
use granule_model::{Barrier, Config, Event, Policies, Policy, Rule, System};

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
        rig.event(reused(RAM + 0x9400));
        rig.expect_unless(legal, Rule::StaleReuse);
    }
}

/// A change of the page of the linear map, and whether an older mapping makes up for it.
type Step = (fn(&mut Rig), bool);

#[test]
fn a_mapping_that_was_there_before_permits_the_store() {
    const LEAF: u64 = (RAM + 0x9000) | PAGE | RW;
    const OLDER: u64 = L3 + 256 * 8;
    let steps: [Step; 4] = [
        (
            |rig| {
                rig.make(OLDER, LEAF);
                rig.store(L3, 0);
            },
            true,
        ),
        (
            |rig| {
                rig.make(OLDER, LEAF | RO);
                rig.store(L3, 0);
            },
            false,
        ),
        // The table of the mapping is linked later.
        (
            |rig| {
                rig.fill(SPARE, 512, 0, 0);
                rig.store(SPARE, LEAF);
                rig.store(L3, 0);
                rig.barrier(Barrier::DSB_ISHST);
                rig.release(L2 + 8, SPARE | TABLE);
            },
            false,
        ),
        // The page moves, with the same contents.
        (
            |rig| {
                rig.make(OLDER, LEAF);
                rig.make(L3 + 8, LEAF | RO);
                rig.settle(&[]);
                rig.store(L3 + 8, (LEAF + 0x1000) | RO);
            },
            false,
        ),
    ];
    for (number, (step, legal)) in steps.into_iter().enumerate() {
        let mut rig = Rig::with(Config {
            policies: Policies::all(),
            lazy: Some((VA + 256 * 0x1000, u64::MAX)),
            equal_contents: true,
            ..Config::default()
        });
        if number < 3 {
            rig.make(L3, LEAF);
        }
        rig.settle(&[]);
        step(&mut rig);
        rig.barrier(Barrier::DSB_ISHST);
        rig.event(reused(RAM + 0x9000));
        let found = rig.rules();
        assert_eq!(
            !found.contains(&Rule::StaleReuse),
            legal,
            "{number}: {found:?}"
        );
    }
    // The addresses that `lazy` names are a kernel's: a program's are no reason.
    let mut rig = program(1, Policies::all());
    rig.model.bound_lazy_unmap(Some((0x1000, u64::MAX)));
    rig.make(OTHER + 0x3008, RAM | PAGE | RW | NG | USER);
    rig.store(OTHER + 0x3000, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.event(reused(RAM));
    rig.event(Event::User);
    assert!(rig.rules().contains(&Rule::StaleReuse), "{:?}", rig.rules());
}

/// AP: programs may access the page too.
const USER: u64 = 1 << 6;

#[test]
fn a_page_that_moved_is_reused_while_its_old_entry_may_be_cached() {
    let mut rig = Rig::with(Config {
        equal_contents: true,
        ..Config::default()
    });
    rig.make(L3, RAM | PAGE | RW | RO);
    rig.store(L3, (RAM + 0x1000) | PAGE | RW | RO);
    rig.barrier(Barrier::DSB_ISHST);
    rig.event(reused(RAM));
    rig.expect(&[Rule::StaleReuse]);
}

#[test]
fn the_pages_beside_one_that_is_reused_stay_unmapped() {
    let mut rig = Rig::new(0);
    rig.fill(L3, 3, RAM | PAGE | RW, 0x1000);
    rig.publish();
    rig.fill(L3, 3, 0, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.event(reused(RAM + 0x1000));
    rig.expect(&[Rule::StaleReuse]);
    rig.settle(&[Rule::StaleTranslation; 2]);
    // They were reported.
    rig.event(Event::reused(RAM, 0x3000));
    rig.expect(&[]);
}

#[test]
fn a_pointer_to_a_table_does_not_lead_to_the_memory_around_it() {
    let mut rig = Rig::new(0);
    rig.make(L2 + 8, RAM | BLOCK | RW);
    rig.fill(RAM + 0x1000, 512, 0, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.release(L2 + 16, (RAM + 0x1000) | TABLE);
    rig.store(L2 + 8, 0);
    rig.invalidate("vaale1is", at(VA + 0x20_0000));
    rig.store(L2 + 16, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.event(reused(RAM + 0x3000));
    rig.expect(&[]);
}

#[test]
fn a_kernel_that_translates_nothing_reaches_no_memory_of_others() {
    for (by_others, legal) in [(false, false), (true, true)] {
        let mut rig = Rig::new(0);
        rig.make(L3, RAM | PAGE | RW);
        rig.store(L3, 0);
        rig.barrier(Barrier::DSB_ISHST);
        // CPU 1 holds nothing; CPU 0 has its MMU off, or on.
        rig.cpu = 1;
        rig.invalidate("vaale1", at(VA));
        rig.cpu = 0;
        if by_others {
            rig.write(System::SCTLR_EL1, 0);
        }
        rig.model.clear_violations();
        rig.event(reused(RAM));
        rig.expect_unless(legal, Rule::StaleReuse);
    }
}

#[test]
fn a_program_reaches_memory_by_what_its_own_cpu_holds() {
    for invalidated_before in [true, false] {
        let mut rig = program(2, Policies::all());
        rig.store(OTHER + 0x3000, 0);
        rig.barrier(Barrier::DSB_ISHST);
        rig.cpu = 1;
        rig.invalidate("vale1", ASID << 48);
        if invalidated_before {
            rig.event(Event::User);
        }
        rig.cpu = 0;
        rig.event(reused(RAM));
        rig.cpu = 1;
        rig.event(Event::User);
        rig.expect(&[]);
        rig.cpu = 0;
        rig.event(Event::User);
        rig.expect(&[Rule::StaleReuse]);
    }
}

#[test]
fn only_what_leads_to_reused_memory_is_found_when_the_program_goes_on() {
    let mut rig = program(2, Policies::all());
    rig.make(OTHER + 0x3010, (RAM + 0x2000) | PAGE | RW | NG);
    // Another program has a page at the first address too.
    let second = OTHER + 0x1_0000;
    rig.chain(second);
    rig.make(second + 0x3000, (RAM + 0x4000) | PAGE | RW | NG);
    rig.cpu = 1;
    rig.write(System::TTBR0_EL1, second | (ASID + 2) << 48);
    rig.write(System::TTBR0_EL1, OTHER | ASID << 48);
    rig.cpu = 0;
    for entry in [OTHER + 0x3000, OTHER + 0x3010, second + 0x3000] {
        rig.store(entry, 0);
    }
    rig.barrier(Barrier::DSB_ISHST);
    rig.event(reused(RAM));
    rig.event(reused(RAM + 0x4000));
    rig.expect(&[]);
    rig.cpu = 1;
    rig.event(Event::User);
    rig.expect(&[Rule::StaleReuse]);
}

#[test]
fn a_program_runs_under_each_asid_of_its_table() {
    let mut rig = program(2, Policies::all());
    rig.cpu = 1;
    rig.write(System::TTBR0_EL1, OTHER | (ASID + 1) << 48);
    rig.event(Event::User);
    rig.cpu = 0;
    rig.store(OTHER + 0x3000, 0);
    rig.invalidate("vale1is", (ASID + 1) << 48);
    rig.event(reused(RAM));
    rig.expect(&[Rule::StaleReuse]);
}

#[test]
fn a_guest_that_runs_is_another_than_the_program_of_its_number() {
    let mut rig = program(2, Policies::all());
    rig.cpu = 1;
    rig.tlbi("alle1", 0);
    rig.barrier(Barrier::DSB_NSH);
    rig.register(System::VTCR_EL2, crate::stage2::VTCR);
    rig.register(System::VTTBR_EL2, EMPTY | ASID << 48);
    rig.write(System::HCR_EL2, 1);
    // It holds the program's page again.
    rig.write(System::TTBR0_EL1, OTHER | ASID << 48);
    rig.model.clear_violations();
    rig.event(Event::User);
    rig.cpu = 0;
    rig.store(OTHER + 0x3000, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.event(reused(RAM));
    rig.expect(&[]);
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
