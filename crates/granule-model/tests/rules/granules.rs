//! Programs of several page sizes: TCR.TG0 and T0SZ follow the program, ASIDs and TLBIs keep to one
//! granule.

use crate::rig::*;
use granule_model::{Barrier, Event, Miss, Rule, System};

/// A page size of programs: bits of a page, TG0, the code of a TLBI, and the levels of 39 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    shift: u32,
    tg0: u64,
    code: u64,
    levels: u32,
}

const K4: Size = Size {
    shift: 12,
    tg0: 0b00,
    code: 0b01,
    levels: 3,
};
const K16: Size = Size {
    shift: 14,
    tg0: 0b10,
    code: 0b10,
    levels: 3,
};
const K64: Size = Size {
    shift: 16,
    tg0: 0b01,
    code: 0b11,
    levels: 2,
};
const SIZES: [Size; 3] = [K4, K16, K64];

/// The one page that a program has.
const PAGE_AT: u64 = 0x1_0000;
/// Of user memory, not global.
const USER: u64 = RW | NG | 1 << 6;

impl Size {
    /// TCR of a CPU that runs such a program.
    const fn tcr(self) -> u64 {
        TCR & !(0x3f | 0b11 << 14) | 25 | self.tg0 << 14
    }

    /// The address of the last-level table of a tree at `base`.
    const fn last(self, base: u64) -> u64 {
        base + (self.levels as u64 - 1) * 0x1_0000
    }

    /// Where the descriptor of the page is.
    const fn leaf(self, base: u64) -> u64 {
        self.last(base) + (PAGE_AT >> self.shift) * 8
    }

    /// The operand of a TLBI by range of the page, and a multiple that is even, under an ASID.
    const fn range(self, asid: u64, granule: Self) -> u64 {
        let pages = 2;
        let num = pages / 2 - 1;
        let _ = self;
        PAGE_AT >> granule.shift | num << 39 | granule.code << 46 | asid << 48
    }
}

fn build(rig: &mut Rig, size: Size, base: u64, ram: u64) {
    let entries = 1u32 << (size.shift - 3);
    for level in 0..size.levels {
        let table = base + u64::from(level) * 0x1_0000;
        rig.event(Event::obtained(table, 1 << size.shift));
        rig.fill(table, entries, 0, 0);
    }
    for level in 0..size.levels - 1 {
        let table = base + u64::from(level) * 0x1_0000;
        rig.store(table, (table + 0x1_0000) | TABLE);
    }
    rig.store(size.leaf(base), ram | PAGE | USER);
    rig.barrier(Barrier::DSB_ISHST);
}

const ONE: u64 = 0x5000_0000;
const TWO: u64 = 0x5100_0000;
const RAM_ONE: u64 = 0x9000_0000;
const RAM_TWO: u64 = 0xa000_0000;

/// Returns the steps of a CPU on its way from `from` to the tree at `base` of size `to` under an ASID.
fn steps(from: u64, to: u64, ttbr: u64) -> Vec<Event> {
    let write = Event::System;
    let isb = Event::Barrier(Barrier::ISB);
    vec![
        write(System::TCR_EL1, from | EPD0),
        isb,
        write(System::TTBR0_EL1, ttbr),
        write(System::TCR_EL1, to | EPD0),
        isb,
        write(System::VMALLE1, 0),
        Event::Barrier(Barrier::DSB_NSH),
        isb,
        write(System::TCR_EL1, to),
        isb,
    ]
}

fn play(rig: &mut Rig, steps: impl IntoIterator<Item = Event>) {
    for step in steps {
        rig.event(step);
    }
}

fn ttbr(base: u64, asid: u64) -> u64 {
    base | asid << 48
}

/// Two CPUs with the upper half of a kernel, and trees of two sizes. CPU 0 is in the first one,
/// under ASID 1.
fn machine(one: Size, two: Size) -> Rig {
    let mut rig = Rig::new(0);
    // Memory for tables is recorded from here on, so the kernel's tables are recorded too.
    rig.event(Event::obtained(L0, 0x4000));
    build(&mut rig, one, ONE, RAM_ONE);
    build(&mut rig, two, TWO, RAM_TWO);
    play(&mut rig, steps(TCR, one.tcr(), ttbr(ONE, 1)));
    rig.sync();
    rig.reads(0, PAGE_AT, &[Some(RAM_ONE)]);
    rig.expect(&[]);
    rig
}

fn found(rig: &mut Rig) -> Vec<Rule> {
    let found = rig.model.violations().iter().map(|one| one.rule).collect();
    rig.model.clear_violations();
    found
}

#[test]
fn programs_of_all_sizes_take_turns() {
    for one in SIZES {
        for two in SIZES {
            let mut rig = machine(one, two);
            for _ in 0..3 {
                play(&mut rig, steps(one.tcr(), two.tcr(), ttbr(TWO, 2)));
                rig.sync();
                rig.reads(0, PAGE_AT, &[Some(RAM_TWO)]);
                play(&mut rig, steps(two.tcr(), one.tcr(), ttbr(ONE, 1)));
                rig.sync();
                rig.reads(0, PAGE_AT, &[Some(RAM_ONE)]);
            }
            rig.expect(&[]);
        }
    }
}

#[test]
fn each_step_between_two_sizes_is_needed() {
    let needed = [
        (0, Rule::FieldInUse),
        (1, Rule::FieldInUse),
        (2, Rule::TablesOfTwoSizes),
        (3, Rule::CachedField),
        (4, Rule::CachedField),
        (5, Rule::CachedField),
        (6, Rule::CachedField),
        (7, Rule::MissingIsb),
        (9, Rule::MissingIsb),
    ];
    for one in SIZES {
        for two in SIZES.into_iter().filter(|two| *two != one) {
            for (left_out, rule) in needed {
                let mut rig = machine(one, two);
                let mut steps = steps(one.tcr(), two.tcr(), ttbr(TWO, 2));
                steps.remove(left_out);
                play(&mut rig, steps);
                rig.sync();
                let found = found(&mut rig);
                assert!(
                    found.contains(&rule),
                    "{one:?} {two:?} {left_out}: {found:?}"
                );
            }
            // Without the last write no walks begin, which breaks no rule.
            let mut rig = machine(one, two);
            let mut steps = steps(one.tcr(), two.tcr(), ttbr(TWO, 2));
            steps.truncate(8);
            play(&mut rig, steps);
            rig.reads(0, PAGE_AT, &[None]);
            rig.expect(&[]);
        }
    }
}

#[test]
fn steps_in_another_order_are_found() {
    for (one, two) in [(K4, K64), (K64, K16), (K16, K4)] {
        let all = steps(one.tcr(), two.tcr(), ttbr(TWO, 2));
        for (order, rule, alone) in [
            // The TLBI before the change: the TLB may take the fields up again.
            (&[0, 1, 5, 6, 7, 2, 3, 4, 8, 9][..], Rule::CachedField, true),
            // Change and first walk in one write.
            (&[0, 1, 2, 4, 5, 6, 7, 8, 9], Rule::CachedField, true),
            // Walks before the TLBI.
            (&[0, 1, 2, 3, 4, 8, 9, 5, 6, 7], Rule::CachedField, false),
            // TTBR0 last, and no ISB before walks begin: the old tree is walked by the new granule.
            (&[0, 1, 3, 4, 5, 6, 7, 2, 8, 9], Rule::MissingIsb, true),
            // EPD in the write that changes the granule.
            (&[2, 3, 4, 5, 6, 7, 8, 9], Rule::FieldInUse, false),
        ] {
            let mut rig = machine(one, two);
            play(&mut rig, order.iter().map(|&at: &usize| all[at]));
            let found = found(&mut rig);
            let right = found.contains(&rule) && (!alone || found.len() == 1);
            assert!(right, "{order:?}: {found:?}");
        }
        // A TLBI of the ASID alone leaves what the TLB holds of the registers.
        let mut rig = machine(one, two);
        let mut asid = all.clone();
        asid[5] = Event::System(System::ASIDE1, 1 << 48);
        play(&mut rig, asid);
        assert_eq!(found(&mut rig), [Rule::CachedField]);
    }
}

#[test]
fn the_size_alone_changes_in_use_under_an_empty_root() {
    for (filled, legal) in [(false, true), (true, false)] {
        let mut rig = machine(K4, K4);
        let empty = 0x5200_0000;
        rig.event(Event::obtained(empty, 0x1000));
        rig.fill(empty, 512, 0, 0);
        let root = if filled { ONE } else { empty };
        rig.barrier(Barrier::DSB_ISHST);
        let tlbi = [
            Event::System(System::VMALLE1, 0),
            Event::Barrier(Barrier::DSB_NSH),
            Event::Barrier(Barrier::ISB),
        ];
        rig.write(System::TTBR0_EL1, root);
        play(&mut rig, tlbi);
        rig.write(System::TCR_EL1, K4.tcr() + 1);
        play(&mut rig, tlbi);
        rig.sync();
        rig.expect_unless(legal, Rule::FieldInUse);
    }
}

#[test]
fn tables_of_one_granule_are_not_walked_by_another() {
    // The other CPU has walked them as they are. This one writes TTBR0, and not TCR.
    for one in SIZES {
        for two in SIZES.into_iter().filter(|two| *two != one) {
            let mut rig = machine(one, two);
            rig.cpu = 1;
            play(&mut rig, steps(TCR, two.tcr(), ttbr(TWO, 2)));
            rig.settle(&[]);
            rig.cpu = 0;
            rig.write(System::TTBR0_EL1, ttbr(TWO, 2));
            let found = found(&mut rig);
            assert!(found.contains(&Rule::TablesOfTwoSizes), "{found:?}");
        }
    }
}

#[test]
fn an_asid_changes_its_size_after_an_invalidation() {
    let same = |rig: &mut Rig, cpu: u32, from: u64, asid: u64| {
        rig.cpu = cpu;
        play(rig, steps(from, K64.tcr(), ttbr(TWO, asid)));
        rig.sync();
    };
    // On one CPU, whose TLBI of all comes on the way.
    let mut rig = machine(K4, K64);
    same(&mut rig, 0, K4.tcr(), 1);
    rig.expect(&[]);
    // It came back from the other size meanwhile, and invalidated nothing of this one.
    let mut rig = machine(K4, K64);
    let mut all = steps(K4.tcr(), K64.tcr(), ttbr(TWO, 1));
    all.drain(5..8);
    play(&mut rig, all);
    let rules = found(&mut rig);
    assert!(rules.contains(&Rule::AsidOfTwoSizes), "{rules:?}");
    // While another CPU walks under it.
    let mut rig = machine(K4, K64);
    same(&mut rig, 1, TCR, 1);
    rig.expect(&[Rule::AsidOfTwoSizes]);
    let mut rig = machine(K4, K64);
    same(&mut rig, 1, TCR, 2);
    rig.expect(&[]);
    // The CPU has left, and holds what it held: it is to invalidate before it uses the number.
    let mut rig = machine(K4, K64);
    rig.cpu = 0;
    rig.write(System::TTBR0_EL1, ttbr(ONE, 7));
    same(&mut rig, 1, TCR, 1);
    rig.expect(&[]);
    rig.cpu = 0;
    play(&mut rig, steps(K4.tcr(), K64.tcr(), ttbr(TWO, 1)));
    rig.expect(&[]);
}

#[test]
fn an_empty_root_serves_every_granule() {
    let mut rig = machine(K4, K64);
    let empty = 0x5200_0000;
    rig.event(Event::obtained(empty, 0x1_0000));
    rig.fill(empty, 0x2000, 0, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.write(System::TTBR0_EL1, empty);
    rig.cpu = 1;
    play(&mut rig, steps(TCR, K64.tcr(), empty));
    rig.cpu = 0;
    play(&mut rig, steps(K4.tcr(), K16.tcr(), empty));
    rig.settle(&[]);
    // Once one has entries, it does not.
    rig.store(empty, (TWO + 0x1_0000) | TABLE);
    let found = found(&mut rig);
    assert!(found.contains(&Rule::AsidOfTwoSizes), "{found:?}");
}

#[test]
fn a_tlbi_names_the_granule_of_the_tree_and_not_that_of_the_cpu() {
    for one in SIZES {
        for named in SIZES {
            for by_range in [false, true] {
                // CPU 1 runs the other size, and takes the page of the first program away.
                let two = if one == K64 { K4 } else { K64 };
                let mut rig = machine(one, two);
                rig.cpu = 1;
                play(&mut rig, steps(TCR, two.tcr(), ttbr(TWO, 2)));
                rig.settle(&[]);
                rig.store(one.leaf(ONE), 0);
                rig.barrier(Barrier::DSB_ISHST);
                let hint = named.code << 46 | 0b11 << 44;
                if by_range {
                    rig.tlbi("rvale1is", one.range(1, named));
                } else {
                    rig.tlbi("vale1is", at(PAGE_AT) | hint | 1 << 48);
                }
                rig.barrier(Barrier::DSB_ISH);
                rig.sync();
                let missed: Vec<_> = rig.model.violations().iter().collect();
                if named == one {
                    assert!(missed.is_empty(), "{missed:?}");
                    rig.reads(0, PAGE_AT, &[None]);
                } else {
                    assert_eq!(missed.len(), 1, "{one:?} {named:?}: {missed:?}");
                    assert_eq!(missed[0].rule, Rule::StaleTranslation);
                    let why = missed[0].missed.map(|(_, miss)| miss);
                    assert_eq!(why, Some(Miss::WrongGranule));
                }
            }
        }
    }
}

#[test]
fn a_group_of_pages_with_a_hole_is_reported_in_every_granule() {
    for (size, members) in [(K4, 16), (K16, 128), (K64, 32)] {
        for hole in [false, true] {
            let mut rig = machine(size, size);
            let first = size.last(TWO) + u64::from(members) * 8;
            let ram = 0xb000_0000;
            let step = 1 << size.shift;
            rig.fill(first, members, ram | PAGE | USER | CONT, step);
            if hole {
                // One member is a page of its own.
                rig.store(first + 24, (ram + 3 * step) | PAGE | USER);
            }
            rig.barrier(Barrier::DSB_ISHST);
            play(&mut rig, steps(size.tcr(), size.tcr(), ttbr(TWO, 2)));
            rig.sync();
            let expected: &[Rule] = if hole { &[Rule::MixedContiguous] } else { &[] };
            rig.expect(expected);
        }
    }
}

#[test]
fn two_sizes_and_their_hardware_updates_do_not_meet() {
    // HA is of both halves and all programs; each size's entry is updated in its own tree.
    let mut rig = Rig::with(two());
    rig.event(Event::obtained(L0, 0x4000));
    build(&mut rig, K4, ONE, RAM_ONE);
    build(&mut rig, K64, TWO, RAM_TWO);
    let no_flag = |rig: &mut Rig, size: Size, base, ram: u64| {
        rig.event(Event::store(size.leaf(base), (ram | PAGE | USER) & !AF));
    };
    no_flag(&mut rig, K4, ONE, RAM_ONE);
    no_flag(&mut rig, K64, TWO, RAM_TWO);
    rig.barrier(Barrier::DSB_ISHST);
    let ha = 1 << 39;
    for (cpu, size, base) in [(0, K4, ONE), (1, K64, TWO)] {
        rig.cpu = cpu;
        let asid = u64::from(cpu) + 1;
        play(&mut rig, steps(TCR, size.tcr() | ha, ttbr(base, asid)));
    }
    rig.settle(&[]);
    assert!(rig.model.update_by_hardware(K4.leaf(ONE), false));
    assert!(rig.model.update_by_hardware(K64.leaf(TWO), false));
    // Not an entry of any tree.
    assert!(!rig.model.update_by_hardware(K64.leaf(ONE) + 0x100, false));
    rig.reads(0, PAGE_AT, &[Some(RAM_ONE)]);
    rig.reads(1, PAGE_AT, &[Some(RAM_TWO)]);
    rig.expect(&[]);
}
