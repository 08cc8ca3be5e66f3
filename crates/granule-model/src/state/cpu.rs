//! The state of each CPU: registers, barriers, and the maintenance that waits for them.
//!
//! Times are numbers of events. No rule is checked here.

use super::caches::PendingCacheMaintenance;
use super::ids::RootId;
use super::invalidation::Removes;
use super::reshape::Reshape;
use super::stale_range::{Settle, StaleRange};
use crate::arch::context::{Fields, Registers, Space};
use crate::arch::regime::Regime;
use crate::arch::tlbi::{Guests, Tlbi};
use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};

/// A TLBI that no DSB has completed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingTlbi {
    pub(crate) op: Tlbi,
    /// The entries that it has to remove: its operand, read under the TCR at that time.
    pub(crate) removes: Removes,
    pub(crate) event: u64,
    /// The last DSB of its CPU that made stores visible to all walkers, when the TLBI was issued.
    pub(crate) dsb: u64,
    /// Whether every register write had an ISB when the TLBI was issued.
    pub(crate) synchronised: bool,
    /// The guest whose entries of stage 2 it has to remove.
    pub(crate) guest: Guest,
}

/// The guest that a TLBI of EL1&0 or of stage 2 concerns, by the registers of its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    pub(crate) vmid: u16,
    /// HCR_EL2.E2H and TGE are set: TLBIs of EL1&0 concern no guest.
    pub(crate) in_host: bool,
}

impl PendingTlbi {
    /// The entries of a regime that it has to remove, if it concerns the regime.
    pub(crate) fn removes_of(&self, regime: Regime) -> Option<Removes> {
        if self.op.regime == regime {
            return Some(self.removes);
        }
        match (regime, self.op.guests?) {
            (Regime::Stage2, Guests::Combined) if self.guest.in_host => None,
            (Regime::Stage2, Guests::Combined) => Some(Removes::Combined(self.guest.vmid)),
            (Regime::Stage2, Guests::Vmid) => Some(Removes::Asid(self.guest.vmid)),
            (Regime::Stage2, Guests::All) => Some(Removes::All),
            _ => None,
        }
    }

    /// Whether two TLBIs differ only in the time when they were issued.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.op == other.op
            && self.synchronised == other.synchronised
            && self.guest == other.guest
            && self.removes == other.removes
    }
}

/// One CPU. Events are counted from 1 here, 0 is "never".
#[derive(Clone, Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) registers: [Registers; Regime::COUNT],
    /// The tree that it walks in each half.
    pub(crate) roots: [Option<RootId>; Space::COUNT],
    /// Trees that it walked before a register write, and may walk until an ISB.
    pub(crate) left: BTreeSet<RootId>,
    /// The trees whose entries were compared with all stale ones: the version of the tree, and the
    /// number of ranges that had become stale.
    pub(crate) compared: HashMap<RootId, (u64, u64)>,
    /// The first register write that no ISB followed yet.
    pub(crate) unsynchronised: Option<u64>,
    /// The last DSB that makes stores visible to all.
    pub(crate) dsb: u64,
    /// The last DSB that makes stores visible to this CPU's walker.
    pub(crate) own_dsb: u64,
    /// The last barrier that orders stores before it and after it.
    pub(crate) ordered: u64,
    /// For each CPU, the event up to which its stores are visible here and earlier speculation of
    /// this CPU is discarded.
    pub(crate) synchronised: Vec<u64>,
    pub(crate) tlbis: Vec<PendingTlbi>,
    pub(crate) maintenance: PendingCacheMaintenance,
    /// Ranges removed from the TLB that instructions under way may still use until an ISB.
    pub(crate) draining: Vec<(Space, StaleRange)>,
    /// The task that its kernel runs, by SP_EL0; 0 if that is not known.
    pub(crate) task: u64,
    /// Whether it is at EL0 or in a guest, and no event of the CPU's kernel or hypervisor followed.
    pub(crate) in_user: bool,
    /// Whether it has done something since it was switched on or reset: before, it takes part in
    /// nothing.
    pub(crate) started: bool,
    /// For each half, the register fields that the TLB may hold (RVNRFW): those of walks since all
    /// of the regime was last invalidated, even if the MMU was turned off since.
    pub(crate) fields: [Option<Fields>; Space::COUNT],
    /// For each half, the last time that a tree ceased to be walked: the time of the ISB.
    pub(crate) ceased: [Settle; Space::COUNT],
    /// For each regime, whether the TLB may hold something from before the trace.
    pub(crate) unknown_tlb: [bool; Regime::COUNT],
    /// The VMIDs of which the TLB holds nothing from before the trace, whatever it holds of others.
    pub(crate) known_guests: BTreeSet<u16>,
    /// Whether its instruction cache may hold something from before the trace.
    pub(crate) unknown_code: bool,
    /// The last event that made an entry valid, and the entry's address.
    pub(crate) made_valid: (u64, u64),
    /// The last event that stored to an entry that walkers can reach, and the entry's address.
    pub(crate) stored: (u64, u64),
    /// For each half, the event that changed a field that TLBs hold, and the time of the ISB.
    pub(crate) field_changed: [Option<(u64, Settle)>; Space::COUNT],
    /// For each half, whether it was walked since the MMU was turned on.
    pub(crate) walked: [bool; Space::COUNT],
    /// For each half, a change of granule or size that came while walks were disabled.
    pub(crate) reshaped: [Option<Reshape>; Space::COUNT],
    /// Changed code whose instruction caches were invalidated: instructions fetched before may be
    /// under way until an ISB. The event that completed it, and the first and the last page.
    pub(crate) fetched_before: Vec<(u64, u64, u64)>,
}

impl Cpu {
    /// A CPU just after reset, one of `cpus`. `unknown`: its TLB holds unknown entries.
    pub(crate) fn new(cpus: u32, unknown: bool) -> Self {
        Self {
            synchronised: vec![0; cpus as usize],
            unknown_tlb: [unknown; Regime::COUNT],
            ..Self::default()
        }
    }

    /// Whether the MMU is off in all regimes.
    pub(crate) fn runs_flat(&self) -> bool {
        self.started && !self.translates()
    }

    /// The number of TLBIs and pieces of cache maintenance that wait for a DSB of this CPU.
    pub(crate) fn waiting(&self) -> usize {
        self.tlbis.len() + self.maintenance.len()
    }

    pub(crate) const fn registers_of(&self, regime: Regime) -> &Registers {
        &self.registers[regime.index()]
    }

    /// The registers of stage 1, whichever regime: those that control how the CPU itself accesses
    /// memory.
    fn stage1(&self) -> impl Iterator<Item = &Registers> {
        self.registers.iter().take(Regime::Stage2.index())
    }

    /// Whether stage 2 translates what its EL1 and EL0 access: they are a guest's.
    pub(crate) fn runs_guests(&self) -> bool {
        let stage2 = self.registers_of(Regime::Stage2);
        stage2.mmu_on() && !stage2.in_host()
    }

    /// Whether the MMU is on in some regime.
    pub(crate) fn translates(&self) -> bool {
        self.stage1().any(Registers::mmu_on)
    }

    /// Whether its stores go through the data caches.
    pub(crate) fn data_cached(&self) -> bool {
        self.stage1().any(Registers::data_cached)
    }
}

/// All CPUs, by their numbers.
#[derive(Clone, Debug)]
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
    /// CPUs just after reset, 1 to 64 of them. `unknown`: their TLBs hold unknown entries.
    pub(crate) fn new(count: u32, unknown: bool) -> Self {
        Self((0..count).map(|_| Cpu::new(count, unknown)).collect())
    }

    pub(crate) const fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Who changes what a CPU changes now, and relies on it: a task, on whichever CPU, or else the CPU.
    pub(crate) fn actor(&self, cpu: u32) -> u64 {
        match self[cpu].task {
            0 => cpu.into(),
            task => task,
        }
    }

    /// All CPUs with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Cpu)> {
        (0..).zip(&self.0)
    }

    /// All CPUs with their numbers, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Cpu)> {
        (0..).zip(&mut self.0)
    }

    /// A bit for each CPU.
    pub(crate) const fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.0.len())
    }

    /// A CPU that observes what `cpu` did: another CPU, if there is one.
    pub(crate) fn other_than(&self, cpu: u32) -> u32 {
        let mut numbered = (0..).zip(&self.0);
        let other = numbered.find(|(number, one)| *number != cpu && one.started);
        other.map_or(cpu, |(number, _)| number)
    }

    /// The number of TLBIs and pieces of cache maintenance that wait for a DSB.
    pub(crate) fn waiting(&self) -> usize {
        self.0.iter().map(Cpu::waiting).sum()
    }
}
