//! Deliberate practices of other kernels, each with its nearest fault: page tables in isolation, an
//! empty tree to park on, tables smaller than a page, and faults that are taken.

use crate::rig::*;
use granule_model::{Barrier, Config, Event, Policies, Policy, Rule, System};

const A1: u64 = 1 << 22;
/// Another tree's tables, and an empty one.
pub(crate) const OTHER: u64 = 0x5000_0000;
pub(crate) const EMPTY: u64 = 0x5000_8000;
pub(crate) const ASID: u64 = 7;

pub(crate) fn settle_memory(rig: &mut Rig) {
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

#[test]
fn trees_of_two_asids_meet_in_what_only_one_of_them_has() {
    let last = OTHER + 0x3000 + 511 * 8;
    let other = RAM + 0x5000 | PAGE | RW;
    // The kernel's tree has one global page more.
    let (mut rig, ways) = isolated(3, RAM + 0x1f_f000);
    rig.store(L3 + 510 * 8, 0);
    rig.invalidate("vmalle1is", 0);
    rig.make(L3 + 510 * 8, RAM + 0x1f_e000 | PAGE | RW);
    rig.expect(&[]);
    go(&mut rig, ways[0]);
    rig.expect(&[Rule::BreakBeforeMake]);
    // Or the other one has lost it since they were compared.
    let (mut rig, ways) = isolated(3, RAM + 0x1f_f000);
    ways.iter().for_each(|way| go(&mut rig, *way));
    rig.store(last, 0);
    rig.invalidate("vmalle1is", 0);
    go(&mut rig, ways[0]);
    rig.expect(&[]);
    rig.make(last, other);
    rig.expect(&[Rule::BreakBeforeMake]);
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
