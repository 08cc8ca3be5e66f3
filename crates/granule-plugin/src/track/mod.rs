//! Tracks a system's translation tables by the instructions that its CPUs execute.
//!
//! [`Tracker`] keeps the set of tables. A page becomes a table when a TTBR or a table descriptor
//! leads to it, and its contents are reported then. It stops being one when it is stored to while
//! nothing leads to it. Everything here is independent of QEMU; the caller decodes, reads
//! registers, and passes the CPU and the address of the instruction to each call.
//!
//! - The contents of a page that becomes a table are emitted at that moment: with ORDER `earlier` where the
//!   stamp shows a barrier after the last store to the page, and as plain stores of the CPU that made them
//!   where it does not. So a table that is linked without a barrier is found, although nothing marked it as a
//!   table before. Tables smaller than a page are ranges.
//! - A page stays a table until it is stored to, while nothing leads to it, with a value that taking a tree
//!   apart does not store. A top table that a TTBR led to stays one while descriptors are stored to it,
//!   because a program that waits has no TTBR.
//! - Each CPU's TCR at its write of TTBR fixes the size of the tree's tables; while EPD0 is set nothing is
//!   walked. An empty root that CPUs walk with several page sizes is given back when no CPU walks it.
//! - Barriers are emitted only where they change something: not after an equal or stronger one of the same
//!   CPU with no event between. Exceptions and their returns are emitted as ISBs are.
//! - Hardware's updates of a table are emitted with the next store to it, and at the end.
//! - The order of events of one CPU is exact. Among CPUs it is the order in which they took the lock, which
//!   is close to the order of their instructions and not always the same.

mod barriers;
mod geometry;
mod link;
mod marks;
mod registers;
mod store;
mod tables;
mod walk;

pub use geometry::{Entry, Form, TablePlace};
pub use marks::{LastStore, Marks, PAGE_SHIFT, TABLE, UNMAPPED};
pub use walk::Translation;

use crate::decode::{SCR_EL3, SCTLR_EL12, StoreForm, unmodelled};
use crate::stream::Seen;
use granule_trace::{Barrier, Event, System, Text};
use registers::{Registers, SLOTS};
use std::collections::{BTreeSet, HashMap};
use tables::{TableId, Tables};

/// The current contents of guest memory.
pub trait Memory {
    /// Loads the 64-bit words from a physical address on. Returns whether all of them are memory.
    fn load(&self, address: u64, to: &mut [u64]) -> bool;
}

/// A CPU and the address of its instruction: the origin of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The CPU.
    pub cpu: u16,
    /// The virtual address of the instruction.
    pub pc: u64,
}

/// A store of up to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// The physical address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u8,
    /// The value, if it is of whole words; otherwise it is loaded from memory.
    pub words: Option<[u64; 2]>,
    /// The form of the store.
    pub form: StoreForm,
}

/// The registers of a CPU, and its events that are not emitted yet.
#[derive(Debug, Default)]
struct Cpu {
    registers: Registers,
    /// The top tables that the CPU may walk.
    roots: [Option<TableId>; SLOTS],
    /// Data cache operations on adjacent lines, which are emitted as one event.
    lines: Option<Lines>,
    /// Memory that an instruction stores to after its call here; checked at the next call.
    stored_later: Vec<(Origin, u64, u64)>,
    /// The virtual page that was translated last, and its physical address.
    translated: Option<(u64, u64)>,
    /// The task that was emitted last.
    task: u64,
    /// Whether its caches were enabled since its reset.
    has_cached: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lines {
    by: Origin,
    op: System,
    start: u64,
    bytes: u64,
}

/// Stores to a table that are reported late, when something leads to the table.
#[derive(Clone, Copy, Debug, Default)]
struct Late {
    /// Some bypassed the caches and were completed by a DSB, which a trace can only express by a
    /// DSB after them.
    completed: bool,
    /// Some were not completed.
    others: bool,
}

/// The assumed size of a cache line; the smallest of QEMU's CPUs is half of it.
const LINE: u64 = 64;

/// The state of a system's translation.
#[derive(Debug)]
pub struct Tracker<'m, M> {
    memory: M,
    marks: &'m Marks,
    cpus: Vec<Cpu>,
    tables: Tables,
    /// Lines that were stored to past the caches and not maintained since: a bit for each line of a
    /// page of 4 KiB.
    uncached: HashMap<u64, u64>,
    /// The late stores to the tables that are linked now.
    late: Late,
    /// Whether some CPU lets hardware change descriptors.
    hardware_updates: bool,
    /// The names of what events cannot express, each reported once.
    missing: BTreeSet<&'static str>,
    out: Vec<(Origin, Seen)>,
}

impl<'m, M: Memory> Tracker<'m, M> {
    /// Creates a tracker for a machine that was just switched on.
    pub fn new(memory: M, marks: &'m Marks, cpus: u16) -> Self {
        Self {
            memory,
            marks,
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            tables: Tables::default(),
            uncached: HashMap::new(),
            late: Late::default(),
            hardware_updates: false,
            missing: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    /// Takes the events since the last call, in order.
    pub fn take(&mut self) -> std::vec::Drain<'_, (Origin, Seen)> {
        self.out.drain(..)
    }

    /// Returns the approximate size of the copies of tables: 8 bytes for each entry of the guest's.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.tables.bytes()
    }

    /// Reports something that events cannot express, once for each name.
    pub fn miss(&mut self, by: Origin, what: &'static str) {
        if self.missing.insert(what) {
            let what = Text::new(what.as_bytes());
            self.out.push((by, Seen::Event(Event::Missing(what))));
        }
    }

    fn cpu(&mut self, cpu: u16) -> Option<&mut Cpu> {
        self.cpus.get_mut(usize::from(cpu))
    }

    fn emit(&mut self, by: Origin, event: Event) {
        self.flush_lines(by.cpu);
        self.marks.note_event(by.cpu);
        self.name_task(by);
        if matches!(event, Event::Store { .. }) {
            self.marks.note_table_store();
        }
        self.out.push((by, Seen::Event(event)));
    }

    /// Emits the task that a CPU's kernel runs, if it is another one than at the CPU's last event.
    fn name_task(&mut self, by: Origin) {
        let task = self.marks.task(by.cpu);
        if let Some(cpu) = self.cpu(by.cpu)
            && std::mem::replace(&mut cpu.task, task) != task
        {
            self.out
                .push((by, Seen::Event(Event::System(System::SP_EL0, task))));
        }
    }

    /// Checks the memory that the previous instruction of a CPU stored to. The handler of each
    /// instruction calls it first.
    fn begin(&mut self, by: Origin) {
        let Some(cpu) = self.cpu(by.cpu) else { return };
        for (by, address, bytes) in std::mem::take(&mut cpu.stored_later) {
            self.check_stored(by, address, bytes);
        }
    }

    /// Emits a barrier for which [`Marks::barrier`] returned true.
    pub fn barrier(&mut self, by: Origin, barrier: Barrier) {
        self.begin(by);
        self.flush_lines(by.cpu);
        self.out.push((by, Seen::Event(Event::Barrier(barrier))));
    }

    /// Emits an exception or the return from one, at which [`Marks::barrier`] returned true for an
    /// ISB.
    pub fn synchronised(&mut self, by: Origin) {
        self.begin(by);
        self.flush_lines(by.cpu);
        self.out.push((by, Seen::Exception));
    }

    /// Emits an ERET at an exception level, to EL0 by EL1's registers, or to a level below EL2.
    pub fn returned(&mut self, by: Origin, level: u8) {
        self.begin(by);
        self.flush_lines(by.cpu);
        // A hypervisor also writes the SPSR_EL1 of its guest, and returns to itself.
        let to_guest = level == 2 && self.marks.goes_to_guest(by.cpu);
        let goes_on = self.cpu(by.cpu).is_some_and(|cpu| {
            cpu.registers.is_kernel(level) || to_guest && cpu.registers.is_guest(1)
        });
        let seen = if goes_on {
            self.name_task(by);
            Seen::Event(Event::User)
        } else {
            Seen::Exception
        };
        self.out.push((by, seen));
    }

    /// Emits a TLBI or IC.
    pub fn invalidated(&mut self, by: Origin, el: u8, op: System, operand: u64) {
        self.begin(by);
        if let Some(cpu) = self.cpu(by.cpu) {
            cpu.translated = None;
            if cpu.registers.is_guest(el) {
                return self.miss(by, "a guest's own tables");
            }
        }
        self.emit(by, Event::System(op, operand));
    }

    /// Tracks a DC by virtual address.
    pub fn maintained(&mut self, by: Origin, el: u8, op: System, va: u64) {
        self.begin(by);
        let Some(address) = self.translate(by.cpu, el, va) else {
            return;
        };
        let start = address & !(LINE - 1);
        let page = start >> PAGE_SHIFT;
        if op != System::DC_CVAU
            && let Some(lines) = self.uncached.get_mut(&page)
        {
            *lines &= !(1 << (start % (1 << PAGE_SHIFT) / LINE));
            if *lines == 0 {
                self.uncached.remove(&page);
            }
        }
        if self.marks.flags(start) & TABLE == 0 {
            return;
        }
        if let Some(lines) = self.cpu(by.cpu).and_then(|cpu| cpu.lines.as_mut())
            && lines.op == op
            && start <= lines.start + lines.bytes
            && start >= lines.start
        {
            lines.bytes = lines.bytes.max(start + LINE - lines.start);
            return;
        }
        self.flush_lines(by.cpu);
        self.marks.note_event(by.cpu);
        if let Some(cpu) = self.cpu(by.cpu) {
            let bytes = LINE;
            cpu.lines = Some(Lines {
                by,
                op,
                start,
                bytes,
            });
        }
    }

    /// Tracks a DC ISW. It loses nothing unless the CPU's caches were enabled; then the CPU's
    /// stores may be lost.
    pub fn dropped(&mut self, by: Origin) {
        self.begin(by);
        if self.cpu(by.cpu).is_some_and(|cpu| cpu.has_cached) {
            self.miss(by, "dc isw of caches in use");
        }
    }

    fn flush_lines(&mut self, cpu: u16) {
        let lines = self.cpu(cpu).and_then(|cpu| cpu.lines.take());
        if let Some(Lines {
            by,
            op,
            start,
            bytes,
        }) = lines
        {
            let instruction = op;
            let event = Event::lines(instruction, start, bytes);
            self.out.push((by, Seen::Event(event)));
        }
    }

    /// Tracks an MSR.
    pub fn register(&mut self, by: Origin, el: u8, register: System, value: u64) {
        self.begin(by);
        let index = usize::from(by.cpu);
        let Some(cpu) = self.cpus.get_mut(index) else {
            return;
        };
        cpu.translated = None;
        if cpu.registers.is_guest(el) || cpu.registers.is_of_guest(register) {
            return self.miss(by, "a guest's own tables");
        }
        if let Some(name) = unmodelled(register) {
            // Tables that are not walked change nothing.
            let is_off = register == SCTLR_EL12 && value & 1 == 0;
            if value != 0 && !is_off {
                self.miss(by, name);
            }
            return;
        }
        let changes_state = register == SCR_EL3 && cpu.registers.changes_state(value);
        if !cpu.registers.set(register, value) {
            if changes_state {
                self.miss(by, "two security states");
            }
            return;
        }
        let places = cpu.registers.roots();
        let unchecked = cpu.registers.unchecked_half();
        let uncached = cpu.registers.is_uncached();
        cpu.has_cached |= !uncached;
        self.hardware_updates |= cpu.registers.hardware_updates();
        self.marks.set_uncached(by.cpu, uncached);
        if let Some(what) = unchecked {
            self.miss(by, what);
        }
        self.late = Late::default();
        self.begin_anew(by, places);
        let before = self.move_roots(by, places);
        self.emit_late_barrier(by);
        self.emit(by, Event::System(register, value));
        for id in before {
            self.leave(id);
        }
    }

    /// Emits the barrier that completed the late stores, if all of them were completed.
    fn emit_late_barrier(&mut self, by: Origin) {
        if self.late.completed && !self.late.others {
            self.emit(by, Event::Barrier(Barrier::DSB_ST));
        }
    }

    /// Frees all tables if a CPU enables translation while no CPU walks any: they are of the
    /// previous kernel, or of firmware. They stay if the CPU uses one of them again.
    fn begin_anew(&mut self, by: Origin, places: [Option<TablePlace>; SLOTS]) {
        let walks = self
            .cpus
            .iter()
            .any(|cpu| cpu.roots.iter().any(Option::is_some));
        let mut places = places.into_iter().flatten().peekable();
        if !walks && places.peek().is_some() && !places.any(|place| self.tables.has(place)) {
            self.free_all(by);
        }
    }

    /// Links the top tables that a CPU may walk from now on. Returns those that it leaves.
    fn move_roots(&mut self, by: Origin, places: [Option<TablePlace>; SLOTS]) -> Vec<TableId> {
        let mut left = Vec::new();
        for (slot, place) in places.into_iter().enumerate() {
            let index = usize::from(by.cpu);
            let old = self.cpus.get(index).and_then(|cpu| cpu.roots[slot]);
            let same = old.and_then(|id| self.tables.place(id)) == place;
            if same {
                continue;
            }
            let new = place.and_then(|place| self.link_root(by, place));
            if let Some(cpu) = self.cpus.get_mut(index) {
                cpu.roots[slot] = new;
            }
            left.extend(old);
        }
        left
    }

    /// Tracks that a CPU was switched off or reset.
    pub fn reset(&mut self, by: Origin) {
        self.begin(by);
        let Some(cpu) = self.cpu(by.cpu) else { return };
        let roots = std::mem::take(&mut cpu.roots);
        cpu.registers = Registers::default();
        cpu.translated = None;
        cpu.has_cached = false;
        self.marks.set_uncached(by.cpu, true);
        self.emit(by, Event::Reset);
        if let Some(cpu) = self.cpu(by.cpu) {
            cpu.task = 0;
        }
        for id in roots.into_iter().flatten() {
            self.leave(id);
        }
    }

    /// Returns the vectors of the exception levels 1 to 3 of a CPU, where they were set.
    #[must_use]
    pub fn vectors(&self, cpu: u16) -> [Option<u64>; 3] {
        let cpu = self.cpus.get(usize::from(cpu));
        cpu.map_or([None; 3], |cpu| cpu.registers.vectors)
    }

    /// Emits all pending events at the end of the machine.
    pub fn finish(&mut self) {
        for number in 0..self.cpus.len() {
            let cpu = number as u16;
            let by = Origin { cpu, pc: 0 };
            self.begin(by);
            self.flush_lines(cpu);
        }
        self.look_for_hardware_updates_everywhere();
    }
}

#[cfg(test)]
mod tests;
