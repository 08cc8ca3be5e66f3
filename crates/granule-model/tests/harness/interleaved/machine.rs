//! The machine: one event at a time, in an order that the scheduler chooses, and table pages on it.

use crate::environment::{Cpu, Gate};
use granule::arch::PhysicalAddress;
use granule::arch::tlbi::TlbCapabilities;
use granule::forward;
use granule::table::{FreedTable, Reservation, TableEnvironment};
use granule_model::{Barrier, Config, Event, Model, System};
use shuttle::Runner;
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Mutex};
use std::sync::atomic::{AtomicU32, Ordering};

const TABLES: u64 = 0x4000_0000;
pub(crate) const PAGE: u64 = 0x1000;

/// The step that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Tlbi,
    Completion,
    /// Of a CPU that goes to the program of another page size.
    SwitchTlbi,
}

impl Fault {
    pub(super) fn leaves_out(self) -> fn(&Event) -> bool {
        match self {
            Self::None => |_| false,
            Self::Tlbi => {
                |kind| matches!(kind, Event::System(op, _) if op.is_tlbi() && matches!(op.crm(), 2 | 3))
            }
            Self::SwitchTlbi => |kind| matches!(kind, Event::System(System::VMALLE1, _)),
            Self::Completion => |kind| matches!(kind, Event::Barrier(Barrier::DSB_ISH)),
        }
    }
}

pub(super) fn interleave(schedules: usize, play: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(schedules), config).run(play);
}

/// The state that all CPUs share.
pub(crate) struct World {
    pub(crate) model: Model,
    free: Vec<u64>,
    next: u64,
    /// A fault that is planted: these events do not happen.
    pub(crate) left_out: fn(&Event) -> bool,
}

pub(crate) type Shared = Arc<Mutex<World>>;

impl World {
    pub(crate) fn event(&mut self, cpu: u32, kind: Event) {
        if !(self.left_out)(&kind) {
            assert_eq!(self.model.event(cpu, kind), Ok(()));
        }
    }
}

/// The way to the world for a tree's tables. Clones are of one tree, and so of the CPU that has its
/// lock.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) world: Shared,
    cpu: std::sync::Arc<AtomicU32>,
    can: TlbCapabilities,
}

impl Machine {
    pub(crate) fn new(cpus: u32) -> Self {
        let model = Model::new(Config {
            cpus,
            ..Config::default()
        });
        let world = World {
            model,
            free: Vec::new(),
            next: TABLES,
            left_out: |_| false,
        };
        Self {
            world: Arc::new(Mutex::new(world)),
            cpu: std::sync::Arc::default(),
            can: TlbCapabilities::BASIC,
        }
    }

    /// All that a tree stands on.
    pub(crate) fn parts(&self) -> Environment {
        Environment(Cpu {
            world: self.clone(),
            can: self.can,
        })
    }
}

/// The environment of a tree's tables.
pub(crate) struct Environment(Cpu<Machine>);

impl Environment {
    /// From now on it is this CPU.
    pub(crate) fn on(&self, cpu: u32) {
        self.0.world.on(cpu);
    }
}

impl Gate for Machine {
    fn on(&self, cpu: u32) {
        self.cpu.store(cpu, Ordering::Relaxed);
    }

    fn event(&self, kind: Event) {
        let cpu = self.cpu.load(Ordering::Relaxed);
        self.world.lock().unwrap().event(cpu, kind);
    }

    fn descriptor(&self, address: u64) -> u64 {
        self.world.lock().unwrap().model.descriptor(address)
    }

    fn exchange(&self, address: u64, store: Event) -> u64 {
        // One step: nobody else has the world in between.
        let mut world = self.world.lock().unwrap();
        let old = world.model.descriptor(address);
        let cpu = self.cpu.load(Ordering::Relaxed);
        world.event(cpu, store);
        old
    }
}

// The list of pages is the world's, so that others run between taking a page and the event of it,
// and between two trees that take one; the harness's pages are one tree's at a time.
//
// SAFETY: pages come from a counter or were freed, so nobody else has them.
unsafe impl TableEnvironment for Environment {
    forward!(self.0: reach load find_unlike store exchange fill update update_alike);
    forward!(self.0: capabilities invalidate);

    fn reserve(&mut self, _: usize) -> Reservation {
        Reservation::Granted
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        let machine = &self.0.world;
        let mut world = machine.world.lock().unwrap();
        let address = match world.free.pop() {
            Some(page) => page,
            None => {
                world.next += PAGE;
                world.next - PAGE
            }
        };
        drop(world);
        let bytes = PAGE;
        machine.event(Event::obtained(address, bytes));
        Some(PhysicalAddress(address))
    }

    fn free(&mut self, table: FreedTable) {
        let machine = &self.0.world;
        let (address, bytes) = (table.address().0, PAGE);
        machine.event(Event::freed(address, bytes));
        // The page freed last is used first, by whichever CPU is next.
        machine.world.lock().unwrap().free.push(address);
    }
}
