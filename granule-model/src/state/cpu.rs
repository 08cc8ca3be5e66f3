//! What the model keeps of each CPU: registers, barriers, and what waits for them.
//!
//! Times are numbers of events. No rule is checked here.

use super::caches::PendingMaintenance;
use super::ids::RootId;
use super::invalidation::Removes;
use super::stale_range::StaleRange;
use crate::arch::context::{Fields, Registers, Space};
use crate::arch::regime::Regime;
use crate::arch::tlbi::Tlbi;
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

/// A TLBI that no DSB has completed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingTlbi {
    pub(crate) op: Tlbi,
    /// What it has to remove, as its operand said under the TCR of then.
    pub(crate) removes: Removes,
    pub(crate) event: u64,
    /// The CPU had no register write without an ISB when it was issued.
    pub(crate) synchronised: bool,
}

impl PendingTlbi {
    /// Whether it differs from another in when it was issued only.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.op == other.op
            && self.synchronised == other.synchronised
            && self.removes == other.removes
    }
}

/// One CPU. Events are counted from 1 here, 0 is "never".
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) registers: [Registers; 3],
    /// What it walks in each half.
    pub(crate) roots: [Option<RootId>; Space::COUNT],
    /// What it walked before a register write, and may until an ISB.
    pub(crate) left: BTreeSet<RootId>,
    /// The first register write without an ISB since.
    pub(crate) unsynchronised: Option<u64>,
    /// The last DSB that makes stores visible to all.
    pub(crate) dsb: u64,
    /// The last DSB that makes stores visible to this CPU's walker.
    pub(crate) own_dsb: u64,
    /// The last barrier that orders stores before it and after it.
    pub(crate) ordered: u64,
    /// For each CPU, up to which event its stores are visible, and what this one speculated
    /// before was thrown away since.
    pub(crate) synchronised: Vec<u64>,
    pub(crate) tlbis: Vec<PendingTlbi>,
    pub(crate) maintenance: PendingMaintenance,
    /// Removed from the TLB, but instructions under way may still use it: until an ISB.
    pub(crate) draining: Vec<(Space, StaleRange)>,
    /// It did something since it was switched on or reset: before, it takes no part in anything.
    pub(crate) started: bool,
    /// For each half, what was walked by since all of the regime was last invalidated: the fields
    /// of registers that the TLB may hold (RVNRFW), whether the MMU was turned off since or not.
    pub(crate) fields: [Option<Fields>; Space::COUNT],
    /// For each half, when it last ceased to be walked.
    pub(crate) ceased: [u64; Space::COUNT],
    /// The TLB may hold something from before the trace, for each regime.
    pub(crate) unknown_tlb: [bool; 3],
    /// Its instruction cache may hold something from before the trace.
    pub(crate) unknown_code: bool,
    /// The last event that made an entry valid, and where.
    pub(crate) made_valid: (u64, u64),
    /// The last event that stored to an entry that walkers can reach, and where.
    pub(crate) stored: (u64, u64),
    /// For each regime, the event that changed a field that TLBs hold.
    pub(crate) field_changed: [Option<u64>; 3],
}

impl Cpu {
    /// A CPU just after reset, one of `cpus`. `unknown`: its TLB holds what it likes.
    pub(crate) fn new(cpus: u32, unknown: bool) -> Self {
        Self {
            synchronised: vec![0; cpus as usize],
            unknown_tlb: [unknown; 3],
            ..Self::default()
        }
    }

    /// Whether it runs with its MMU off, in all regimes.
    pub(crate) fn runs_flat(&self) -> bool {
        self.started && !self.translates()
    }

    /// How many TLBIs and pieces of cache maintenance wait for a DSB of it.
    pub(crate) fn waiting(&self) -> usize {
        self.tlbis.len() + self.maintenance.len()
    }

    /// The registers of a regime.
    pub(crate) const fn registers_of(&self, regime: Regime) -> &Registers {
        &self.registers[regime.index()]
    }

    /// Whether the MMU is on in some regime.
    pub(crate) fn translates(&self) -> bool {
        self.registers.iter().any(Registers::mmu_on)
    }

    /// Whether its stores go through the data caches.
    pub(crate) fn data_cached(&self) -> bool {
        self.registers.iter().any(Registers::data_cached)
    }
}

/// All CPUs, by their numbers.
#[derive(Debug)]
pub(crate) struct Cpus(Vec<Cpu>);

impl Index<u32> for Cpus {
    type Output = Cpu;

    fn index(&self, cpu: u32) -> &Cpu {
        &self.0[cpu as usize]
    }
}

impl IndexMut<u32> for Cpus {
    fn index_mut(&mut self, cpu: u32) -> &mut Cpu {
        &mut self.0[cpu as usize]
    }
}

impl Cpus {
    /// CPUs just after reset, 1 to 64 of them. `unknown`: their TLBs hold what they like.
    pub(crate) fn new(count: u32, unknown: bool) -> Self {
        Self((0..count).map(|_| Cpu::new(count, unknown)).collect())
    }

    pub(crate) const fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// All of them with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Cpu)> {
        (0..).zip(&self.0)
    }

    /// All of them with their numbers, to change.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Cpu)> {
        (0..).zip(&mut self.0)
    }

    /// A bit for each CPU.
    pub(crate) const fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.0.len())
    }

    /// A CPU to observe what `cpu` did: another CPU, where there is one.
    pub(crate) const fn other_than(&self, cpu: u32) -> u32 {
        (self.0.len() > 1 && cpu == 0) as u32
    }

    /// How many TLBIs and pieces of cache maintenance wait for a DSB.
    pub(crate) fn waiting(&self) -> usize {
        self.0.iter().map(Cpu::waiting).sum()
    }
}
