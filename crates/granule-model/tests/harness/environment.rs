//! The environment in which the library's tables reach the model: each load, store, barrier and
//! TLBI is an event, for every test program whose CPUs change tables. The program ([`Gate`])
//! decides how events get to the model and which CPU they belong to. Its own environments forward to
//! [`Cpu`], and have pages for tables.

use granule::arch::registers::{Mair, Tcr, Ttbr};
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{CpuFeatures, Descriptor, Geometry, PhysicalAddress, VaRange};
use granule::table::{BitChange, FreedTable, Maintenance, TableEnvironment, Visibility};
use granule_model::{Barrier, Event, System, Visibility as Seen};

/// The way to a machine, on which one CPU is doing something at a time.
pub(crate) trait Gate {
    /// From now on it is this CPU.
    fn on(&self, cpu: u32);
    fn event(&self, kind: Event);
    fn descriptor(&self, address: u64) -> u64;
    /// Stores by the event `store` to `address`, and returns the descriptor of just before: nothing comes
    /// between the two.
    fn exchange(&self, address: u64, store: Event) -> u64;
}

/// TCR.HA and TCR.HD.
const HARDWARE: u64 = 1 << 39 | 1 << 40;

/// TCR of a CPU that walks the half of a geometry alone.
pub(crate) fn tcr(features: &CpuFeatures, geometry: &Geometry, hardware_updates: bool) -> Tcr {
    let (lower, upper) = match geometry.va_range() {
        VaRange::Lower => (Some(geometry), None),
        _ => (None, Some(geometry)),
    };
    let hardware = if hardware_updates { HARDWARE } else { 0 };
    Tcr(Tcr::new(features, lower, upper).0 | hardware)
}

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
    let tcr = tcr(features, geometry, hardware_updates).0;
    // SAFETY: only the model's CPUs get the value, and the tree is made live.
    let ttbr = unsafe { Ttbr::from_root(geometry, root, asid) }.bits();
    let write = |register, value| Event::System(register, value);
    let (op, bytes) = (System::DC_CIVAC, geometry.page_size().bytes());
    let address = root.0;
    world.event(Event::lines(op, address, bytes));
    world.event(Event::Barrier(Barrier::DSB_SY));
    for cpu in 0..cpus {
        world.on(cpu);
        for kind in [
            Event::System(System::VMALLE1, 0),
            Event::Barrier(Barrier::DSB_NSH),
            write(System::MAIR_EL1, Mair::STANDARD.0),
            write(System::TCR_EL1, tcr),
            write(System::TTBR0_EL1, ttbr),
            write(System::TTBR1_EL1, ttbr),
            Event::Barrier(Barrier::ISB),
            write(System::SCTLR_EL1, 1 | 1 << 2 | 1 << 12),
            Event::Barrier(Barrier::ISB),
        ] {
            world.event(kind);
        }
    }
    world.on(0);
}

const fn seen(visibility: Visibility) -> Seen {
    match visibility {
        Visibility::Publish => Seen::Publish,
        _ => Seen::Live,
    }
}

/// The CPU that is doing something: its accesses to tables and its instructions. It has no pages.
pub(crate) struct Cpu<G> {
    pub(crate) world: G,
    pub(crate) can: TlbCapabilities,
}

// SAFETY: every store named becomes one event of the model, which holds the memory.
unsafe impl<G: Gate> TableEnvironment for Cpu<G> {
    const BY_POINTER: bool = false;

    fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        panic!("{table} is reached by a pointer, but the model has its memory")
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        None
    }

    fn free(&mut self, table: FreedTable) {
        panic!("{} is freed, but a CPU has no pages", table.address())
    }

    fn invalidate(&mut self, instruction: Maintenance) {
        self.world.event(match instruction {
            Maintenance::DsbIshst => Event::Barrier(Barrier::DSB_ISHST),
            Maintenance::DsbIsh => Event::Barrier(Barrier::DSB_ISH),
            Maintenance::Isb => Event::Barrier(Barrier::ISB),
            Maintenance::Tlbi(regime, op) => {
                let (encoding, operand) = op.instruction(regime);
                Event::System(System(encoding), operand)
            }
        });
    }

    fn capabilities(&self) -> TlbCapabilities {
        self.can
    }

    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        Descriptor(self.world.descriptor(table.0 + index as u64 * 8))
    }

    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        self.world.event(Event::Store {
            address: table.0 + index as u64 * 8,
            count: 1,
            descriptor: descriptor.0,
            step: 0,
            visibility: seen(visibility),
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
        let store = Event::Store {
            address,
            count: 1,
            descriptor: descriptor.0,
            step: 0,
            visibility: match visibility {
                Visibility::Private => Seen::Live,
                Visibility::Publish => Seen::Publish,
                _ => Seen::Exchange,
            },
        };
        Descriptor(self.world.exchange(address, store))
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
        self.world.event(Event::Store {
            address: table.0 + first as u64 * 8,
            count: count as u32,
            descriptor: descriptor.0,
            step,
            visibility: seen(visibility),
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
        self.world.event(Event::Update {
            address: table.0 + first as u64 * 8,
            count: count as u32,
            change: granule_model::BitChange {
                of: change.of,
                clear: change.clear,
                set: change.set,
            },
            visibility: seen(visibility),
        });
        changed
    }
}
