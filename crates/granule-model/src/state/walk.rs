//! The walk: from an address through the tables in memory to a leaf or a fault.
//!
//! A walk reads memory as it is now. [`lookup`](super::lookup) adds the entries of TLBs and the
//! effect of stores under way.

use super::memory::Memory;
use crate::access::FaultKind;
use crate::arch::context::{Context, RootKey};
use crate::arch::descriptor::{self, EntryKind, Hierarchy};

/// A table that a walk reads: its place and the addresses that it translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableAt {
    pub(crate) base: u64,
    pub(crate) level: i8,
    pub(crate) entries: u64,
    /// The first address it translates.
    pub(crate) va: u64,
    /// The limits of the entries above.
    pub(crate) hierarchy: Hierarchy,
}

impl TableAt {
    /// The top table.
    pub(crate) const fn top(key: &RootKey) -> Self {
        Self {
            base: key.base,
            level: key.context.start_level,
            entries: key.context.top_entries(),
            va: key.context.base(),
            hierarchy: Hierarchy::NONE,
        }
    }

    /// Whether no entry is valid.
    pub(crate) fn is_empty(&self, memory: &Memory) -> bool {
        memory.visit(self.entries);
        let load = |index| memory.load(self.base + index * 8);
        (0..self.entries).all(|index| load(index) & descriptor::VALID == 0)
    }

    /// The table that the entry `raw` of this one points to.
    pub(crate) const fn below(&self, raw: u64, va: u64, context: &Context) -> Self {
        Self {
            base: descriptor::table_address(raw, context.format),
            level: self.level + 1,
            entries: 1 << context.format.granule.table_bits(),
            va,
            hierarchy: self.hierarchy.below(raw, context),
        }
    }
}

/// One entry that a walk reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryAt {
    pub(crate) raw: u64,
    pub(crate) kind: EntryKind,
    pub(crate) level: i8,
    pub(crate) shift: u32,
    /// The first address it translates.
    pub(crate) va: u64,
    /// The physical address of the entry.
    pub(crate) location: u64,
    pub(crate) hierarchy: Hierarchy,
}

impl EntryAt {
    /// The last address it translates.
    pub(crate) const fn last(&self) -> u64 {
        self.va + ((1 << self.shift) - 1)
    }
}

/// The end of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walked {
    /// A leaf, whose access flag may be clear.
    Leaf(EntryAt),
    /// A fault at a level.
    Fault(FaultKind, i8),
}

/// Walks from `table` on. Calls `seen` with each entry read, the last one included.
pub(crate) fn walk(
    memory: &Memory,
    context: &Context,
    mut table: TableAt,
    va: u64,
    mut seen: impl FnMut(&EntryAt),
) -> Walked {
    let too_large = |address| context.is_too_large(address);
    if too_large(table.base) {
        return Walked::Fault(FaultKind::AddressSize, 0);
    }
    loop {
        let shift = context.format.granule.level_shift(table.level);
        let index = (va.wrapping_sub(table.va) >> shift) & (table.entries - 1);
        let location = table.base + index * 8;
        let raw = memory.load(location);
        let entry = EntryAt {
            raw,
            kind: descriptor::kind(raw, table.level, context.format),
            level: table.level,
            shift,
            va: table.va + (index << shift),
            location,
            hierarchy: table.hierarchy,
        };
        seen(&entry);
        match entry.kind {
            EntryKind::Invalid => return Walked::Fault(FaultKind::Translation, table.level),
            EntryKind::Leaf => {
                let to = descriptor::leaf_address(raw, table.level, context.format);
                if too_large(to) {
                    return Walked::Fault(FaultKind::AddressSize, table.level);
                }
                return Walked::Leaf(entry);
            }
            EntryKind::Table => {
                let level = table.level;
                table = table.below(raw, entry.va, context);
                if too_large(table.base) {
                    return Walked::Fault(FaultKind::AddressSize, level);
                }
            }
        }
    }
}

/// The other members of a contiguous group that may be cached for all of its addresses, the entry at a place of the
/// group included: each with its distance from that entry, in entries.
pub(crate) fn serving_members<'a>(
    memory: &'a Memory,
    context: &'a Context,
    (location, level): (u64, i8),
) -> impl Iterator<Item = (i64, u64)> + 'a {
    let members = context.format.group(level);
    let mine = (location / 8) & (members - 1);
    let others = (0..members).filter(move |index| *index != mine);
    others.filter_map(move |index| {
        let raw = memory.load(location - mine * 8 + index * 8);
        let serves = raw & descriptor::CONTIGUOUS != 0
            && descriptor::kind(raw, level, context.format) == EntryKind::Leaf
            && descriptor::cacheable(raw, context);
        serves.then_some((index as i64 - mine as i64, raw))
    })
}

/// Calls `seen` with all valid entries of `table` and the tables below it that translate any
/// address from `first` to `last`, upper levels before lower ones.
pub(crate) fn entries(
    memory: &Memory,
    context: &Context,
    table: &TableAt,
    first: u64,
    last: u64,
    seen: &mut impl FnMut(&EntryAt),
) {
    let shift = context.format.granule.level_shift(table.level);
    let table_last = table.va + ((table.entries << shift).wrapping_sub(1));
    if last < table.va || first > table_last {
        return;
    }
    let from = first.saturating_sub(table.va) >> shift;
    let to = (last.min(table_last) - table.va) >> shift;
    // A table with several parents is visited once for each path to it.
    if !memory.visit(to - from + 1) {
        return;
    }
    for index in from..=to {
        let location = table.base + index * 8;
        let raw = memory.load(location);
        if raw & descriptor::VALID == 0 {
            continue;
        }
        let kind = descriptor::kind(raw, table.level, context.format);
        if kind == EntryKind::Invalid {
            continue;
        }
        let va = table.va + (index << shift);
        seen(&EntryAt {
            raw,
            kind,
            level: table.level,
            shift,
            va,
            location,
            hierarchy: table.hierarchy,
        });
        if kind == EntryKind::Table {
            entries(
                memory,
                context,
                &table.below(raw, va, context),
                first,
                last,
                seen,
            );
        }
    }
}
