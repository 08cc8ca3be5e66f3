//! Tables that two CPUs change under a lock, and a third that walks them whenever it likes: tables
//! are linked, unlinked, invalidated, freed and used again by the other CPU, and whatever is walked
//! meanwhile is what one of them maps there, or nothing.

use super::machine::{Environment, Fault, Machine, PAGE, Shared, interleave};
use crate::environment::turn_on;
use granule::arch::{
    Attributes, Geometry, Page4K, PageSize, Permissions, PhysicalAddress, VaRange, VirtualAddress,
};
use granule::table::{Leaves, PageTables};
use granule_model::{Access, Event, Outcome};
use granule_testing::cases::times;
use granule_testing::held::Held;
use granule_testing::shape::PLAIN;
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::sync::atomic::{AtomicU64, Ordering};

/// Each CPU maps its own stretch, with tables of its own down from level 2.
const STRETCH: u64 = 1 << 30;
const OUTPUT: u64 = 0x1_0000_0000;
const CPUS: u32 = 3;
const WALKER: u32 = 2;
const ROUNDS: u64 = 2;

type Tables = Held<Page4K, Environment>;

/// The machine with its MMUs on, and its tables.
fn start(fault: Fault) -> (Shared, Tables, Geometry) {
    let features = PLAIN.features();
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Upper);
    let machine = Machine::new(CPUS);
    let tables = match PageTables::new(geometry, machine.parts()) {
        Ok(tables) => tables,
        Err(error) => panic!("{error}"),
    };
    let root = tables.root_table();
    turn_on(&machine, CPUS, &features, &geometry, root, 0, false);
    let tables = Held::new(tables, true);
    machine.world.lock().unwrap().left_out = fault.leaves_out();
    (machine.world, tables, geometry)
}

/// One CPU maps its stretch, uses it, and unmaps it, which gives its tables to whoever is next.
fn change(cpu: u32, tables: &Mutex<Tables>, world: &Shared, geometry: &Geometry, fault: Fault) {
    let at = VirtualAddress(geometry.base().0 + u64::from(cpu) * STRETCH);
    let output = PhysicalAddress(OUTPUT + u64::from(cpu) * STRETCH);
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    let lock = || {
        let tables = tables.lock().unwrap();
        tables.environment().on(cpu);
        tables
    };
    for _ in 0..ROUNDS {
        let result = lock().map(at, output, 2 * PAGE, attributes, Leaves::PAGES);
        assert_eq!(result, Ok(()));
        // This CPU uses what it mapped; it has executed the ISB for that.
        let outcomes = world.lock().unwrap().model.access(cpu, at.0, Access::READ);
        let mapped = |one: &Outcome| matches!(one, Outcome::Memory(to) if to.address == output.0);
        assert!(
            fault != Fault::None || outcomes.iter().all(mapped),
            "{outcomes:?}"
        );
        let result = lock().unmap(at, 2 * PAGE);
        assert_eq!(result, Ok(()));
    }
}

/// Another CPU walks: what it may find is what the owner maps there, or nothing.
fn walk(world: &Shared, geometry: &Geometry, found: &AtomicU64, fault: Fault) {
    for step in 0..30 {
        let owner = step % 2;
        let va = geometry.base().0 + owner * STRETCH + 8;
        let outcomes = world
            .lock()
            .unwrap()
            .model
            .outcomes(WALKER, va, Access::READ);
        if fault != Fault::None {
            // The model decides what may be found then.
            continue;
        }
        for outcome in outcomes {
            match outcome {
                Outcome::Memory(to) => {
                    assert_eq!(to.address, OUTPUT + owner * STRETCH + 8);
                    found.fetch_add(1, Ordering::Relaxed);
                }
                Outcome::Fault(granule_model::FaultKind::Translation) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Plays so many interleavings. In how many a rule was broken, and how often the walker found a
/// mapping.
fn play(schedules: usize, fault: Fault) -> (u64, u64) {
    let broken = std::sync::Arc::new(AtomicU64::new(0));
    let found = std::sync::Arc::new(AtomicU64::new(0));
    let counts = (broken.clone(), found.clone());
    interleave(schedules, move || {
        let (world, tables, geometry) = start(fault);
        let tables = Arc::new(Mutex::new(tables));
        let mut cpus = Vec::new();
        for cpu in 0..2 {
            let (world, tables) = (world.clone(), tables.clone());
            cpus.push(thread::spawn(move || {
                change(cpu, &tables, &world, &geometry, fault);
            }));
        }
        let walker = (world.clone(), found.clone());
        cpus.push(thread::spawn(move || {
            walk(&walker.0, &geometry, &walker.1, fault);
        }));
        for cpu in cpus {
            cpu.join().unwrap();
        }
        let mut world = world.lock().unwrap();
        for cpu in 0..2 {
            let kind = Event::Settled;
            assert_eq!(world.model.event(cpu, kind), Ok(()));
        }
        let violations = world.model.violations();
        if fault == Fault::None {
            assert_eq!(violations, []);
        }
        broken.fetch_add(u64::from(!violations.is_empty()), Ordering::Relaxed);
    });
    (
        counts.0.load(Ordering::Relaxed),
        counts.1.load(Ordering::Relaxed),
    )
}

#[test]
fn tables_are_freed_only_when_nobody_walks_them() {
    let (broken, found) = play(300 * times(), Fault::None);
    assert_eq!(broken, 0);
    assert!(found > 100, "the walker found a mapping {found} times");
}

#[test]
fn a_protocol_with_a_step_left_out_is_found_out() {
    for fault in [Fault::Tlbi, Fault::Completion] {
        let (broken, _) = play(20, fault);
        assert_eq!(broken, 20);
    }
}
