//! Data and instruction caches.

use crate::rig::*;
use granule_model::{Access, Barrier, Config, Event, Outcome, Rule, System};

fn store(address: u64, bytes: u64) -> Event {
    Event::data(address, bytes)
}

fn cache(op: System, address: u64, bytes: u64) -> Event {
    Event::lines(op, address, bytes)
}

/// One CPU with a page mapped at VA, cached, and one at VA + 4K, Device.
fn machine() -> Rig {
    let mut rig = Rig::with(Config::default());
    rig.store(L3, RAM | PAGE | RW & !XN);
    rig.make(L3 + 8, RAM | PAGE | RW | DEVICE);
    rig
}

#[test]
fn memory_read_with_the_mmu_off_must_be_cleaned() {
    for (cleaned, barrier, legal) in [
        (256, Barrier::DSB_SY, true),
        (192, Barrier::DSB_SY, false),
        (256, Barrier::DSB_ISH, false),
        (256, Barrier::ISB, false),
    ] {
        for op in [System::DC_CVAC, System::DC_CIVAC] {
            let mut rig = machine();
            rig.event(store(RAM + 0x100, 256));
            rig.event(cache(op, RAM + 0x100, cleaned));
            rig.barrier(barrier);
            rig.register(System::SCTLR_EL1, 0);
            rig.expect_unless(legal, Rule::NotCleaned);
        }
    }
    // Cleaning to the point of unification is not enough.
    let mut rig = machine();
    rig.event(store(RAM, 64));
    rig.event(cache(System::DC_CVAU, RAM, 64));
    rig.barrier(Barrier::DSB_SY);
    rig.register(System::SCTLR_EL1, 0);
    rig.expect(&[Rule::NotCleaned]);
    // A store after the clean makes the line dirty again.
    let mut rig = machine();
    rig.event(store(RAM, 64));
    rig.event(cache(System::DC_CVAC, RAM, 64));
    rig.event(store(RAM + 8, 8));
    rig.barrier(Barrier::DSB_SY);
    rig.register(System::SCTLR_EL1, 0);
    rig.expect(&[Rule::NotCleaned]);
}

#[test]
fn a_device_mapping_sees_memory_only() {
    let mut rig = machine();
    rig.event(store(RAM, 8));
    rig.model.access(0, VA, Access::READ);
    rig.expect(&[]);
    rig.model.access(0, VA + 0x1000, Access::READ);
    rig.expect(&[Rule::NotCleaned]);
    rig.model.access(0, VA + 0x1000, Access::WRITE);
    rig.expect(&[Rule::DirtyLineBehind]);
    rig.event(cache(System::DC_CVAC, RAM, 8));
    rig.barrier(Barrier::DSB_SY);
    rig.model.access(0, VA + 0x1000, Access::READ);
    rig.expect(&[]);
}

/// Stores with the MMU off, then turns it on.
fn stored_off(maintenance: Option<System>) -> Rig {
    let mut rig = machine();
    rig.write(System::SCTLR_EL1, 0);
    rig.event(store(RAM, 64));
    if let Some(op) = maintenance {
        rig.event(cache(op, RAM, 64));
        rig.barrier(Barrier::DSB_SY);
    }
    rig.write(System::SCTLR_EL1, MMU_ON);
    rig.expect(&[]);
    rig
}

#[test]
fn stores_with_the_mmu_off_are_read_after_an_invalidation() {
    for (maintenance, rules) in [
        (Some(System::DC_IVAC), &[][..]),
        (Some(System::DC_CIVAC), &[]),
        (Some(System::DC_CVAC), &[Rule::NotInvalidated]),
        (None, &[Rule::NotInvalidated]),
    ] {
        let mut rig = stored_off(maintenance);
        rig.model.access(0, VA, Access::READ);
        rig.expect(rules);
    }
}

#[test]
fn a_dirty_line_is_not_stored_behind_nor_thrown_away() {
    let mut rig = machine();
    rig.event(store(RAM, 64));
    rig.event(cache(System::DC_IVAC, RAM, 64));
    rig.expect(&[Rule::StoreLost]);
    let mut rig = machine();
    rig.event(store(RAM, 64));
    rig.register(System::SCTLR_EL1, 0);
    rig.expect(&[Rule::NotCleaned]);
    rig.event(store(RAM, 64));
    rig.expect(&[Rule::DirtyLineBehind]);
}

#[test]
fn tables_stored_with_the_mmu_off_are_invalidated_before_they_are_walked() {
    for (uncached_walks, op, rules) in [
        (false, Some(System::DC_IVAC), &[][..]),
        (false, None, &[Rule::NotInvalidated]),
        (false, Some(System::DC_CVAC), &[Rule::NotInvalidated]),
        // Walks that are not cached find them in memory.
        (true, None, &[]),
    ] {
        let mut rig = Rig::off(Config::default());
        rig.fill(L0, 512, 0, 0);
        if let Some(op) = op {
            rig.event(cache(op, L0, 0x1000));
        }
        rig.barrier(Barrier::DSB_SY);
        let tcr = if uncached_walks {
            TCR & !(0b1111 << 24)
        } else {
            TCR
        };
        rig.turn_on(tcr | EPD0, 0, L0);
        rig.expect(rules);
    }
}

#[test]
fn walks_that_begin_to_be_cached() {
    for invalidate in [false, true] {
        let mut rig = Rig::off(Config::default());
        rig.fill(L0, 512, 0, 0);
        rig.barrier(Barrier::DSB_SY);
        rig.tlbi("vmalle1", 0);
        rig.barrier(Barrier::DSB_NSH);
        rig.register(System::TCR_EL1, TCR | EPD0);
        rig.write(System::TTBR1_EL1, L0);
        // M without C: walks are not cached either.
        rig.write(System::SCTLR_EL1, 1);
        rig.expect(&[]);
        if invalidate {
            rig.event(cache(System::DC_IVAC, L0, 0x1000));
            rig.barrier(Barrier::DSB_SY);
        }
        rig.register(System::SCTLR_EL1, MMU_ON);
        rig.expect_unless(invalidate, Rule::NotInvalidated);
    }
}

#[test]
fn one_line_of_a_table_left_out() {
    let mut rig = Rig::off(Config::default());
    rig.fill(L0, 512, 0, 0);
    rig.event(cache(System::DC_IVAC, L0, 0x800));
    rig.event(cache(System::DC_IVAC, L0 + 0x840, 0x7c0));
    rig.barrier(Barrier::DSB_SY);
    rig.turn_on(TCR | EPD0, 0, L0);
    assert_eq!(rig.model.violations()[0].range, (L0 + 0x800, L0 + 0x83f));
    rig.expect(&[Rule::NotInvalidated]);
}

#[test]
fn walks_that_are_not_cached_need_stores_cleaned() {
    for clean in [false, true] {
        let mut rig = Rig::off(Config::default());
        rig.fill(L0, 512, 0, 0);
        rig.barrier(Barrier::DSB_SY);
        rig.turn_on(TCR & !(0b1111 << 24) | EPD0, 0, L0);
        rig.expect(&[]);
        // The line is clean so far: memory has it.
        rig.event(cache(System::DC_CIVAC, L0, 0x1000));
        rig.barrier(Barrier::DSB_SY);
        rig.store(L0, 0x1000);
        if clean {
            rig.event(cache(System::DC_CVAC, L0, 8));
            rig.barrier(Barrier::DSB_SY);
        }
        rig.publish();
        rig.sync();
        rig.expect_unless(clean, Rule::NotCleaned);
    }
}

#[test]
fn instructions_are_cleaned_and_the_instruction_caches_invalidated() {
    let run = |clean: bool, scope: Option<System>, barrier: Barrier, cpu: u32| {
        let mut rig = Rig::new(0);
        rig.make(L3, RAM | PAGE | RW & !XN | RO);
        rig.cpu = 1;
        rig.isb();
        rig.cpu = 0;
        rig.event(code(RAM, 64));
        if clean {
            rig.event(cache(System::DC_CVAU, RAM, 64));
        }
        rig.barrier(Barrier::DSB_ISH);
        if let Some(scope) = scope {
            rig.event(Event::System(scope, 0));
        }
        rig.barrier(barrier);
        rig.cpu = cpu;
        rig.isb();
        rig.model.access(cpu, VA, Access::FETCH);
        rig
    };
    let (here, everywhere) = (Some(System::IC_IALLU), Some(System::IC_IALLUIS));
    for (clean, scope, barrier, cpu, legal) in [
        (true, everywhere, Barrier::DSB_ISH, 1, true),
        (true, here, Barrier::DSB_NSH, 0, true),
        (true, here, Barrier::DSB_ISH, 1, false),
        (false, everywhere, Barrier::DSB_ISH, 0, false),
        (true, None, Barrier::DSB_ISH, 0, false),
        (true, everywhere, Barrier::DSB_ISHST, 0, false),
    ] {
        let mut rig = run(clean, scope, barrier, cpu);
        rig.expect_unless(legal, Rule::InstructionCache);
    }
}

#[test]
fn changed_code_is_executed_after_an_isb_of_the_cpu_that_executes_it() {
    // The CPU that executes it; the CPUs that execute an ISB; and whether one comes before the DSB.
    for (cpu, isbs, early, legal) in [
        (0, &[0][..], false, true),
        (0, &[], false, false),
        (0, &[1], false, false),
        (0, &[0], true, false),
        (1, &[1], false, true),
        (1, &[0], false, false),
        (1, &[1], true, false),
    ] {
        for relied in ["fetch", "range", "all"] {
            let mut rig = Rig::new(0);
            rig.make(L3, RAM | PAGE | RW & !XN | RO);
            rig.cpu = 1;
            rig.isb();
            rig.cpu = 0;
            rig.event(code(RAM, 64));
            rig.event(cache(System::DC_CVAU, RAM, 64));
            rig.barrier(Barrier::DSB_ISH);
            rig.event(Event::System(System::IC_IALLUIS, 0));
            let isb = |rig: &mut Rig| {
                for by in isbs {
                    rig.cpu = *by;
                    rig.isb();
                }
                rig.cpu = 0;
            };
            if early {
                isb(&mut rig);
            }
            rig.barrier(Barrier::DSB_ISH);
            if !early {
                isb(&mut rig);
            }
            rig.cpu = cpu;
            match relied {
                "fetch" => {
                    rig.model.access(cpu, VA, Access::FETCH);
                }
                "range" => rig.event(assume_visible(VA)),
                _ => rig.sync(),
            }
            rig.expect_unless(legal, Rule::MissingIsb);
        }
    }
    // Data, or another page, is read without an ISB.
    let mut rig = machine();
    rig.event(code(RAM, 64));
    rig.event(cache(System::DC_CVAU, RAM, 64));
    rig.barrier(Barrier::DSB_ISH);
    rig.event(Event::System(System::IC_IALLUIS, 0));
    rig.barrier(Barrier::DSB_ISH);
    rig.event(assume_visible(VA + 0x1000));
    rig.model.access(0, VA, Access::READ);
    rig.expect(&[]);
}

#[test]
fn with_the_mmu_off_addresses_are_physical_and_device() {
    let rig = Rig::off(Config::default());
    let outcomes = rig.model.outcomes(0, 0x1234, Access::READ);
    assert!(
        matches!(outcomes[..], [Outcome::Memory(one)] if one.address == 0x1234 && one.memory == 0)
    );
}

fn code(address: u64, bytes: u64) -> Event {
    Event::code(address, bytes)
}

fn assume_visible(address: u64) -> Event {
    Event::assume_visible(address, 0x1000)
}

#[test]
fn a_cpu_that_starts_finds_what_it_reads_in_memory() {
    for (clean, reset) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut rig = Rig::off(two());
        rig.fill(L0, 512, 0, 0);
        rig.event(cache(System::DC_IVAC, L0, 0x1000));
        rig.barrier(Barrier::DSB_SY);
        rig.turn_on(TCR | EPD0, 0, L0);
        rig.event(store(RAM, 0x100));
        if clean {
            rig.event(cache(System::DC_CVAC, RAM, 0x100));
            rig.barrier(Barrier::DSB_SY);
        }
        // Nobody looks at it yet.
        rig.settle(&[]);
        rig.cpu = 1;
        if reset {
            rig.event(Event::Reset);
        } else {
            rig.tlbi("vmalle1", 0);
        }
        let rules = if clean { &[][..] } else { &[Rule::NotCleaned] };
        rig.expect(rules);
    }
}

#[test]
fn stores_for_a_cpu_with_its_mmu_off_must_be_cleaned() {
    for clean in [false, true] {
        let mut rig = Rig::new(0);
        rig.cpu = 1;
        rig.write(System::SCTLR_EL1, 0);
        rig.cpu = 0;
        rig.event(store(RAM, 64));
        if clean {
            rig.event(cache(System::DC_CVAC, RAM, 64));
            rig.barrier(Barrier::DSB_SY);
        }
        rig.expect(&[]);
        rig.sync();
        rig.expect_unless(clean, Rule::NotCleaned);
    }
}

#[test]
fn stores_with_the_mmu_off_are_relied_on_after_an_invalidation() {
    for (maintenance, rules) in [
        (Some(System::DC_IVAC), &[][..]),
        (None, &[Rule::NotInvalidated]),
    ] {
        // By a range that maps it, and not by another, nor as Device.
        let mut rig = stored_off(maintenance);
        rig.event(assume_visible(VA + 0x1000));
        rig.expect(&[]);
        rig.event(assume_visible(VA));
        rig.expect(rules);
        // By all that the tables map.
        let mut rig = stored_off(maintenance);
        rig.settle(rules);
        // A reported violation is not reported again.
        rig.settle(&[]);
        // By a fetch.
        let mut rig = stored_off(maintenance);
        rig.model.access(0, VA, Access::FETCH);
        rig.expect(rules);
    }
}

#[test]
fn stored_code_is_relied_on_after_an_ic_that_follows_a_complete_clean() {
    let ic = Event::System(System::IC_IALLUIS, 0);
    let clean = cache(System::DC_CVAC, RAM, 64);
    let dsb = Event::Barrier(Barrier::DSB_SY);
    for (events, legal) in [
        (
            &[clean, dsb, ic, Event::Barrier(Barrier::DSB_ISH)][..],
            true,
        ),
        // The IC is issued before the clean is complete, and may fetch the old again.
        (&[clean, ic, dsb], false),
        (&[clean, dsb], false),
        (&[dsb, ic, dsb], false),
        // Stored again in between.
        (&[clean, dsb, ic, code(RAM, 8), dsb], false),
        // Another line of the page, later: the first is done nevertheless.
        (
            &[
                clean,
                dsb,
                ic,
                code(RAM + 64, 8),
                dsb,
                cache(System::DC_CVAU, RAM + 64, 8),
                dsb,
                ic,
                dsb,
            ],
            true,
        ),
    ] {
        for by_range in [false, true] {
            let mut rig = machine();
            rig.event(code(RAM, 64));
            for event in events {
                rig.event(*event);
            }
            rig.isb();
            if by_range {
                rig.event(assume_visible(VA));
            } else {
                rig.sync();
            }
            let rules = if legal {
                &[][..]
            } else {
                &[Rule::InstructionCache]
            };
            rig.expect(rules);
        }
    }
}

#[test]
fn a_cached_store_by_an_access_is_missing_in_memory() {
    let mut rig = machine();
    rig.model.access(0, VA, Access::WRITE);
    rig.expect(&[]);
    rig.model.access(0, VA + 0x1000, Access::READ);
    rig.expect(&[Rule::NotCleaned]);
}

#[test]
fn earlier_software_may_have_left_dirty_lines_and_cached_code() {
    for (maintained, ic, rules) in [
        (true, true, &[][..]),
        (false, true, &[Rule::DirtyLineBehind]),
        (true, false, &[Rule::InstructionCache]),
    ] {
        let mut rig = Rig::off(Config {
            caches_unknown_at_reset: true,
            ..Config::default()
        });
        if maintained {
            rig.event(cache(System::DC_CIVAC, L0, 0x40_0000));
            rig.barrier(Barrier::DSB_SY);
        }
        rig.fill(L0, 512, 0, 0);
        rig.event(cache(System::DC_IVAC, L0, 0x1000));
        rig.barrier(Barrier::DSB_SY);
        rig.turn_on(TCR | EPD0, 0, L0);
        if ic {
            rig.event(Event::System(System::IC_IALLU, 0));
            rig.barrier(Barrier::DSB_NSH);
            rig.isb();
        }
        rig.settle(rules);
    }
}
