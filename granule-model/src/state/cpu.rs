//! What the model keeps of each CPU: registers, barriers, and what waits for them.

use crate::arch::context::{Fields, Registers, Space};
use crate::event::tlbi::{Regime, Tlbi};
use crate::state::stale_range::Run;
use crate::state::tables::RootId;
use std::collections::{BTreeMap, BTreeSet};

/// A TLBI that no DSB has completed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingTlbi {
    pub(crate) op: Tlbi,
    pub(crate) event: u64,
    /// The CPU had no register write without an ISB when it was issued.
    pub(crate) synchronised: bool,
    /// TCR.DS when it was issued: the unit of a range's base.
    pub(crate) ds: bool,
}

impl PendingTlbi {
    /// Whether it differs from another in when it was issued only.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.op == other.op && self.synchronised == other.synchronised && self.ds == other.ds
    }
}

/// What a DSB completes for the lines of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LineWork {
    /// A clean to the point of coherency.
    Clean,
    /// A clean of instructions to the point of unification.
    CleanCode,
    /// An invalidation.
    Invalidate,
    /// An invalidation of instruction caches, of these CPUs.
    Instructions(u64),
}

/// Cache maintenance that no DSB has completed yet: of the pages from the first to the last, what,
/// and which lines of each.
pub(crate) type PendingLines = BTreeMap<(u64, u64, LineWork), u64>;

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
    pub(crate) lines: PendingLines,
    /// Removed from the TLB, but instructions under way may still use it: until an ISB.
    pub(crate) draining: Vec<(Space, Run)>,
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

/// The index of a regime in arrays.
pub(crate) const fn regime_index(regime: Regime) -> usize {
    match regime {
        Regime::El10 => 0,
        Regime::El2 => 1,
        Regime::El3 => 2,
    }
}

impl Cpu {
    pub(crate) fn new(cpus: u32, unknown: bool) -> Self {
        Self {
            synchronised: vec![0; cpus as usize],
            unknown_tlb: [unknown; 3],
            ..Self::default()
        }
    }

    /// Whether it runs with its MMU off, in all regimes.
    pub(crate) fn runs_flat(&self) -> bool {
        self.started && !self.registers.iter().any(Registers::mmu_on)
    }

    /// Whether its stores go through the data caches.
    pub(crate) fn data_cached(&self) -> bool {
        self.registers.iter().any(Registers::data_cached)
    }
}
