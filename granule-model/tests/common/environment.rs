//! What the library's tables are reached by on the model: each load, store, barrier and TLBI is an
//! event of it, for every program of tests whose CPUs change tables. How events get to the model, and
//! which CPU they are of, is the program's ([`Gate`]), and so is who gives out pages for tables.

use granule::arch::registers::{Mair, Tcr, Ttbr};
use granule::arch::tlbi::{Reach, TlbCapabilities, TlbiOp};
use granule::arch::{CpuFeatures, Descriptor, Geometry, Half, PhysicalAddress};
use granule::table::{BitChange, Maintenance, TableMemory, Visibility};
use granule_model::{
    Barrier, CacheOp, EventKind, Order, Regime, Register, Target, Tlbi, TlbiScope,
};

/// The way to a machine, on which one CPU is doing something at a time.
pub(crate) trait Gate {
    /// From now on it is this CPU.
    fn on(&self, cpu: u32);
    fn event(&self, kind: EventKind);
    /// What memory holds at an address.
    fn descriptor(&self, address: u64) -> u64;
    /// The event `store`, which is one to `address`, and what that held just before: nothing comes
    /// between the two.
    fn exchange(&self, address: u64, store: EventKind) -> u64;
}

/// TCR.HA and TCR.HD.
const HARDWARE: u64 = 1 << 39 | 1 << 40;

/// Cleans a root and turns the MMU of every CPU on with it, for its half alone.
pub(crate) fn turn_on(
    world: &impl Gate,
    cpus: u32,
    features: &CpuFeatures,
    geometry: &Geometry,
    root: PhysicalAddress,
    asid: u16,
    hardware_updates: bool,
) {
    let (lower, upper) = match geometry.half() {
        Half::Lower => (Some(geometry), None),
        _ => (None, Some(geometry)),
    };
    let hardware = if hardware_updates { HARDWARE } else { 0 };
    let tcr = Tcr::new(features, lower, upper).0 | hardware;
    let ttbr = Ttbr::new(geometry, root, asid).0;
    let write = |register, value| EventKind::RegisterWrite { register, value };
    let (op, bytes) = (CacheOp::CleanInvalidateToPoc, geometry.page_size().bytes());
    let address = root.0;
    world.event(EventKind::Cache { op, address, bytes });
    world.event(EventKind::Barrier(Barrier::DsbSy));
    for cpu in 0..cpus {
        world.on(cpu);
        let all = Tlbi::from_name("vmalle1", 0).map(EventKind::Tlbi);
        for kind in all.into_iter().chain([
            EventKind::Barrier(Barrier::DsbNsh),
            write(Register::MairEl1, Mair::STANDARD.0),
            write(Register::TcrEl1, tcr),
            write(Register::Ttbr0El1, ttbr),
            write(Register::Ttbr1El1, ttbr),
            EventKind::Barrier(Barrier::Isb),
            write(Register::SctlrEl1, 1 | 1 << 2 | 1 << 12),
            EventKind::Barrier(Barrier::Isb),
        ]) {
            world.event(kind);
        }
    }
    world.on(0);
}

const fn order(visibility: Visibility) -> Order {
    match visibility {
        Visibility::Publish => Order::Release,
        _ => Order::Plain,
    }
}

/// The memory of tables.
pub(crate) struct Memory<G>(pub(crate) G);

// SAFETY: every store named becomes one event of the model, which holds the memory.
unsafe impl<G: Gate> TableMemory for Memory<G> {
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        Descriptor(self.0.descriptor(table.0 + index as u64 * 8))
    }

    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        self.0.event(EventKind::StoreDescriptor {
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
        let store = EventKind::StoreDescriptor {
            address,
            value: descriptor.0,
            order: match visibility {
                Visibility::Private => Order::Plain,
                _ => Order::Exchange,
            },
        };
        Descriptor(self.0.exchange(address, store))
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
        self.0.event(EventKind::FillDescriptors {
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
        let changed = (first..first + count)
            // SAFETY: the caller vouches for these entries.
            .filter(|&index| change.concerns(unsafe { self.load(table, index) }))
            .count();
        self.0.event(EventKind::UpdateDescriptors {
            address: table.0 + first as u64 * 8,
            count: count as u64,
            of: change.of,
            clear: change.clear,
            set: change.set,
            order: order(visibility),
        });
        changed
    }
}

/// The CPU that is doing something.
pub(crate) struct Cpu<G> {
    pub(crate) world: G,
    pub(crate) can: TlbCapabilities,
}

impl<G: Gate> Maintenance for Cpu<G> {
    fn capabilities(&self) -> &TlbCapabilities {
        &self.can
    }

    fn dsb_ishst(&mut self) {
        self.world.event(EventKind::Barrier(Barrier::DsbIshst));
    }

    fn dsb_ish(&mut self) {
        self.world.event(EventKind::Barrier(Barrier::DsbIsh));
    }

    fn isb(&mut self) {
        self.world.event(EventKind::Barrier(Barrier::Isb));
    }

    fn tlbi(&mut self, op: TlbiOp) {
        let (target, operand) = match op {
            TlbiOp::All => (Target::All, 0),
            TlbiOp::Asid { operand } => (Target::Asid, operand),
            TlbiOp::Address {
                operand,
                reach,
                all_asids,
            } => (
                Target::Address {
                    last_level: reach == Reach::LastLevel,
                    all_asids,
                },
                operand,
            ),
            TlbiOp::Range {
                operand,
                reach,
                all_asids,
            } => (
                Target::Range {
                    last_level: reach == Reach::LastLevel,
                    all_asids,
                },
                operand,
            ),
            other => panic!("the model does not know {other:?}"),
        };
        self.world.event(EventKind::Tlbi(Tlbi {
            regime: Regime::El10,
            scope: TlbiScope::InnerShareable,
            target,
            operand,
        }));
    }
}
