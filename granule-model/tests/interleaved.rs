//! Tables that two CPUs change under a lock, and a third that walks them whenever it likes, in
//! many interleavings: tables are linked, unlinked, invalidated, freed and used again by the other
//! CPU, and whatever is walked meanwhile is what one of them maps there, or nothing.
//!
//! A step is an event: between any two of them the others run. What the walker may find at each
//! point the model says, with all that a TLB may hold.

#![allow(
    clippy::unwrap_used,
    reason = "a lock that is poisoned is a test that failed"
)]

use granule::arch::registers::{Mair, Tcr, Ttbr};
use granule::arch::tlbi::{Reach, TlbCapabilities, TlbiOp};
use granule::arch::{
    Attributes, CpuFeatures, Descriptor, Geometry, Half, IdRegisters, Page4K, PageSize,
    Permissions, PhysicalAddress, Regime as LibraryRegime, VirtualAddress,
};
use granule::table::{
    BitChange, Leaves, Maintenance, PageTables, Parts, TableAllocator, TableMemory, TableRun,
    Visibility,
};
use granule_model::{
    Access, Barrier, CacheOp, Config, Event, EventKind, Model, Order, Outcome, Regime, Register,
    Target, Tlbi, TlbiScope,
};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Mutex};
use shuttle::{Runner, thread};
use std::sync::atomic::{AtomicU64, Ordering};

const TABLES: u64 = 0x4000_0000;
const PAGE: u64 = 0x1000;
/// Each CPU maps its own stretch, with tables of its own down from level 2.
const STRETCH: u64 = 1 << 30;
const OUTPUT: u64 = 0x1_0000_0000;
const WALKER: u32 = 2;
const ROUNDS: u64 = 2;

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Tlbi,
    Completion,
}

/// The machine: one event at a time, in an order that the scheduler chooses.
struct World {
    model: Model,
    free: Vec<u64>,
    next: u64,
    fault: Fault,
}

type Shared = Arc<Mutex<World>>;

/// What one CPU reaches the machine by.
#[derive(Clone)]
struct Machine {
    world: Shared,
    cpu: u32,
    can: TlbCapabilities,
}

impl Machine {
    fn event(&self, kind: EventKind) {
        let mut world = self.world.lock().unwrap();
        let left_out = match (world.fault, kind) {
            (Fault::Tlbi, EventKind::Tlbi(op)) => op.scope == TlbiScope::InnerShareable,
            (Fault::Completion, EventKind::Barrier(barrier)) => barrier == Barrier::DsbIsh,
            _ => false,
        };
        if !left_out {
            let cpu = self.cpu;
            assert_eq!(world.model.event(Event { cpu, kind }), Ok(()));
        }
    }
}

const fn order(visibility: Visibility) -> Order {
    match visibility {
        Visibility::Publish => Order::Release,
        _ => Order::Plain,
    }
}

// SAFETY: every store named becomes one event of the model, which holds the memory.
unsafe impl TableMemory for Machine {
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        let world = self.world.lock().unwrap();
        Descriptor(world.model.descriptor(table.0 + index as u64 * 8))
    }

    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        self.event(EventKind::StoreDescriptor {
            address: table.0 + index as u64 * 8,
            value: descriptor.0,
            order: order(visibility),
        });
    }

    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        // SAFETY: the caller's promise; no hardware updates these tables.
        unsafe {
            let old = self.load(table, index);
            self.store(table, index, descriptor, visibility);
            old
        }
    }

    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        self.event(EventKind::FillDescriptors {
            address: table.0 + first as u64 * 8,
            count: count as u64,
            first: descriptor.0,
            step,
            order: order(visibility),
        });
    }

    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let concerned = (first..first + count)
            // SAFETY: the caller vouches for these entries.
            .filter(|&index| change.concerns(unsafe { self.load(table, index) }))
            .count();
        self.event(EventKind::UpdateDescriptors {
            address: table.0 + first as u64 * 8,
            count: count as u64,
            of: change.of,
            clear: change.clear,
            set: change.set,
            order: order(visibility),
        });
        concerned
    }
}

// SAFETY: pages come from a counter or were freed, so nobody else has them.
unsafe impl TableAllocator for Machine {
    fn reserve(&mut self, _: usize) -> bool {
        true
    }

    fn allocate(&mut self, _: usize) -> Option<TableRun> {
        let mut world = self.world.lock().unwrap();
        let address = match world.free.pop() {
            Some(page) => page,
            None => {
                world.next += PAGE;
                world.next - PAGE
            }
        };
        drop(world);
        let bytes = PAGE;
        self.event(EventKind::TableObtained { address, bytes });
        Some(TableRun {
            first: PhysicalAddress(address),
            count: 1,
        })
    }

    fn free(&mut self, table: PhysicalAddress) {
        let (address, bytes) = (table.0, PAGE);
        self.event(EventKind::TableFreed { address, bytes });
        // The page freed last is used first, by whichever CPU is next.
        self.world.lock().unwrap().free.push(address);
    }
}

impl Maintenance for Machine {
    fn capabilities(&self) -> &TlbCapabilities {
        &self.can
    }

    fn dsb_ishst(&mut self) {
        self.event(EventKind::Barrier(Barrier::DsbIshst));
    }

    fn dsb_ish(&mut self) {
        self.event(EventKind::Barrier(Barrier::DsbIsh));
    }

    fn isb(&mut self) {
        self.event(EventKind::Barrier(Barrier::Isb));
    }

    fn tlbi(&mut self, op: TlbiOp) {
        let (target, operand) = match op {
            TlbiOp::All => (Target::All, 0),
            TlbiOp::Address {
                operand,
                reach,
                all_asids,
            } => {
                let last_level = reach == Reach::LastLevel;
                let target = Target::Address {
                    last_level,
                    all_asids,
                };
                (target, operand)
            }
            other => unreachable!("no ASIDs here, and no ranges: {other:?}"),
        };
        self.event(EventKind::Tlbi(Tlbi {
            regime: Regime::El10,
            scope: TlbiScope::InnerShareable,
            target,
            operand,
        }));
    }
}

type Tables = PageTables<Page4K, Parts<Machine, Machine, Machine>>;

fn parts(machine: &Machine) -> Parts<Machine, Machine, Machine> {
    Parts {
        memory: machine.clone(),
        allocator: machine.clone(),
        maintenance: machine.clone(),
    }
}

/// 4K pages, 39 bits, the upper half.
fn geometry(features: &CpuFeatures) -> Geometry {
    let geometry = Geometry::new(
        features,
        PageSize::K4,
        39,
        Half::Upper,
        LibraryRegime::El1And0,
    );
    match geometry {
        Ok(geometry) => geometry,
        Err(error) => panic!("{error}"),
    }
}

fn features() -> CpuFeatures {
    CpuFeatures::new(IdRegisters {
        midr: 0x410f_d034,
        mmfr0: 5 | 0b10 << 4 | 1 << 20,
        mmfr1: 0,
        mmfr2: 0,
        isar0: 0,
    })
}

/// The machine with its MMUs on, and its tables.
fn start(fault: Fault) -> (Shared, Tables, Geometry) {
    let features = features();
    let geometry = geometry(&features);
    let model = Model::new(Config {
        cpus: 3,
        ..Config::default()
    });
    let world = Arc::new(Mutex::new(World {
        model,
        free: Vec::new(),
        next: TABLES,
        fault: Fault::None,
    }));
    let mut machine = Machine {
        world: world.clone(),
        cpu: 0,
        can: TlbCapabilities {
            geometry,
            range: false,
            level_hint: false,
            repeat: false,
        },
    };
    let mut tables = match Tables::new(geometry, parts(&machine)) {
        Ok(tables) => tables,
        Err(error) => panic!("{error}"),
    };
    let root = tables.root();
    let (op, address, bytes) = (CacheOp::CleanInvalidateToPoc, root.0, PAGE);
    machine.event(EventKind::Cache { op, address, bytes });
    machine.event(EventKind::Barrier(Barrier::DsbSy));
    let write = |register, value| EventKind::RegisterWrite { register, value };
    for cpu in 0..3 {
        machine.cpu = cpu;
        let all = Tlbi::from_name("vmalle1", 0).map(EventKind::Tlbi);
        for kind in all.into_iter().chain([
            EventKind::Barrier(Barrier::DsbNsh),
            write(Register::MairEl1, Mair::STANDARD.0),
            write(
                Register::TcrEl1,
                Tcr::new(&features, None, Some(&geometry)).0,
            ),
            write(Register::Ttbr1El1, Ttbr::new(&geometry, root, 0).0),
            EventKind::Barrier(Barrier::Isb),
            write(Register::SctlrEl1, 1 | 1 << 2 | 1 << 12),
            EventKind::Barrier(Barrier::Isb),
        ]) {
            machine.event(kind);
        }
    }
    tables.make_live();
    world.lock().unwrap().fault = fault;
    (world, tables, geometry)
}

/// One CPU maps its stretch, uses it, and unmaps it, which gives its tables to whoever is next.
fn change(cpu: u32, tables: &Mutex<Tables>, world: &Shared, geometry: &Geometry) {
    let at = VirtualAddress(geometry.base().0 + u64::from(cpu) * STRETCH);
    let output = PhysicalAddress(OUTPUT + u64::from(cpu) * STRETCH);
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    let lock = || {
        let mut tables = tables.lock().unwrap();
        let environment = tables.environment();
        environment.memory.cpu = cpu;
        environment.allocator.cpu = cpu;
        environment.maintenance.cpu = cpu;
        tables
    };
    for _ in 0..ROUNDS {
        let result = lock().map(at, output, 2 * PAGE, attributes, Leaves::PAGES);
        assert_eq!(result, Ok(()));
        // This CPU uses what it mapped; it has executed the ISB for that.
        let outcomes = world.lock().unwrap().model.access(cpu, at.0, Access::READ);
        let mapped = |one: &Outcome| matches!(one, Outcome::Memory(to) if to.address == output.0);
        let right = world.lock().unwrap().fault == Fault::None;
        assert!(!right || outcomes.iter().all(mapped), "{outcomes:?}");
        let result = lock().unmap(at, 2 * PAGE);
        assert_eq!(result, Ok(()));
    }
}

/// Another CPU walks: what it may find is what the owner maps there, or nothing.
fn walk(world: &Shared, geometry: &Geometry, found: &AtomicU64) {
    for step in 0..30 {
        let owner = step % 2;
        let va = geometry.base().0 + owner * STRETCH + 8;
        let outcomes = world
            .lock()
            .unwrap()
            .model
            .outcomes(WALKER, va, Access::READ);
        if world.lock().unwrap().fault != Fault::None {
            // What may be found then is the model's to say.
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
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(schedules), config).run(move || {
        let (world, tables, geometry) = start(fault);
        let tables = Arc::new(Mutex::new(tables));
        let mut cpus = Vec::new();
        for cpu in 0..2 {
            let (world, tables) = (world.clone(), tables.clone());
            cpus.push(thread::spawn(move || {
                change(cpu, &tables, &world, &geometry);
            }));
        }
        let walker = (world.clone(), found.clone());
        cpus.push(thread::spawn(move || {
            walk(&walker.0, &geometry, &walker.1);
        }));
        for cpu in cpus {
            cpu.join().unwrap();
        }
        let mut world = world.lock().unwrap();
        for cpu in 0..2 {
            let kind = EventKind::Sync;
            assert_eq!(world.model.event(Event { cpu, kind }), Ok(()));
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
    let (broken, found) = play(300, Fault::None);
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
