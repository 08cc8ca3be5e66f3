//! Ranges of stale entries: entries that a TLB may hold although the tables no longer contain them.
//!
//! A [`StaleRange`] is a number of neighbouring entries of one table that were replaced together.
//! It holds the entries' old values, the event that replaced them, the CPUs that may still hold
//! them, and the time since when no walker can read them again. [`stale_tlb`](super::stale_tlb)
//! keeps the ranges.

use super::ids::ContextId;
use super::walk::TableAt;
use crate::arch::context::Context;
use crate::arch::descriptor::{self, Attributes, Hierarchy};
use crate::violation::Miss;

/// A leaf or a pointer to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StaleKind {
    Leaf,
    Table,
}

/// The time until which a walker may still read the replaced value again. An invalidation before
/// that time does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settle {
    /// Walkers could last read it before this event.
    At(u64),
    /// Until the CPU that stored the new value executes a DSB.
    Dsb(u32),
    /// Until the CPU that wrote a register executes an ISB.
    Isb(u32),
}

impl Default for Settle {
    /// Never read.
    fn default() -> Self {
        Self::At(0)
    }
}

impl Settle {
    /// Whether the time is over, and was before an event.
    pub(crate) const fn is_before(self, event: u64) -> bool {
        matches!(self, Self::At(since) if since < event)
    }
}

/// Neighbouring stale entries.
#[derive(Clone, Debug)]
pub(crate) struct StaleRange {
    /// The first address that the first entry translates.
    pub(crate) va: u64,
    /// The bits of address below an entry.
    pub(crate) shift: u32,
    pub(crate) count: u64,
    pub(crate) level: i8,
    pub(crate) kind: StaleKind,
    /// The first descriptor, and the difference from one descriptor to the next.
    pub(crate) value: u64,
    pub(crate) step: u64,
    pub(crate) hierarchy: Hierarchy,
    pub(crate) context: ContextId,
    /// `None` for global leaves and where no ASID is known.
    pub(crate) asid: Option<u16>,
    /// Whether there may be global leaves below this table entry: an operation for one ASID need
    /// not remove it then.
    pub(crate) maybe_global: bool,
    /// Where the first descriptor is (or was).
    pub(crate) location: u64,
    /// The CPUs that may hold it.
    pub(crate) cpus: u64,
    /// The event that replaced it, and the task or CPU that did.
    pub(crate) event: u64,
    pub(crate) by: Option<u64>,
    /// The event that reused the memory to which it leads; 0 if none did.
    pub(crate) reused: u64,
    pub(crate) settle: Settle,
    /// Whether it was replaced by an invalid entry.
    pub(crate) removed: bool,
    /// The last invalidation that was meant for it, and why that did not remove it.
    pub(crate) missed: Option<(u64, Miss)>,
    /// Whether a violation was reported for it; it is reported once.
    pub(crate) reported: bool,
    /// Whether a comparison with the tables found no difference, and the tables have not changed
    /// since in its range.
    pub(crate) harmless: bool,
    /// The CPU whose TLBI removed it, and has to be followed by another one ([`Config::single_tlbi`](crate::Config)).
    pub(crate) once: Option<u32>,
    /// Stage 2: TLBIs by intermediate physical address removed it, but not the entries that combine
    /// it with the guest's own tables.
    pub(crate) combined: bool,
}

impl StaleRange {
    pub(crate) const fn entry_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// The invalidation to name, when a later one is known not to have removed it: one that may have
    /// removed it is the better explanation.
    pub(crate) fn missed_or(&self, event: u64, miss: Miss) -> (u64, Miss) {
        self.missed
            .filter(|(_, known)| *known == Miss::StoreOfAnotherCpu)
            .unwrap_or((event, miss))
    }

    /// The last address translated.
    pub(crate) const fn last(&self) -> u64 {
        self.va.wrapping_add((self.count << self.shift) - 1)
    }

    pub(crate) const fn entry_va(&self, index: u64) -> u64 {
        self.va + (index << self.shift)
    }

    pub(crate) const fn entry_value(&self, index: u64) -> u64 {
        self.value.wrapping_add(self.step.wrapping_mul(index))
    }

    pub(crate) fn part(&self, first: u64, count: u64) -> Self {
        Self {
            va: self.entry_va(first),
            count,
            value: self.entry_value(first),
            location: self.location + first * 8,
            ..self.clone()
        }
    }

    /// The entries (first, count) that translate any address from `first` to `last`.
    pub(crate) fn touched(&self, first: u64, last: u64) -> Option<(u64, u64)> {
        if last < self.va || first > self.last() {
            return None;
        }
        let from = first.saturating_sub(self.va) >> self.shift;
        let to = (last.min(self.last()) - self.va) >> self.shift;
        Some((from, to - from + 1))
    }

    /// The attributes of a leaf, read in the context in which it was cached.
    pub(crate) fn attributes(&self, index: u64, context: &Context) -> Attributes {
        descriptor::attributes(self.entry_value(index), self.level, self.hierarchy, context)
    }

    /// The table that the pointer with this index leads to.
    pub(crate) const fn table_below(&self, index: u64, context: &Context) -> TableAt {
        let raw = self.entry_value(index);
        TableAt {
            base: descriptor::table_address(raw, context.format),
            level: self.level + 1,
            entries: 1 << context.format.granule.table_bits(),
            va: self.entry_va(index),
            hierarchy: self.hierarchy.below(raw, context),
        }
    }

    /// Whether a lookup, or an operation, with `asid` matches it.
    pub(crate) fn matches(&self, asid: Option<u16>) -> bool {
        match (self.asid, asid) {
            (Some(mine), Some(other)) => mine == other,
            _ => true,
        }
    }

    /// Whether the two hold the same entries.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.va == other.va
            && self.shift == other.shift
            && self.count == other.count
            && self.kind == other.kind
            && self.value == other.value
            && (self.step == other.step || self.count == 1)
            && self.hierarchy == other.hierarchy
            && self.context == other.context
            && self.asid == other.asid
            && self.combined == other.combined
            && self.once == other.once
    }
}

/// Builds ranges from entries in the order of their addresses.
#[derive(Debug, Default)]
pub(crate) struct StaleRanges {
    done: Vec<StaleRange>,
}

impl StaleRanges {
    /// Adds one entry: to the last range if it continues that range.
    fn push(&mut self, entry: StaleRange) {
        if let Some(last) = self.done.last_mut() {
            let delta = entry.value.wrapping_sub(last.entry_value(last.count - 1));
            let continues = last.kind == entry.kind
                && last.by == entry.by
                && last.shift == entry.shift
                && entry.va == last.last().wrapping_add(1)
                && entry.location == last.location + last.count * 8
                && (last.count == 1 || last.step == delta)
                && last.hierarchy == entry.hierarchy
                && last.asid == entry.asid
                && last.removed == entry.removed
                && last.context == entry.context
                && last.cpus == entry.cpus;
            if continues {
                last.step = delta;
                last.count += 1;
                return;
            }
        }
        self.done.push(entry);
    }

    /// Adds the entry, if there is one.
    pub(crate) fn extend(&mut self, entry: Option<StaleRange>) {
        if let Some(entry) = entry {
            self.push(entry);
        }
    }

    pub(crate) fn finish(self) -> Vec<StaleRange> {
        self.done
    }
}
