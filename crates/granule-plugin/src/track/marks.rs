//! Marks of each page of guest memory: whether a store to it is relevant, and its last store.
//!
//! Every store of the guest comes here first, from all CPUs at once and without a lock, so this is
//! a few relaxed accesses. The lock of the tracker orders everything that follows from them.

use super::barriers::{ANY, ISB, USER, kind};
use crate::decode::{SPSR_EL1, SPSR_EL2, is_below_el2, is_user};
use granule_trace::{Barrier, BarrierKind, System};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};

/// The bits of the smallest page size, in which pages are counted.
pub const PAGE_SHIFT: u32 = 12;

/// A page holds (part of) a table.
pub const TABLE: u8 = 1 << 0;
/// A mapping of the page was removed.
pub const UNMAPPED: u8 = 1 << 1;

/// The marks of guest memory.
#[derive(Debug)]
pub struct Marks {
    first: u64,
    flags: Box<[AtomicU8]>,
    stamps: Box<[AtomicU64]>,
    /// The last DC ZVA or SET of zeros to each page, as in `stamps`.
    cleared: Box<[AtomicU64]>,
    cpus: Box<[CpuMarks]>,
    table_stores: TableStores,
}

/// The number of emitted stores to tables, of all CPUs. It has a cache line of its own, because
/// every store of the guest reads the neighbouring data.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TableStores(AtomicU64);

/// The recent history of a CPU, which only the CPU itself changes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CpuMarks {
    /// DMBs and DSBs that order stores.
    ordered: AtomicU64,
    /// DSBs.
    completed: AtomicU64,
    /// The stamp for stores from now on.
    stamp: AtomicU64,
    /// The value of `table_stores` at the last DSB that is not local.
    stores_at_dsb: AtomicU64,
    /// The kinds of barriers that would still have an effect: a bit each, as in [`kind`].
    open: AtomicU16,
    /// Whether stores of the CPU bypass its data cache.
    uncached: AtomicBool,
    /// Whether an ERET of EL1 goes to EL0, by the last value written to SPSR_EL1.
    to_user: AtomicBool,
    /// Whether an ERET of EL2 goes to EL1 or EL0, by the last value written to SPSR_EL2.
    to_guest: AtomicBool,
    /// The last task that SP_EL0 named.
    task: AtomicU64,
    /// Whether its entry to EL0 or to a guest was emitted.
    in_user: AtomicBool,
}

/// The last store to a page, and the barriers of its CPU since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastStore {
    /// The CPU; `None` if no store was seen.
    pub cpu: Option<u16>,
    /// Whether a barrier orders it before later accesses of its CPU.
    pub ordered: bool,
    /// Whether a DSB completed it.
    pub completed: bool,
}

const CPU: u32 = 48;
const COMPLETED: u32 = 24;
const FIELD: u64 = (1 << 24) - 1;
const STORED: u64 = 1 << 63;

impl Marks {
    /// Creates the marks of `pages` pages from the physical address `base` on.
    #[must_use]
    pub fn new(base: u64, pages: u64, cpus: u16) -> Self {
        let cpus: Box<[CpuMarks]> = (0..cpus).map(|_| CpuMarks::default()).collect();
        for (number, cpu) in cpus.iter().enumerate() {
            cpu.stamp.store(STORED | (number as u64) << CPU, Relaxed);
            cpu.uncached.store(true, Relaxed);
        }
        Self {
            first: base >> PAGE_SHIFT,
            flags: (0..pages).map(|_| AtomicU8::new(0)).collect(),
            stamps: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            cleared: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            cpus,
            table_stores: TableStores::default(),
        }
    }

    fn index(&self, address: u64) -> usize {
        // An address below the first page becomes a number that no page has.
        (address >> PAGE_SHIFT).wrapping_sub(self.first) as usize
    }

    /// Returns whether an address is in the memory.
    #[must_use]
    pub fn has(&self, address: u64) -> bool {
        self.index(address) < self.flags.len()
    }

    /// Returns the flags of the page of an address; 0 outside of the memory.
    #[must_use]
    pub fn flags(&self, address: u64) -> u8 {
        self.flags
            .get(self.index(address))
            .map_or(0, |flags| flags.load(Relaxed))
    }

    /// Records a store of a CPU to a page. Returns the page's flags.
    pub fn store(&self, cpu: u16, address: u64) -> u8 {
        let index = self.index(address);
        let (Some(stamp), Some(cpu)) = (self.stamps.get(index), self.cpus.get(usize::from(cpu)))
        else {
            return 0;
        };
        stamp.store(cpu.stamp.load(Relaxed), Relaxed);
        self.flags.get(index).map_or(0, |flags| flags.load(Relaxed))
    }

    /// Records that a CPU stores zeros to a page by DC ZVA.
    pub fn zero(&self, cpu: u16, address: u64) {
        let places = self.cleared.get(self.index(address));
        if let (Some(stamp), Some(cpu)) = (places, self.cpus.get(usize::from(cpu))) {
            stamp.store(cpu.stamp.load(Relaxed), Relaxed);
        }
    }

    /// Records a barrier of a CPU. Returns whether it has an effect: it has none after an equal or
    /// stronger one without an event in between. For a DSB, a store of another CPU is an event too,
    /// because a lock may order it before the DSB.
    pub fn barrier(&self, cpu: u16, barrier: Barrier) -> bool {
        let (Some(marks), Some((bit, covered))) = (self.cpus.get(usize::from(cpu)), kind(barrier))
        else {
            return false;
        };
        let open = marks.open.load(Relaxed);
        let matters = open & bit != 0;
        let after = open & !covered;
        // For its own CPU, operations that a DSB completes take effect at an ISB.
        let is_dsb = barrier.kind == BarrierKind::Dsb;
        let after = if is_dsb && matters {
            after | ISB
        } else {
            after
        };
        marks.open.store(after, Relaxed);
        let is_local = barrier.option >> 2 == 1 && self.cpus.len() > 1;
        if barrier.kind != BarrierKind::Isb && !is_local {
            self.stamp(marks, cpu, is_dsb);
        }
        if !is_dsb || is_local {
            return matters;
        }
        let stores = self.table_stores.0.load(Relaxed);
        let before = marks.stores_at_dsb.load(Relaxed);
        marks.stores_at_dsb.store(stores, Relaxed);
        matters || stores != before
    }

    /// Records that a store to a table was emitted.
    pub fn note_table_store(&self) {
        self.table_stores.0.fetch_add(1, Relaxed);
    }

    /// Records the write of a register that decides where an ERET goes, or that names the running task. Returns whether
    /// it is one of them.
    pub fn keep(&self, cpu: u16, level: u8, register: System, value: u64) -> bool {
        let Some(marks) = self.cpus.get(usize::from(cpu)) else {
            return false;
        };
        match register {
            // Linux has its task there, in the upper half, and before a return the program's stack.
            System::SP_EL0 => {
                let is_task = level > 0 && value >> 55 & 1 != 0;
                if is_task && marks.task.swap(value, Relaxed) != value {
                    marks.open.fetch_or(USER, Relaxed);
                }
            }
            SPSR_EL1 | SPSR_EL2 => {
                if register == SPSR_EL1 {
                    marks.to_user.store(is_user(value), Relaxed);
                }
                // With VHE, a host accesses its own SPSR_EL2 by the name SPSR_EL1.
                if level == 2 {
                    marks.to_guest.store(is_below_el2(value), Relaxed);
                }
            }
            _ => return false,
        }
        true
    }

    /// Returns the task that a CPU's kernel runs, by SP_EL0; 0 if it names none.
    #[must_use]
    pub fn task(&self, cpu: u16) -> u64 {
        let marks = self.cpus.get(usize::from(cpu));
        marks.map_or(0, |marks| marks.task.load(Relaxed))
    }

    /// Returns whether an ERET of EL1 goes to EL0.
    #[must_use]
    pub fn goes_to_user(&self, cpu: u16) -> bool {
        let marks = self.cpus.get(usize::from(cpu));
        marks.is_some_and(|marks| marks.to_user.load(Relaxed))
    }

    /// Returns whether an ERET of EL2 goes to EL1 or EL0.
    #[must_use]
    pub fn goes_to_guest(&self, cpu: u16) -> bool {
        let marks = self.cpus.get(usize::from(cpu));
        marks.is_some_and(|marks| marks.to_guest.load(Relaxed))
    }

    /// Records that a CPU enters EL0 or a guest. Returns whether the entry must be emitted: an
    /// event followed the previous entry or ISB.
    pub fn enter_user(&self, cpu: u16) -> bool {
        let Some(marks) = self.cpus.get(usize::from(cpu)) else {
            return false;
        };
        let open = marks.open.load(Relaxed);
        marks.open.store(open & !(ISB | USER), Relaxed);
        let is_emitted = open & (ISB | USER) != 0;
        marks.in_user.store(is_emitted, Relaxed);
        is_emitted
    }

    /// Records that a CPU takes an exception, or returns from one. Returns whether its last entry
    /// to EL0 or a guest was emitted: then the exit must be emitted, and the next entry too.
    pub fn leave_user(&self, cpu: u16) -> bool {
        let Some(marks) = self.cpus.get(usize::from(cpu)) else {
            return false;
        };
        let left = marks.in_user.swap(false, Relaxed);
        if left {
            marks.open.fetch_or(USER, Relaxed);
        }
        left
    }

    /// Records that an event of a CPU was emitted, so that every barrier has an effect again.
    pub fn note_event(&self, cpu: u16) {
        if let Some(marks) = self.cpus.get(usize::from(cpu)) {
            marks.open.store(ANY, Relaxed);
        }
    }

    /// Records whether stores of a CPU bypass its data cache.
    pub fn set_uncached(&self, cpu: u16, uncached: bool) {
        if let Some(marks) = self.cpus.get(usize::from(cpu)) {
            marks.uncached.store(uncached, Relaxed);
        }
    }

    /// Returns whether stores of a CPU bypass its data cache.
    #[must_use]
    pub fn is_uncached(&self, cpu: u16) -> bool {
        let marks = self.cpus.get(usize::from(cpu));
        marks.is_some_and(|marks| marks.uncached.load(Relaxed))
    }

    fn stamp(&self, marks: &CpuMarks, cpu: u16, completes: bool) {
        let ordered = marks.ordered.load(Relaxed).wrapping_add(1);
        marks.ordered.store(ordered, Relaxed);
        let completed = marks
            .completed
            .load(Relaxed)
            .wrapping_add(u64::from(completes));
        marks.completed.store(completed, Relaxed);
        let stamp =
            STORED | u64::from(cpu) << CPU | (completed & FIELD) << COMPLETED | ordered & FIELD;
        marks.stamp.store(stamp, Relaxed);
    }

    /// Returns the last store to the page of an address.
    #[must_use]
    pub fn last_store(&self, address: u64) -> LastStore {
        let stamp = self.stamps.get(self.index(address));
        self.last(stamp.map_or(0, |stamp| stamp.load(Relaxed)))
    }

    /// Returns the last DC ZVA to the page of an address.
    #[must_use]
    pub fn last_zero(&self, address: u64) -> LastStore {
        let stamp = self.cleared.get(self.index(address));
        self.last(stamp.map_or(0, |stamp| stamp.load(Relaxed)))
    }

    fn last(&self, stamp: u64) -> LastStore {
        let cpu = (stamp >> CPU) as u16 & 0x7fff;
        let Some(marks) = self
            .cpus
            .get(usize::from(cpu))
            .filter(|_| stamp & STORED != 0)
        else {
            return LastStore {
                cpu: None,
                ordered: true,
                completed: true,
            };
        };
        let now = marks.stamp.load(Relaxed);
        LastStore {
            cpu: Some(cpu),
            ordered: now & FIELD != stamp & FIELD,
            completed: now >> COMPLETED & FIELD != stamp >> COMPLETED & FIELD,
        }
    }

    /// Sets a flag of the pages of a range.
    pub fn set(&self, address: u64, bytes: u64, flag: u8) {
        self.change(address, bytes, |flags| {
            flags.fetch_or(flag, Relaxed);
        });
    }

    /// Clears a flag of the pages of a range.
    pub fn clear(&self, address: u64, bytes: u64, flag: u8) {
        self.change(address, bytes, |flags| {
            flags.fetch_and(!flag, Relaxed);
        });
    }

    fn change(&self, address: u64, bytes: u64, change: impl Fn(&AtomicU8)) {
        // A block may be larger than the memory, and begin before it.
        let end = (self.first << PAGE_SHIFT) + ((self.flags.len() as u64) << PAGE_SHIFT);
        let from = address.max(self.first << PAGE_SHIFT);
        let to = address.saturating_add(bytes).min(end);
        if from >= to {
            return;
        }
        let range = self.index(from)..=self.index(to - 1);
        self.flags.get(range).into_iter().flatten().for_each(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_as_old_as_the_last_barrier_of_its_cpu() {
        let marks = Marks::new(0x4000_0000, 16, 2);
        let last_store = |address| {
            let last = marks.last_store(address);
            (last.cpu, last.ordered, last.completed)
        };
        assert_eq!(last_store(0x4000_1000), (None, true, true));
        assert_eq!(marks.store(1, 0x4000_1ff8), 0);
        assert_eq!(last_store(0x4000_1000), (Some(1), false, false));
        marks.barrier(0, Barrier::DSB_ISH);
        marks.barrier(1, Barrier::ISB);
        marks.barrier(1, Barrier::DSB_NSH);
        assert_eq!(last_store(0x4000_1000), (Some(1), false, false));
        marks.barrier(1, Barrier::DMB_ISHST);
        assert_eq!(last_store(0x4000_1000), (Some(1), true, false));
        marks.barrier(1, Barrier::DSB_ISHST);
        assert_eq!(last_store(0x4000_1000), (Some(1), true, true));
        marks.store(1, 0x4000_1000);
        assert_eq!(last_store(0x4000_1000), (Some(1), false, false));
    }

    #[test]
    fn zeros_are_as_old_as_the_last_dc_zva() {
        let marks = Marks::new(0, 4, 1);
        assert_eq!(marks.last_zero(0).cpu, None);
        marks.zero(0, 8);
        marks.barrier(0, Barrier::DSB_ISHST);
        marks.store(0, 16);
        assert!(marks.last_zero(0).completed && !marks.last_store(0).completed);
        marks.zero(0, 0);
        assert!(!marks.last_zero(0).completed);
        marks.zero(0, 1 << 40);
    }

    #[test]
    fn an_entry_to_a_program_is_emitted_once_after_an_event() {
        let marks = Marks::new(0, 1, 1);
        assert!(!marks.goes_to_user(0));
        assert!(marks.keep(0, 1, SPSR_EL1, 0));
        assert!(marks.goes_to_user(0));
        marks.note_event(0);
        // The entry is relevant after an ISB too.
        assert!(marks.barrier(0, Barrier::ISB));
        assert!(marks.enter_user(0) && !marks.enter_user(0));
        assert!(!marks.barrier(0, Barrier::ISB));
        marks.note_event(0);
        assert!(marks.enter_user(0));
        assert!(marks.keep(0, 1, SPSR_EL1, 5));
        assert!(!marks.goes_to_user(0) && !marks.goes_to_user(9));
        // Another task goes on than the one whose entry was emitted; a program's stack is none.
        for (task, emitted) in [
            (1 << 55, true),
            (0x1000, false),
            (1 << 55, false),
            (3 << 55, true),
        ] {
            assert!(marks.keep(0, 1, System::SP_EL0, task));
            assert_eq!(marks.enter_user(0), emitted, "{task:#x}");
        }
        assert!(marks.task(0) == 3 << 55 && !marks.keep(0, 1, System::TTBR0_EL1, 0));
    }

    #[test]
    fn a_barrier_right_after_a_stronger_one_has_no_effect() {
        let marks = Marks::new(0, 1, 2);
        let matters = |barriers: &[Barrier]| {
            marks.note_event(0);
            let each = barriers.iter().map(|one| marks.barrier(0, *one));
            each.collect::<Vec<_>>()
        };
        let dsb_ld = Barrier {
            kind: BarrierKind::Dsb,
            option: 13,
        };
        assert_eq!(
            matters(&[
                Barrier::DMB_ISHST,
                Barrier::DMB_ISH,
                Barrier::DSB_ISHST,
                Barrier::DMB_ISH,
                Barrier::DSB_ISH,
                Barrier::DSB_NSHST,
                Barrier::ISB,
                Barrier::ISB,
                Barrier::DSB_ISH,
                Barrier::DSB_SY,
                Barrier::ISB,
                dsb_ld,
            ]),
            [
                true, false, true, false, true, false, true, false, false, true, true, false
            ]
        );
        assert_eq!(matters(&[Barrier::DSB_NSH, Barrier::DSB_ISH]), [true, true]);
        // Events of one CPU do not concern another.
        assert!(!marks.barrier(1, Barrier::DSB_SY));
    }

    #[test]
    fn a_dsb_after_a_store_of_another_cpu_has_an_effect() {
        let marks = Marks::new(0, 1, 2);
        marks.note_event(0);
        assert!(marks.barrier(0, Barrier::DSB_SY));
        assert!(!marks.barrier(0, Barrier::DSB_ISHST));
        marks.note_event(1);
        marks.note_table_store();
        // A local DSB does not concern other CPUs' stores, and a DMB completes none.
        assert!(!marks.barrier(0, Barrier::DSB_NSH));
        assert!(!marks.barrier(0, Barrier::DMB_ISH));
        assert!(marks.barrier(0, Barrier::DSB_ISHST));
        assert!(!marks.barrier(0, Barrier::DSB_ISH));
        // A DSB that is relevant only for another CPU's store does not make an ISB relevant.
        marks.barrier(0, Barrier::ISB);
        marks.note_table_store();
        assert!(marks.barrier(0, Barrier::DSB_ISH) && !marks.barrier(0, Barrier::ISB));
    }

    #[test]
    fn flags_are_those_of_the_pages_of_a_range() {
        let marks = Marks::new(0x4000_0000, 16, 1);
        marks.set(0x4000_1008, 0x1000, TABLE);
        marks.set(0, 1 << 40, UNMAPPED);
        let flags = |address| marks.flags(address);
        assert_eq!(flags(0x4000_0000), UNMAPPED);
        assert_eq!(flags(0x4000_2fff), UNMAPPED | TABLE);
        assert_eq!(flags(0x4000_f000), UNMAPPED);
        assert_eq!((flags(0x4001_0000), flags(0x3fff_f000)), (0, 0));
        marks.clear(0x4000_2000, 1, UNMAPPED);
        assert_eq!(marks.store(0, 0x4000_2000), TABLE);
        // Addresses outside of the memory are ignored.
        marks.set(0x5000_0000, 0x1000, TABLE);
        assert_eq!(marks.store(0, 0x5000_0000), 0);
        assert_eq!(marks.store(9, 0x4000_2000), 0);
    }
}
