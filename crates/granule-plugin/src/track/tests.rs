//! Tests of the tracker on memory that a test writes, without QEMU. This file has the machine; the
//! tests are in [`stores`] (the events of stores), [`freed`] (freed tables) and [`states`] (CPUs,
//! levels, security states, guests).

mod freed;
mod states;
mod stores;

use super::*;
use granule_trace::Visibility::{self, Earlier, Exchange, Live, Publish};
use std::cell::RefCell;
use std::rc::Rc;

const RAM: u64 = 0x4000_0000;
const PAGES: u64 = 64;
const ROOT: u64 = RAM + 0x1000;
const L2: u64 = RAM + 0x2000;
const L3: u64 = RAM + 0x3000;
const FRAME: u64 = RAM + 0x10000;

/// A page or table descriptor, and a block's.
const TABLE_BITS: u64 = 3;
const PAGE: u64 = 0x703;
/// 39 bits in the upper half with 4K pages, nothing in the lower.
const TCR: u64 = 25 | 1 << 7 | 25 << 16 | 2 << 30 | 0b101 << 32;

#[derive(Clone, Default)]
struct Words(Rc<RefCell<HashMap<u64, u64>>>);

impl Memory for Words {
    fn load(&self, address: u64, to: &mut [u64]) -> bool {
        let end = RAM + (PAGES << PAGE_SHIFT);
        if address < RAM || address + to.len() as u64 * 8 > end {
            return false;
        }
        let words = self.0.borrow();
        for (index, word) in to.iter_mut().enumerate() {
            *word = words
                .get(&(address + index as u64 * 8))
                .copied()
                .unwrap_or_default();
        }
        true
    }
}

/// A machine whose instructions a test executes one by one.
struct Rig {
    memory: Words,
    marks: &'static Marks,
    tracker: Tracker<'static, Words>,
    by: Origin,
}

impl Rig {
    fn new() -> Self {
        let memory = Words::default();
        let marks: &Marks = Box::leak(Box::new(Marks::new(RAM, PAGES, 2)));
        Self {
            tracker: Tracker::new(memory.clone(), marks, 2),
            memory,
            marks,
            by: Origin { cpu: 0, pc: 0x100 },
        }
    }

    /// Creates a machine with its MMU on: root, second and third level, and one page.
    fn running() -> Self {
        let mut rig = Self::new();
        rig.raw(ROOT, L2 | TABLE_BITS);
        rig.raw(L2, L3 | TABLE_BITS);
        rig.raw(L3, FRAME | PAGE);
        rig.on(TCR);
        rig.tracker.take();
        rig
    }

    /// Creates a machine with a program that waits, whose root has one entry; another program runs.
    fn with_waiting(root: u64, (address, entry): (u64, u64)) -> Self {
        let mut rig = Self::running();
        rig.msr(System::TTBR0_EL1, root | 5 << 48);
        rig.msr(System::TCR_EL1, TCR & !(1 << 7));
        rig.store(address, entry);
        rig.msr(System::TTBR0_EL1, (RAM + 0x7000) | 6 << 48);
        rig.emitted();
        rig
    }

    fn on(&mut self, tcr: u64) {
        self.msr(System::TCR_EL1, tcr);
        self.msr(System::TTBR1_EL1, ROOT);
        self.msr(System::SCTLR_EL1, 0b101);
    }

    /// Changes memory without a callback.
    fn raw(&self, address: u64, value: u64) {
        self.memory.0.borrow_mut().insert(address, value);
    }

    /// Executes a store of the guest, as QEMU's callback reports it.
    fn store(&mut self, address: u64, value: u64) {
        self.store_as(address, value, StoreForm::default());
    }

    fn store_as(&mut self, address: u64, value: u64, form: StoreForm) {
        self.raw(address, value);
        let flags = self.marks.store(self.by.cpu, address);
        if flags & (TABLE | UNMAPPED) != 0 || self.marks.is_uncached(self.by.cpu) {
            let words = Some([value, 0]);
            let bytes = 8;
            self.tracker.store(
                self.by,
                Store {
                    address,
                    bytes,
                    words,
                    form,
                },
            );
        }
    }

    fn barrier(&mut self, barrier: Barrier) {
        if self.marks.barrier(self.by.cpu, barrier) {
            self.tracker.barrier(self.by, barrier);
        }
    }

    fn msr(&mut self, register: System, value: u64) {
        self.tracker.register(self.by, 1, register, value);
    }

    /// Executes a DC ZVA of one line.
    fn zero(&mut self, address: u64) {
        self.marks.store(self.by.cpu, address);
        self.tracker.will_store(self.by, address, LINE, 2048);
        for word in 0..LINE / 8 {
            self.raw(address + word * 8, 0);
        }
    }

    /// Takes the emitted events, in short.
    fn emitted(&mut self) -> Vec<String> {
        let all = self.tracker.take();
        all.map(|(by, seen)| {
            let what = match seen {
                Seen::Event(Event::Store {
                    address,
                    count,
                    descriptor,
                    visibility,
                    ..
                }) => format!("store {address:x} {count} {descriptor:x} {visibility:?}"),
                Seen::Event(Event::Obtained { start, bytes }) => {
                    format!("obtain {start:x} {bytes:x}")
                }
                Seen::Event(Event::Freed { start, bytes }) => format!("free {start:x} {bytes:x}"),
                Seen::Event(Event::System(system, value)) => {
                    format!("{} {value:x}", system.name().unwrap_or("?"))
                }
                Seen::Event(Event::Lines { start, bytes, .. }) => {
                    format!("lines {start:x} {bytes:x}")
                }
                Seen::Event(Event::Barrier(barrier)) => format!("{:?}", barrier.kind),
                Seen::Event(event) => format!("{event:?}"),
                seen => format!("{seen:x?}"),
            };
            format!("cpu{} {what}", by.cpu)
        })
        .collect()
    }
}

/// Describes a store of one entry.
fn stored(address: u64, value: u64) -> String {
    format!("cpu0 store {address:x} 1 {value:x} Live")
}

/// Describes that a table of a page was obtained.
fn obtained(table: u64) -> String {
    format!("cpu0 obtain {table:x} 1000")
}

/// Describes that a table of a page was freed.
fn freed(table: u64) -> String {
    format!("cpu0 free {table:x} 1000")
}

/// Lists the events of a new table with one entry at its beginning.
fn table(base: u64, first: u64, visibility: Visibility) -> [String; 3] {
    [
        obtained(base),
        format!("cpu0 store {base:x} 2 {first:x} {visibility:?}"),
        format!("cpu0 store {:x} 510 0 {visibility:?}", base + 16),
    ]
}
