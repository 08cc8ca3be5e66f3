//! The machine: one event at a time, in an order that the scheduler chooses. What CPUs reach tables
//! by, and how their MMUs are turned on.

use granule::arch::registers::{Mair, Tcr, Ttbr};
use granule::arch::tlbi::{Reach, TlbCapabilities, TlbiOp};
use granule::arch::{CpuFeatures, Descriptor, Geometry, PhysicalAddress};
use granule::table::{BitChange, Maintenance, TableAllocator, TableMemory, TableRun, Visibility};
use granule_model::{
    Barrier, CacheOp, Config, Event, EventKind, Model, Order, Regime, Register, Target, Tlbi,
    TlbiScope,
};
use shuttle::sync::{Arc, Mutex};
use std::sync::atomic::{AtomicU32, Ordering};

const TABLES: u64 = 0x4000_0000;
pub(crate) const PAGE: u64 = 0x1000;

/// TCR.HA and TCR.HD.
const HARDWARE: u64 = 1 << 39 | 1 << 40;

/// What all CPUs share.
pub(crate) struct World {
    pub(crate) model: Model,
    free: Vec<u64>,
    next: u64,
    /// A fault that is planted: these events do not happen.
    pub(crate) left_out: fn(&EventKind) -> bool,
}

pub(crate) type Shared = Arc<Mutex<World>>;

impl World {
    pub(crate) fn event(&mut self, cpu: u32, kind: EventKind) {
        if !(self.left_out)(&kind) {
            assert_eq!(self.model.event(Event { cpu, kind }), Ok(()));
        }
    }
}

/// What a tree's tables are reached by. Clones are of one tree, and so of the CPU that has its lock.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) world: Shared,
    cpu: std::sync::Arc<AtomicU32>,
    can: TlbCapabilities,
}

impl Machine {
    pub(crate) fn new(cpus: u32, geometry: Geometry) -> Self {
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
            can: TlbCapabilities {
                geometry,
                range: false,
                level_hint: false,
                repeat: false,
            },
        }
    }

    /// From now on it is this CPU that changes the tables.
    pub(crate) fn on(&self, cpu: u32) {
        self.cpu.store(cpu, Ordering::Relaxed);
    }

    pub(crate) fn event(&self, kind: EventKind) {
        let cpu = self.cpu.load(Ordering::Relaxed);
        self.world.lock().unwrap().event(cpu, kind);
    }
}

/// Cleans a root and turns the MMU of every CPU on with it.
pub(crate) fn turn_on(
    machine: &Machine,
    features: &CpuFeatures,
    lower: Option<&Geometry>,
    upper: Option<&Geometry>,
    root: PhysicalAddress,
    asid: u16,
) {
    let (op, address, bytes) = (CacheOp::CleanInvalidateToPoc, root.0, PAGE);
    machine.event(EventKind::Cache { op, address, bytes });
    machine.event(EventKind::Barrier(Barrier::DsbSy));
    let write = |register, value| EventKind::RegisterWrite { register, value };
    let cpus = machine.world.lock().unwrap().model.config().cpus;
    let hardware = if lower.is_some() { HARDWARE } else { 0 };
    let ttbr = match (lower, upper) {
        (Some(geometry), _) => (Register::Ttbr0El1, Ttbr::new(geometry, root, asid).0),
        (_, Some(geometry)) => (Register::Ttbr1El1, Ttbr::new(geometry, root, asid).0),
        _ => panic!("a root of neither half"),
    };
    for cpu in 0..cpus {
        machine.on(cpu);
        let all = Tlbi::from_name("vmalle1", 0).map(EventKind::Tlbi);
        for kind in all.into_iter().chain([
            EventKind::Barrier(Barrier::DsbNsh),
            write(Register::MairEl1, Mair::STANDARD.0),
            write(
                Register::TcrEl1,
                Tcr::new(features, lower, upper).0 | hardware,
            ),
            write(ttbr.0, ttbr.1),
            EventKind::Barrier(Barrier::Isb),
            write(Register::SctlrEl1, 1 | 1 << 2 | 1 << 12),
            EventKind::Barrier(Barrier::Isb),
        ]) {
            machine.event(kind);
        }
    }
    machine.on(0);
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
        let address = table.0 + index as u64 * 8;
        let value = descriptor.0;
        let order = match visibility {
            Visibility::Private => Order::Plain,
            _ => Order::Exchange,
        };
        // One step: nobody else has the world in between.
        let mut world = self.world.lock().unwrap();
        let old = world.model.descriptor(address);
        let cpu = self.cpu.load(Ordering::Relaxed);
        world.event(
            cpu,
            EventKind::StoreDescriptor {
                address,
                value,
                order,
            },
        );
        Descriptor(old)
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
            TlbiOp::Asid { operand } => (Target::Asid, operand),
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
            other => unreachable!("no ranges here: {other:?}"),
        };
        self.event(EventKind::Tlbi(Tlbi {
            regime: Regime::El10,
            scope: TlbiScope::InnerShareable,
            target,
            operand,
        }));
    }
}
