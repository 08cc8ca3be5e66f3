//! Work that a kernel may leave undone on purpose, where, and at which checks; and features that CPUs lack.

use crate::kernels::{ASID, OTHER, program};
use crate::reuse::reused;
use crate::rig::*;
use granule_model::{Access, Barrier, Config, Event, Lacks, Policies, Policy, Rule, System};

#[test]
fn a_policy_holds_wherever_the_same_question_is_asked() {
    let taken = Policies::NONE.with(Policy::SpuriousFaults);
    let page = RAM + 0x1000 | PAGE | RW | NG;
    // A change without a DSB or ISB, and what breaks a rule by it without the policy and with it.
    for (old, new, none, with) in [
        (
            0,
            page,
            &[Rule::StoreNotVisible, Rule::MissingIsb][..],
            &[][..],
        ),
        (page & !AF, page, &[Rule::StoreNotVisible], &[]),
        (
            page | RO,
            page,
            &[Rule::StoreNotVisible, Rule::StaleTranslation],
            &[],
        ),
        (page, page | 1 << 55, &[Rule::StoreNotVisible], &[]),
        (
            page,
            page | RO,
            &[Rule::StoreNotVisible, Rule::StaleTranslation],
            &[Rule::StoreNotVisible, Rule::StaleTranslation],
        ),
    ] {
        for (policies, rules) in [(Policies::NONE, none), (taken, with)] {
            let mut rig = program(2, policies);
            rig.make(OTHER + 0x3008, old);
            rig.store(OTHER + 0x3008, new);
            rig.settle(rules);
        }
        // The range is named; only an entry that was not valid is new.
        let mut rig = program(2, taken);
        rig.make(OTHER + 0x3008, old);
        rig.store(OTHER + 0x3008, new);
        rig.event(Event::assume_visible(0x1000, 0x1000));
        let narrowed: &[Rule] = if with.is_empty() {
            &[]
        } else {
            &[Rule::StaleTranslation]
        };
        rig.expect(narrowed);
    }
    // What is under way after a TLBI may be refused too, and an access may fault.
    let mut rig = program(2, taken);
    rig.make(OTHER + 0x3008, page | RO);
    rig.store(OTHER + 0x3008, page);
    rig.barrier(Barrier::DSB_ISHST);
    rig.tlbi("vale1is", ASID << 48 | 1);
    rig.barrier(Barrier::DSB_ISH);
    rig.settle(&[]);
    rig.store(OTHER + 0x3010, page);
    assert_eq!(rig.model.access(0, 0x2000, Access::READ).len(), 2);
    rig.expect(&[]);
}

#[test]
fn an_unmap_is_put_off_where_the_kernel_has_vmalloc_and_nowhere_else() {
    const VMALLOC: u64 = 0xffff_8000_0000_0000;
    let base = 0x5001_0000;
    // Where lazy unmapping holds, and whether it does for a page of the linear map and one of vmalloc.
    for (lazy, linear, vmalloc) in [
        (None, false, true),
        (Some((VMALLOC, VMALLOC + 0xfff)), false, true),
        (Some((VMALLOC + 0x1000, u64::MAX)), false, false),
        (Some((VA, VA + 0xfff)), true, false),
    ] {
        for (entry, legal) in [(L3, linear), (base + 0x3000, vmalloc)] {
            let mut rig = Rig::with(Config {
                policies: Policies::all(),
                lazy,
                ..Config::default()
            });
            rig.chain(base);
            rig.barrier(Barrier::DSB_ISHST);
            rig.make(L0 + 256 * 8, base + 0x1000 | TABLE);
            rig.make(entry, RAM | PAGE | RW);
            rig.store(entry, 0);
            rig.barrier(Barrier::DSB_ISHST);
            rig.event(reused(RAM));
            rig.expect_unless(legal, Rule::StaleReuse);
        }
    }
}

#[test]
fn a_level_hint_is_ignored_by_a_cpu_without_it() {
    let hint = |level: u64| at(VA) | (0b01 << 2 | level) << 44;
    for (lacks, level, legal) in [("", 3, true), ("", 2, false), ("ttl", 2, true)] {
        let lacks = Lacks::from_names(lacks).unwrap_or_default();
        let mut rig = Rig::with(lacks.of(two()));
        rig.make(L3, RAM | PAGE | RW);
        rig.store(L3, 0);
        rig.invalidate("vaale1is", hint(level));
        rig.settle(if legal {
            &[]
        } else {
            &[Rule::StaleTranslation]
        });
    }
}

#[test]
fn outputs_are_no_larger_than_the_registers_allow() {
    // IPS is 48 bits in the rig; 40 here.
    let small = TCR & !(0b111 << 32) | 0b010 << 32;
    for (output, legal) in [((1 << 40) - 0x1000, true), (1 << 40, false)] {
        // Stored to a live table, and linked with it.
        let mut rig = Rig::with_page(RAM | PAGE | RW);
        rig.turn_on(small | EPD0, 0, L0);
        rig.expect(&[]);
        rig.make(L3 + 8, output | PAGE | RW);
        rig.expect_unless(legal, Rule::AddressSize);
        let mut rig = Rig::with_page(output | PAGE | RW);
        rig.turn_on(small | EPD0, 0, L0);
        rig.expect_unless(legal, Rule::AddressSize);
        // The address of a table.
        let mut rig = Rig::with_page(RAM | PAGE | RW);
        rig.fill(output, 512, 0, 0);
        rig.clean(output, 0x1000);
        rig.turn_on(small | EPD0, 0, L0);
        rig.make(L2 + 8, output | TABLE);
        rig.expect_unless(legal, Rule::AddressSize);
    }
}

#[test]
fn a_change_is_relied_on_where_its_own_task_goes_on() {
    const TASKS: [u64; 2] = [0xffff_0000_0000_1000, 0xffff_0000_0000_2000];
    // Task 0 unmaps a page of the program, and is preempted before its TLBI: who goes to EL0 then, and where.
    for (cpu, task, tlbi, legal) in [
        (0, 1, false, true),
        (0, 0, false, false),
        (1, 0, false, false),
        (1, 0, true, true),
        (1, 1, false, true),
    ] {
        let mut rig = program(2, Policies::all());
        rig.register(System::SP_EL0, TASKS[0]);
        rig.store(OTHER + 0x3000, 0);
        if tlbi {
            rig.invalidate("vale1is", ASID << 48);
        }
        rig.cpu = cpu;
        rig.register(System::SP_EL0, TASKS[task]);
        rig.event(Event::User);
        rig.expect_unless(legal, Rule::StaleTranslation);
    }
}

#[test]
fn a_cpu_with_an_erratum_takes_a_second_tlbi() {
    // The operations of each DSB, and whether the page is gone after them with the erratum and without.
    for (steps, with, without) in [
        (&[&[at(VA)][..]][..], false, true),
        (&[&[at(VA)], &[at(VA)]], true, true),
        // Any other address serves, but only after the DSB.
        (&[&[at(VA)], &[0]], true, true),
        (&[&[at(VA), at(VA), 0]], false, true),
        (&[&[0], &[at(VA)]], false, true),
    ] {
        for (lacks, legal) in [("single-tlbi", with), ("ttl", without)] {
            let lacks = Lacks::from_names(lacks).unwrap_or_default();
            let mut rig = Rig::with(lacks.of(two()));
            rig.make(L3, RAM | PAGE | RW);
            rig.store(L3, 0);
            rig.barrier(Barrier::DSB_ISHST);
            for operands in steps {
                operands
                    .iter()
                    .for_each(|operand| rig.tlbi("vaale1is", *operand));
                rig.barrier(Barrier::DSB_ISH);
            }
            rig.isb();
            rig.settle(if legal {
                &[]
            } else {
                &[Rule::StaleTranslation]
            });
        }
    }
}

#[test]
fn a_cpu_with_an_erratum_repeats_its_own_broadcasts() {
    // The CPUs, and the TLBIs with the CPU of each.
    for (cpus, steps, legal) in [
        (2, &[(0, "vaale1is"), (0, "vaale1is")][..], true),
        // Another CPU's repeats nothing, and one for its own CPU needs no repetition, and is none.
        (2, &[(0, "vaale1is"), (1, "vaale1is")], false),
        (1, &[(0, "vaale1")], true),
        (2, &[(0, "vaale1is"), (0, "vmalle1")], false),
    ] {
        let mut rig = Rig::with(Config {
            cpus,
            single_tlbi: false,
            ..Config::default()
        });
        rig.make(L3, RAM | PAGE | RW);
        rig.store(L3, 0);
        rig.barrier(Barrier::DSB_ISHST);
        for (cpu, name) in steps {
            rig.cpu = *cpu;
            rig.tlbi(name, at(VA));
            rig.barrier(Barrier::DSB_ISH);
            rig.isb();
        }
        rig.cpu = 0;
        rig.settle(if legal {
            &[]
        } else {
            &[Rule::StaleTranslation]
        });
    }
}
