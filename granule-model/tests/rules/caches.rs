//! Data and instruction caches.

use crate::rig::*;
use granule_model::{
    Access, Barrier, CacheOp, Config, EventKind, Outcome, Purpose, Register, Rule, Scope,
};

fn store(address: u64, bytes: u64) -> EventKind {
    EventKind::OtherStore {
        address,
        bytes,
        purpose: Purpose::Data,
    }
}

fn cache(op: CacheOp, address: u64, bytes: u64) -> EventKind {
    EventKind::Cache { op, address, bytes }
}

/// One CPU with a page mapped at VA, cached, and one at VA + 4K, Device.
fn machine() -> Rig {
    let mut rig = Rig::with(Config::default());
    rig.store(L3, RAM | PAGE | RW & !XN);
    rig.store(L3 + 8, RAM | PAGE | RW | DEVICE);
    rig.publish();
    rig
}

#[test]
fn what_is_read_with_the_mmu_off_was_cleaned() {
    for (cleaned, barrier, legal) in [
        (256, Barrier::DsbSy, true),
        (192, Barrier::DsbSy, false),
        (256, Barrier::DsbIsh, false),
        (256, Barrier::Isb, false),
    ] {
        for op in [CacheOp::CleanToPoc, CacheOp::CleanInvalidateToPoc] {
            let mut rig = machine();
            rig.event(store(RAM + 0x100, 256));
            rig.event(cache(op, RAM + 0x100, cleaned));
            rig.barrier(barrier);
            rig.register(Register::SctlrEl1, 0);
            rig.expect(if legal { &[] } else { &[Rule::NotCleaned] });
        }
    }
    // Cleaning to the point of unification is not enough.
    let mut rig = machine();
    rig.event(store(RAM, 64));
    rig.event(cache(CacheOp::CleanToPou, RAM, 64));
    rig.barrier(Barrier::DsbSy);
    rig.register(Register::SctlrEl1, 0);
    rig.expect(&[Rule::NotCleaned]);
    // A store after the clean makes the line dirty again.
    let mut rig = machine();
    rig.event(store(RAM, 64));
    rig.event(cache(CacheOp::CleanToPoc, RAM, 64));
    rig.event(store(RAM + 8, 8));
    rig.barrier(Barrier::DsbSy);
    rig.register(Register::SctlrEl1, 0);
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
    rig.event(cache(CacheOp::CleanToPoc, RAM, 8));
    rig.barrier(Barrier::DsbSy);
    rig.model.access(0, VA + 0x1000, Access::READ);
    rig.expect(&[]);
}

/// Stores with the MMU off, then turns it on.
fn stored_off(maintenance: Option<CacheOp>) -> Rig {
    let mut rig = machine();
    rig.register(Register::SctlrEl1, 0);
    rig.isb();
    rig.event(store(RAM, 64));
    if let Some(op) = maintenance {
        rig.event(cache(op, RAM, 64));
        rig.barrier(Barrier::DsbSy);
    }
    rig.register(Register::SctlrEl1, MMU_ON);
    rig.isb();
    rig.expect(&[]);
    rig
}

#[test]
fn what_was_stored_with_the_mmu_off_is_read_after_an_invalidation() {
    for (maintenance, rules) in [
        (Some(CacheOp::InvalidateToPoc), &[][..]),
        (Some(CacheOp::CleanInvalidateToPoc), &[]),
        (Some(CacheOp::CleanToPoc), &[Rule::NotInvalidated]),
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
    rig.event(cache(CacheOp::InvalidateToPoc, RAM, 64));
    rig.expect(&[Rule::StoreLost]);
    let mut rig = machine();
    rig.event(store(RAM, 64));
    rig.register(Register::SctlrEl1, 0);
    rig.expect(&[Rule::NotCleaned]);
    rig.event(store(RAM, 64));
    rig.expect(&[Rule::DirtyLineBehind]);
}

#[test]
fn tables_stored_with_the_mmu_off_are_invalidated_before_they_are_walked() {
    for (uncached_walks, op, rules) in [
        (false, Some(CacheOp::InvalidateToPoc), &[][..]),
        (false, None, &[Rule::NotInvalidated]),
        (false, Some(CacheOp::CleanToPoc), &[Rule::NotInvalidated]),
        // Walks that are not cached find them in memory.
        (true, None, &[]),
    ] {
        let mut rig = Rig::off(Config::default());
        rig.fill(L0, 512, 0, 0);
        if let Some(op) = op {
            rig.event(cache(op, L0, 0x1000));
        }
        rig.barrier(Barrier::DsbSy);
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
        rig.barrier(Barrier::DsbSy);
        rig.tlbi("vmalle1", 0);
        rig.barrier(Barrier::DsbNsh);
        rig.register(Register::TcrEl1, TCR | EPD0);
        rig.register(Register::Ttbr1El1, L0);
        rig.isb();
        // M without C: walks are not cached either.
        rig.register(Register::SctlrEl1, 1);
        rig.isb();
        rig.expect(&[]);
        if invalidate {
            rig.event(cache(CacheOp::InvalidateToPoc, L0, 0x1000));
            rig.barrier(Barrier::DsbSy);
        }
        rig.register(Register::SctlrEl1, MMU_ON);
        rig.expect(if invalidate {
            &[]
        } else {
            &[Rule::NotInvalidated]
        });
    }
}

#[test]
fn one_line_of_a_table_left_out() {
    let mut rig = Rig::off(Config::default());
    rig.fill(L0, 512, 0, 0);
    rig.event(cache(CacheOp::InvalidateToPoc, L0, 0x800));
    rig.event(cache(CacheOp::InvalidateToPoc, L0 + 0x840, 0x7c0));
    rig.barrier(Barrier::DsbSy);
    rig.turn_on(TCR | EPD0, 0, L0);
    assert_eq!(rig.model.violations()[0].range, (L0 + 0x800, L0 + 0x83f));
    rig.expect(&[Rule::NotInvalidated]);
}

#[test]
fn walks_that_are_not_cached_need_stores_cleaned() {
    for clean in [false, true] {
        let mut rig = Rig::off(Config::default());
        rig.fill(L0, 512, 0, 0);
        rig.barrier(Barrier::DsbSy);
        rig.turn_on(TCR & !(0b1111 << 24) | EPD0, 0, L0);
        rig.expect(&[]);
        // The line is clean so far: memory has it.
        rig.event(cache(CacheOp::CleanInvalidateToPoc, L0, 0x1000));
        rig.barrier(Barrier::DsbSy);
        rig.store(L0, 0x1000);
        if clean {
            rig.event(cache(CacheOp::CleanToPoc, L0, 8));
            rig.barrier(Barrier::DsbSy);
        }
        rig.publish();
        rig.sync();
        rig.expect(if clean { &[] } else { &[Rule::NotCleaned] });
    }
}

#[test]
fn instructions_are_cleaned_and_the_instruction_caches_invalidated() {
    let code = EventKind::OtherStore {
        address: RAM,
        bytes: 64,
        purpose: Purpose::Code,
    };
    let run = |clean: bool, scope: Option<Scope>, barrier: Barrier, cpu: u32| {
        let mut rig = Rig::new(0);
        rig.store(L3, RAM | PAGE | RW & !XN | RO);
        rig.publish();
        rig.cpu = 1;
        rig.isb();
        rig.cpu = 0;
        rig.event(code);
        if clean {
            rig.event(cache(CacheOp::CleanToPou, RAM, 64));
        }
        rig.barrier(Barrier::DsbIsh);
        if let Some(scope) = scope {
            rig.event(EventKind::InstructionCache { scope });
        }
        rig.barrier(barrier);
        rig.isb();
        rig.model.access(cpu, VA, Access::FETCH);
        rig.model
            .violations()
            .iter()
            .map(|one| one.rule)
            .collect::<Vec<_>>()
    };
    let broken = vec![Rule::InstructionCache];
    assert_eq!(run(true, Some(Scope::Broadcast), Barrier::DsbIsh, 1), []);
    assert_eq!(run(true, Some(Scope::Local), Barrier::DsbNsh, 0), []);
    assert_eq!(run(true, Some(Scope::Local), Barrier::DsbIsh, 1), broken);
    assert_eq!(
        run(false, Some(Scope::Broadcast), Barrier::DsbIsh, 0),
        broken
    );
    assert_eq!(run(true, None, Barrier::DsbIsh, 0), broken);
    assert_eq!(
        run(true, Some(Scope::Broadcast), Barrier::DsbIshst, 0),
        broken
    );
}

#[test]
fn with_the_mmu_off_addresses_are_physical_and_device() {
    let rig = Rig::off(Config::default());
    let outcomes = rig.model.outcomes(0, 0x1234, Access::READ);
    assert!(
        matches!(outcomes[..], [Outcome::Memory(one)] if one.address == 0x1234 && one.memory == 0)
    );
}

fn code(address: u64, bytes: u64) -> EventKind {
    EventKind::OtherStore {
        address,
        bytes,
        purpose: Purpose::Code,
    }
}

fn relied(address: u64) -> EventKind {
    EventKind::Relied {
        address,
        bytes: 0x1000,
    }
}

#[test]
fn a_cpu_that_starts_finds_what_it_reads_in_memory() {
    for (clean, reset) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut rig = Rig::off(Config {
            cpus: 2,
            ..Config::default()
        });
        rig.fill(L0, 512, 0, 0);
        rig.event(cache(CacheOp::InvalidateToPoc, L0, 0x1000));
        rig.barrier(Barrier::DsbSy);
        rig.turn_on(TCR | EPD0, 0, L0);
        rig.event(store(RAM, 0x100));
        if clean {
            rig.event(cache(CacheOp::CleanToPoc, RAM, 0x100));
            rig.barrier(Barrier::DsbSy);
        }
        // Nobody looks at it yet.
        rig.sync();
        rig.expect(&[]);
        rig.cpu = 1;
        if reset {
            rig.event(EventKind::Reset);
        } else {
            rig.tlbi("vmalle1", 0);
        }
        let rules = if clean { &[][..] } else { &[Rule::NotCleaned] };
        rig.expect(rules);
    }
}

#[test]
fn what_is_stored_while_a_cpu_runs_with_its_mmu_off_is_cleaned() {
    for clean in [false, true] {
        let mut rig = Rig::new(0);
        rig.cpu = 1;
        rig.register(Register::SctlrEl1, 0);
        rig.isb();
        rig.cpu = 0;
        rig.event(store(RAM, 64));
        if clean {
            rig.event(cache(CacheOp::CleanToPoc, RAM, 64));
            rig.barrier(Barrier::DsbSy);
        }
        rig.expect(&[]);
        rig.sync();
        rig.expect(if clean { &[] } else { &[Rule::NotCleaned] });
    }
}

#[test]
fn what_was_stored_with_the_mmu_off_is_relied_on_after_an_invalidation() {
    for (maintenance, rules) in [
        (Some(CacheOp::InvalidateToPoc), &[][..]),
        (None, &[Rule::NotInvalidated]),
    ] {
        // By a range that maps it, and not by another, nor as Device.
        let mut rig = stored_off(maintenance);
        rig.event(relied(VA + 0x1000));
        rig.expect(&[]);
        rig.event(relied(VA));
        rig.expect(rules);
        // By all that the tables say.
        let mut rig = stored_off(maintenance);
        rig.sync();
        rig.expect(rules);
        // What was said is not said again.
        rig.sync();
        rig.expect(&[]);
        // By a fetch.
        let mut rig = stored_off(maintenance);
        rig.model.access(0, VA, Access::FETCH);
        rig.expect(rules);
    }
}

#[test]
fn stored_code_is_relied_on_after_an_ic_that_follows_a_complete_clean() {
    use Barrier::{DsbIsh, DsbSy};
    let ic = EventKind::InstructionCache {
        scope: Scope::Broadcast,
    };
    let clean = cache(CacheOp::CleanToPoc, RAM, 64);
    let dsb = EventKind::Barrier(DsbSy);
    for (events, legal) in [
        (&[clean, dsb, ic, EventKind::Barrier(DsbIsh)][..], true),
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
                cache(CacheOp::CleanToPou, RAM + 64, 8),
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
                rig.event(relied(VA));
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
fn what_ran_before_may_have_left_lines_dirty_and_code_cached() {
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
            rig.event(cache(CacheOp::CleanInvalidateToPoc, L0, 0x40_0000));
            rig.barrier(Barrier::DsbSy);
        }
        rig.fill(L0, 512, 0, 0);
        rig.event(cache(CacheOp::InvalidateToPoc, L0, 0x1000));
        rig.barrier(Barrier::DsbSy);
        rig.turn_on(TCR | EPD0, 0, L0);
        if ic {
            rig.event(EventKind::InstructionCache {
                scope: Scope::Local,
            });
            rig.barrier(Barrier::DsbNsh);
            rig.isb();
        }
        rig.sync();
        rig.expect(rules);
    }
}
