//! Deliberate practices of other kernels, each with its nearest fault: page tables in isolation, an
//! empty tree to park on, tables smaller than a page, faults that are taken, unmaps that are put
//! off, and memory that is used again.

use crate::rig::*;
use granule_model::{Barrier, Config, Event, Policies, Policy, Rule, System};

const A1: u64 = 1 << 22;
/// Another tree's tables, and an empty one.
pub(crate) const OTHER: u64 = 0x5000_0000;
const EMPTY: u64 = 0x5000_8000;
pub(crate) const ASID: u64 = 7;

fn settle_memory(rig: &mut Rig) {
    for start in [L0, OTHER] {
        rig.event(Event::lines(System::DC_CIVAC, start, 0x10000));
    }
    rig.barrier(Barrier::DSB_SY);
}

/// A kernel's tree, and a tree of the page alone by which programs come and go. Their ASIDs are 2 and
/// `user`. The page is `page` in the second tree.
fn isolated(user: u64, page: u64) -> (Rig, [u64; 2]) {
    let mut rig = Rig::off(Config::default());
    rig.chain(L0);
    rig.chain(OTHER);
    rig.fill(L3, 511, RAM | PAGE | RW | NG, 0x1000);
    rig.store(L3 + 511 * 8, RAM + 0x1f_f000 | PAGE | RW);
    rig.store(OTHER + 0x3000 + 511 * 8, page | PAGE | RW);
    settle_memory(&mut rig);
    rig.turn_on(TCR | A1 | EPD0, 0, L0 | 2 << 48);
    rig.expect(&[]);
    (rig, [OTHER | user << 48, L0 | 2 << 48])
}

fn go(rig: &mut Rig, ttbr1: u64) {
    rig.write(System::TTBR1_EL1, ttbr1);
}

#[test]
fn trees_of_two_asids_share_what_is_global_at_no_cost() {
    let (mut rig, ways) = isolated(3, RAM + 0x1f_f000);
    ways.iter().for_each(|way| go(&mut rig, *way));
    let before = rig.model.visits();
    for _ in 0..1000 {
        ways.iter().for_each(|way| go(&mut rig, *way));
    }
    // Less than the entries of one table for each switch.
    assert!(rig.model.visits() - before < 2000 * 512);
    // The change in between counts.
    for index in 0..100 {
        rig.store(L3 + index * 8, 0);
        rig.invalidate("vaale1is", at(VA + index * 0x1000));
        ways.iter().for_each(|way| go(&mut rig, *way));
    }
    assert!(rig.model.visits() - before < 3000 * 512);
    rig.settle(&[]);
}

#[test]
fn trees_of_two_asids_meet_in_their_global_pages() {
    let (mut rig, [user, _]) = isolated(3, RAM);
    go(&mut rig, user);
    assert_eq!(rig.model.violations()[0].rule, Rule::BreakBeforeMake);
    // Or everywhere, under one ASID.
    let (mut rig, [user, _]) = isolated(2, RAM + 0x1f_f000);
    go(&mut rig, user);
    assert_eq!(rig.model.violations()[0].rule, Rule::BreakBeforeMake);
    // A page that becomes global in one of them after they were found to be apart.
    let (mut rig, ways) = isolated(3, RAM + 0x1f_f000);
    ways.iter().for_each(|way| go(&mut rig, *way));
    rig.make(OTHER + 0x3000, RAM + 0x5000 | PAGE | RW);
    rig.expect(&[]);
    go(&mut rig, ways[0]);
    assert_eq!(rig.model.violations()[0].rule, Rule::BreakBeforeMake);
}

/// A program's tree with a page at 0, and its CPUs in it. The upper half has the tree of the rig.
pub(crate) fn program(cpus: u32, policies: Policies) -> Rig {
    let mut rig = Rig::with(Config {
        cpus,
        policies,
        lazy: Some((VA, u64::MAX)),
        ..Config::default()
    });
    rig.fill(EMPTY, 512, 0, 0);
    rig.chain(OTHER);
    rig.store(OTHER + 0x3000, RAM | PAGE | RW | NG);
    rig.barrier(Barrier::DSB_ISHST);
    for cpu in 0..cpus {
        rig.cpu = cpu;
        rig.write(System::TTBR0_EL1, OTHER | ASID << 48);
        rig.write(System::TCR_EL1, TCR);
        rig.flush();
    }
    rig.cpu = 0;
    rig.settle(&[]);
    rig
}

fn enter(rig: &mut Rig, base: u64, asid: u64) {
    rig.write(System::TTBR0_EL1, base | asid << 48);
}

#[test]
fn a_tree_is_its_asids_while_the_cpu_is_parked_on_an_empty_one() {
    let mut rig = program(1, Policies::NONE);
    enter(&mut rig, EMPTY, ASID);
    // The tables are still in use: entries may be made, and the CPU comes back to them.
    rig.make(OTHER + 0x3008, RAM + 0x1000 | PAGE | RW | NG);
    enter(&mut rig, OTHER, ASID);
    rig.settle(&[]);
    // Or they are given back, once the ASID was invalidated, and not before.
    for invalidated in [false, true] {
        let mut rig = program(1, Policies::NONE);
        enter(&mut rig, EMPTY, ASID);
        if invalidated {
            rig.invalidate("aside1is", ASID << 48);
        }
        rig.event(Event::freed(OTHER, 0x4000));
        rig.expect_unless(invalidated, Rule::FreedInUse);
    }
    // Another tree under the same ASID meets what is held of the first.
    let mut rig = program(1, Policies::NONE);
    rig.chain(L0 + 0x8000);
    rig.make(L0 + 0xb000, RAM + 0x2000 | PAGE | RW | NG);
    enter(&mut rig, EMPTY, ASID);
    enter(&mut rig, L0 + 0x8000, ASID);
    assert_eq!(rig.model.violations()[0].rule, Rule::BreakBeforeMake);
    // And so does the empty one when it is filled.
    let mut rig = program(1, Policies::NONE);
    rig.chain(L0 + 0x8000);
    rig.make(L0 + 0xb000, RAM + 0x2000 | PAGE | RW | NG);
    enter(&mut rig, EMPTY, ASID);
    rig.expect(&[]);
    rig.release(EMPTY, L0 + 0x9000 | TABLE);
    assert_eq!(rig.model.violations()[0].rule, Rule::BreakBeforeMake);
}

/// 4K pages and 40-bit addresses in the lower half: top tables of two entries.
const SMALL: u64 = (TCR & !0x3f) | 24;

/// The stores of CPUs to the small tables `one`, `two` and `three` of one page before CPU 1 enters
/// one of them.
type Steps = fn(&mut Rig, [u64; 3]);

#[test]
fn stores_to_a_top_table_do_not_count_for_those_beside_it() {
    const PAGE_OF_TABLES: u64 = 0x6000_0000;
    let tables = [0x40, 0x80, 0xc0].map(|at| PAGE_OF_TABLES + at);
    fn make(rig: &mut Rig, cpu: u32, start: u64) {
        rig.cpu = cpu;
        // All of the room that a table of two entries has to itself, so that nothing lies between.
        rig.event(Event::Obtained { start, bytes: 64 });
        rig.fill(start, 8, 0, 0);
    }
    let cases: [(Steps, usize, bool); 5] = [
        // One is complete when CPU 0 begins the next one.
        (
            |rig, [one, two, _]| {
                make(rig, 0, one);
                rig.barrier(Barrier::DSB_ISHST);
                make(rig, 0, two);
            },
            0,
            true,
        ),
        (
            |rig, [one, two, _]| {
                make(rig, 0, one);
                rig.barrier(Barrier::DSB_ISHST);
                make(rig, 0, two);
            },
            1,
            false,
        ),
        // CPU 0 makes those on both sides.
        (
            |rig, [one, two, three]| {
                make(rig, 1, two);
                make(rig, 0, one);
                make(rig, 0, three);
            },
            1,
            true,
        ),
        // CPU 0 alone sees its table, walks it and completes it.
        (
            |rig, [one, _, three]| {
                make(rig, 0, one);
                rig.barrier(Barrier::DSB_NSH);
                enter(rig, one, ASID + 1);
                rig.barrier(Barrier::DSB_ISHST);
                make(rig, 0, three);
            },
            0,
            true,
        ),
        (
            |rig, [one, ..]| {
                make(rig, 0, one);
                rig.barrier(Barrier::DSB_NSH);
                enter(rig, one, ASID + 1);
            },
            0,
            false,
        ),
    ];
    for (number, (steps, entered, legal)) in cases.into_iter().enumerate() {
        let mut rig = program(2, Policies::NONE);
        for cpu in [0, 1] {
            rig.cpu = cpu;
            rig.write(System::TCR_EL1, SMALL);
        }
        steps(&mut rig, tables);
        rig.cpu = 1;
        rig.barrier(Barrier::DSB_ISHST);
        enter(&mut rig, tables[entered], ASID + 1);
        let found = rig.model.violations();
        let reported = found.iter().any(|one| one.rule == Rule::UnorderedLink);
        assert_eq!(!reported, legal, "case {number}: {found:?}");
    }
}

#[test]
fn top_tables_share_a_page_with_others() {
    const PAGE_OF_TABLES: u64 = 0x6000_0000;
    let obtained = |start| Event::Obtained { start, bytes: 16 };
    let (one, two) = (PAGE_OF_TABLES + 0x40, PAGE_OF_TABLES + 0x80);
    let mut rig = Rig::with(Config {
        cpus: 1,
        ..Config::default()
    });
    for table in [one, two] {
        rig.event(obtained(table));
        rig.fill(table, 2, 0, 0);
    }
    rig.barrier(Barrier::DSB_ISHST);
    rig.write(System::TTBR0_EL1, one | 1 << 48);
    rig.write(System::TCR_EL1, SMALL);
    rig.invalidate("vmalle1is", 0);
    rig.expect(&[]);
    // The neighbour is given back, used for something else, and is a table again.
    rig.event(Event::freed(two, 16));
    rig.event(obtained(two));
    rig.fill(two, 2, 0, 0);
    rig.barrier(Barrier::DSB_ISHST);
    enter(&mut rig, two, 2);
    enter(&mut rig, one, 1);
    rig.expect(&[]);
    // Both may be walked, and are not given back.
    rig.event(Event::freed(one, 16));
    rig.expect(&[Rule::FreedInUse]);
    // A table that was given back is not walked, whatever is beside it.
    rig.invalidate("aside1is", 2 << 48);
    rig.event(Event::freed(two, 16));
    rig.expect(&[]);
    enter(&mut rig, two, 2);
    rig.expect(&[Rule::NotTableMemory]);
    // Nor is one that is obtained and not filled, beside one that is.
    let three = PAGE_OF_TABLES + 0xc0;
    rig.event(obtained(three));
    rig.store(three, 0);
    enter(&mut rig, three, 3);
    assert!(rig.rules().contains(&Rule::UninitialisedTable));
}

#[test]
fn stores_to_a_top_table_count_until_its_memory_is_given_back() {
    const PAGE_OF_TABLES: u64 = 0x6000_0000;
    let (one, two) = (PAGE_OF_TABLES + 0x40, PAGE_OF_TABLES + 0x80);
    // Which tables the first CPU stored to, and which of them was given back and is another one since.
    for (stored, entered, rules) in [
        (&[one][..], one, &[][..]),
        (&[one, two], one, &[]),
        (&[one, two], two, &[Rule::UnorderedLink]),
    ] {
        let mut rig = program(2, Policies::NONE);
        for table in stored {
            rig.event(Event::obtained(*table, 16));
            rig.fill(*table, 2, 0, 0);
        }
        rig.cpu = 1;
        rig.event(Event::freed(one, 16));
        rig.event(Event::obtained(one, 16));
        rig.fill(one, 2, 0, 0);
        rig.barrier(Barrier::DSB_ISHST);
        rig.write(System::TCR_EL1, SMALL);
        enter(&mut rig, entered, ASID + 1);
        let found = rig.model.violations().iter().map(|one| one.rule);
        let found: Vec<_> = found.filter(|rule| *rule == Rule::UnorderedLink).collect();
        assert_eq!(found, rules, "{:?}", rig.model.violations());
    }
}

#[test]
fn a_fault_on_a_new_entry_may_be_taken_on_purpose() {
    let taken = Policies::NONE.with(Policy::SpuriousFaults);
    // A page is stored in a tree that no CPU walks, and the tree is entered without a DSB.
    for (policies, ordered, legal) in [
        (Policies::NONE, true, false),
        (taken, true, true),
        // The memory may have held anything before, and a walker may still find it.
        (taken, false, false),
    ] {
        let mut rig = program(1, policies);
        rig.event(Event::obtained(L0 + 0x8000, 0x4000));
        rig.chain(L0 + 0x8000);
        if ordered {
            rig.barrier(Barrier::DSB_ISHST);
        }
        rig.store(L0 + 0xb000, RAM | PAGE | RW | NG);
        enter(&mut rig, L0 + 0x8000, ASID + 1);
        let found = rig.model.violations().iter();
        let found: Vec<_> = found.map(|one| one.rule).collect();
        assert_eq!(found.is_empty(), legal, "{found:?}");
        assert!(found.iter().all(|rule| *rule == Rule::UnorderedLink));
    }
    // An entry that was valid before is not a fault.
    let mut rig = program(1, taken);
    rig.chain(L0 + 0x8000);
    rig.store(L0 + 0xb000, RAM | PAGE | RW | NG);
    rig.barrier(Barrier::DSB_ISHST);
    rig.store(L0 + 0xb000, RAM + 0x1000 | PAGE | RW | NG);
    enter(&mut rig, L0 + 0x8000, ASID + 1);
    rig.expect(&[Rule::UnorderedLink]);
}

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

#[test]
fn kernel_permissions_are_in_force_when_a_program_goes_on() {
    for (by, tlbi, legal) in [(0, false, false), (0, true, true), (1, false, true)] {
        let mut rig = program(2, Policies::all());
        rig.make(L3, RAM + 0x9000 | PAGE | RW);
        rig.cpu = by;
        rig.store(L3, RAM + 0x9000 | PAGE | RW | RO);
        rig.barrier(Barrier::DSB_ISHST);
        if tlbi {
            rig.invalidate("vaale1is", at(VA));
        }
        rig.cpu = 0;
        rig.event(Event::User);
        rig.expect_unless(legal, Rule::StaleTranslation);
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
