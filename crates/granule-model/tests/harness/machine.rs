//! The machine of the harness, and table pages on it.
//!
//! Every event passes one gate, [`World::event`], where a fault can be planted and other CPUs
//! look at what is going on. Loads go to the model's memory, so a planted store is what the
//! library finds later.

pub(crate) use crate::environment::Cpu;
use crate::environment::Gate;
use crate::watch::Watch;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{PageSize, PhysicalAddress};
use granule::forward;
use granule::table::{FreedTable, Reservation, TableEnvironment, TableRun};
use granule_model::{Event, Model};
use std::cell::RefCell;
use std::rc::Rc;

/// Where table pages begin.
pub(crate) const TABLES: u64 = 0x4000_0000;

/// Replaces an event: usually by itself.
pub(crate) type Tap = Box<dyn FnMut(&Model, Event) -> Vec<Event>>;

/// The actions of other CPUs between two events.
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

    /// Stores, and returns the descriptor of just before: what others do comes first.
    fn exchange(&mut self, address: u64, store: Event) -> u64 {
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

    pub(crate) fn event(&mut self, kind: Event) {
        let Some(tap) = &mut self.tap else {
            return self.pass(kind);
        };
        let instead = tap(&self.model, kind);
        self.planted += u64::from(instead != [kind]);
        for kind in instead {
            self.pass(kind);
        }
    }

    fn pass(&mut self, kind: Event) {
        let cpu = self.cpu;
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile(&mut self.model);
        }
        let result = self.model.event(cpu, kind);
        assert_eq!(result, Ok(()), "{kind:?}");
        self.watch.look(&self.model);
    }
}

impl Gate for Shared {
    fn on(&self, cpu: u32) {
        self.borrow_mut().cpu = cpu;
    }

    fn event(&self, kind: Event) {
        self.borrow_mut().event(kind);
    }

    fn descriptor(&self, address: u64) -> u64 {
        self.borrow().model.descriptor(address)
    }

    fn exchange(&self, address: u64, store: Event) -> u64 {
        self.borrow_mut().exchange(address, store)
    }
}

/// All that tables stand on.
pub(crate) struct Machine {
    pub(crate) pages: SharedPages,
    cpu: Cpu<Shared>,
}

impl Machine {
    /// A CPU of the world, with table pages that others may share.
    pub(crate) fn new(world: &Shared, pages: SharedPages, can: TlbCapabilities) -> Self {
        let world = Rc::clone(world);
        let cpu = Cpu { world, can };
        Self { pages, cpu }
    }
}

pub(crate) fn machine(world: &Shared, page_size: PageSize, can: TlbCapabilities) -> Machine {
    Machine::new(world, Pages::new(world, page_size.bytes()), can)
}

// SAFETY: pages come from a counter or were freed, so nobody else has them. The CPU reaches the model's
// memory, which is everywhere.
unsafe impl TableEnvironment for Machine {
    forward!(self.cpu: reach load find_unlike store exchange fill update update_alike);
    forward!(self.cpu: capabilities invalidate);

    fn reserve(&mut self, tables: usize) -> Reservation {
        self.pages.borrow().reserve(tables)
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.pages.borrow_mut().allocate()
    }

    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        self.pages.borrow_mut().allocate_run(most)
    }

    fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        self.pages.borrow_mut().allocate_aligned(count)
    }

    fn free(&mut self, table: FreedTable) {
        self.pages.borrow_mut().free(table);
    }
}

/// Gives out table pages: those freed last first, so that too early a reuse shows.
pub(crate) struct Pages {
    world: Shared,
    bytes: u64,
    free: Vec<u64>,
    next: u64,
    /// The number of pages that are left, for [`reserve`](Self::reserve).
    pub(crate) left: u64,
    /// Whether pages can be reserved. If not, trees hold them.
    pub(crate) reserves: bool,
}

/// Table pages that several trees may have from one place.
pub(crate) type SharedPages = Rc<RefCell<Pages>>;

impl Pages {
    pub(crate) fn new(world: &Shared, bytes: u64) -> SharedPages {
        Self::from(world, bytes, TABLES)
    }

    pub(crate) fn from(world: &Shared, bytes: u64, next: u64) -> SharedPages {
        Rc::new(RefCell::new(Self {
            world: Rc::clone(world),
            bytes,
            free: Vec::new(),
            next,
            left: u64::MAX,
            reserves: true,
        }))
    }

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

    pub(crate) fn reserve(&self, tables: usize) -> Reservation {
        if !self.reserves {
            Reservation::Unsupported
        } else if tables as u64 <= self.left {
            Reservation::Granted
        } else {
            Reservation::Refused
        }
    }

    pub(crate) fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.allocate_run(1).map(|run| run.first)
    }

    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        let run = self.take(most)?;
        let count = run.count as u64;
        let mut world = self.world.borrow_mut();
        world.tables += count;
        world.event(Event::obtained(run.first.0, count * self.bytes));
        Some(run)
    }

    fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        let bytes = count as u64 * self.bytes;
        self.left = self.left.checked_sub(count as u64)?;
        let first = self.next.next_multiple_of(bytes);
        self.next = first + bytes;
        let mut world = self.world.borrow_mut();
        world.tables += count as u64;
        world.event(Event::obtained(first, bytes));
        Some(PhysicalAddress(first))
    }

    fn free(&mut self, table: FreedTable) {
        self.left = self.left.saturating_add(1);
        self.free.push(table.address().0);
        let mut world = self.world.borrow_mut();
        world.tables -= 1;
        world.event(Event::freed(table.address().0, self.bytes));
    }
}
