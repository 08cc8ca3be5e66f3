//! The library's environment on the model: memory, table pages, barriers and TLBIs as events.
//!
//! Every event passes one gate, [`World::event`], where a fault can be planted and other CPUs
//! look at what is going on. Loads go to the model's memory, so a planted store is what the
//! library finds later.

use crate::watch::Watch;
use granule::arch::tlbi::{Reach, TlbCapabilities, TlbiOp};
use granule::arch::{Descriptor, PhysicalAddress};
use granule::table::{
    BitChange, Maintenance, Parts, TableAllocator, TableMemory, TableRun, Visibility,
};
use granule_model::{Barrier, Event, EventKind, Model, Order, Regime, Target, Tlbi, TlbiScope};
use std::cell::RefCell;
use std::rc::Rc;

/// Where table pages begin.
pub(crate) const TABLES: u64 = 0x4000_0000;

/// What becomes of an event: usually itself.
pub(crate) type Tap = Box<dyn FnMut(&Model, EventKind) -> Vec<EventKind>>;

/// What other CPUs do between two events.
pub(crate) type Meanwhile = Box<dyn FnMut(&mut Model)>;

/// The machine, and who is doing something on it.
pub(crate) struct World {
    pub(crate) model: Model,
    pub(crate) cpu: u32,
    pub(crate) tap: Option<Tap>,
    pub(crate) meanwhile: Option<Meanwhile>,
    /// A fault that is planted: exchanges load, and others go on before they store.
    pub(crate) torn_exchange: bool,
    /// Events that the tap did not let pass as they were.
    pub(crate) planted: u64,
    pub(crate) watch: Watch,
    /// Table pages given out and not freed.
    pub(crate) tables: u64,
}

pub(crate) type Shared = Rc<RefCell<World>>;

impl World {
    pub(crate) fn shared(model: Model, seed: u64) -> Shared {
        Rc::new(RefCell::new(Self {
            model,
            cpu: 0,
            tap: None,
            meanwhile: None,
            torn_exchange: false,
            planted: 0,
            watch: Watch::new(seed),
            tables: 0,
        }))
    }

    /// What the descriptor that `store` replaces was just before: what others do comes first.
    fn exchange(&mut self, store: EventKind) -> u64 {
        let EventKind::StoreDescriptor { address, .. } = store else {
            panic!("{store:?} is no exchange");
        };
        let mut meanwhile = self.meanwhile.take();
        let before = self.model.descriptor(address);
        if let Some(meanwhile) = &mut meanwhile {
            meanwhile(&mut self.model);
        }
        let old = if self.torn_exchange {
            before
        } else {
            self.model.descriptor(address)
        };
        self.event(store);
        self.meanwhile = meanwhile;
        old
    }

    pub(crate) fn event(&mut self, kind: EventKind) {
        let Some(tap) = &mut self.tap else {
            return self.pass(kind);
        };
        let instead = tap(&self.model, kind);
        self.planted += u64::from(instead != [kind]);
        for kind in instead {
            self.pass(kind);
        }
    }

    fn pass(&mut self, kind: EventKind) {
        let cpu = self.cpu;
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile(&mut self.model);
        }
        let result = self.model.event(Event { cpu, kind });
        assert_eq!(result, Ok(()), "{kind:?}");
        self.watch.look(&self.model);
    }
}

/// All that tables stand on.
pub(crate) type Machine = Parts<Memory, Pages, Cpu>;

pub(crate) fn machine(world: &Shared, can: TlbCapabilities) -> Machine {
    Parts {
        memory: Memory(Rc::clone(world)),
        allocator: Pages::new(world, can.geometry.page_size().bytes()),
        maintenance: Cpu {
            world: Rc::clone(world),
            can,
        },
    }
}

const fn order(visibility: Visibility) -> Order {
    match visibility {
        Visibility::Publish => Order::Release,
        _ => Order::Plain,
    }
}

/// The memory of tables.
pub(crate) struct Memory(pub(crate) Shared);

// SAFETY: every store named becomes one event of the model, which holds the memory.
unsafe impl TableMemory for Memory {
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        let world = self.0.borrow();
        Descriptor(world.model.descriptor(table.0 + index as u64 * 8))
    }

    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        self.0.borrow_mut().event(EventKind::StoreDescriptor {
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
        let mut world = self.0.borrow_mut();
        let value = descriptor.0;
        let order = match visibility {
            Visibility::Private => Order::Plain,
            _ => Order::Exchange,
        };
        Descriptor(world.exchange(EventKind::StoreDescriptor {
            address,
            value,
            order,
        }))
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
        self.0.borrow_mut().event(EventKind::FillDescriptors {
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
        self.0.borrow_mut().event(EventKind::UpdateDescriptors {
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

/// Gives out table pages: those freed last first, so that too early a reuse shows.
pub(crate) struct Pages {
    world: Shared,
    bytes: u64,
    free: Vec<u64>,
    next: u64,
    /// How many pages are still to be had, for [`reserve`](TableAllocator::reserve).
    pub(crate) left: u64,
}

impl Pages {
    pub(crate) fn new(world: &Shared, bytes: u64) -> Self {
        Self::from(world, bytes, TABLES)
    }

    /// Pages from `next` on.
    pub(crate) fn from(world: &Shared, bytes: u64, next: u64) -> Self {
        Self {
            world: Rc::clone(world),
            bytes,
            free: Vec::new(),
            next,
            left: u64::MAX,
        }
    }
}

impl Pages {
    /// Pages that are to become something else than tables.
    pub(crate) fn take(&mut self, most: usize) -> Option<TableRun> {
        let mut count = 1;
        if self.left == 0 {
            return None;
        }
        let first = self.free.pop().unwrap_or_else(|| {
            // Runs of a few pages, so that tables are linked in runs too.
            count = (most as u64).min(3).min(self.left);
            let first = self.next;
            self.next += count * self.bytes;
            first
        });
        self.left -= count;
        Some(TableRun {
            first: PhysicalAddress(first),
            count: count as usize,
        })
    }
}

// SAFETY: pages come from a counter or were freed, so nobody else has them.
unsafe impl TableAllocator for Pages {
    fn reserve(&mut self, tables: usize) -> bool {
        tables as u64 <= self.left
    }

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let run = self.take(most)?;
        let count = run.count as u64;
        let mut world = self.world.borrow_mut();
        world.tables += count;
        world.event(EventKind::TableObtained {
            address: run.first.0,
            bytes: count * self.bytes,
        });
        Some(run)
    }

    fn free(&mut self, table: PhysicalAddress) {
        self.left = self.left.saturating_add(1);
        self.free.push(table.0);
        let mut world = self.world.borrow_mut();
        world.tables -= 1;
        world.event(EventKind::TableFreed {
            address: table.0,
            bytes: self.bytes,
        });
    }
}

/// The CPU that is doing something.
pub(crate) struct Cpu {
    pub(crate) world: Shared,
    pub(crate) can: TlbCapabilities,
}

impl Cpu {
    fn barrier(&self, barrier: Barrier) {
        self.world.borrow_mut().event(EventKind::Barrier(barrier));
    }
}

impl Maintenance for Cpu {
    fn capabilities(&self) -> &TlbCapabilities {
        &self.can
    }

    fn dsb_ishst(&mut self) {
        self.barrier(Barrier::DsbIshst);
    }

    fn dsb_ish(&mut self) {
        self.barrier(Barrier::DsbIsh);
    }

    fn isb(&mut self) {
        self.barrier(Barrier::Isb);
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
        self.world.borrow_mut().event(EventKind::Tlbi(Tlbi {
            regime: Regime::El10,
            scope: TlbiScope::InnerShareable,
            target,
            operand,
        }));
    }
}
