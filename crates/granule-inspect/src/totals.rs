//! Sums over ranges and tables: how much is mapped by which leaves, what the tables take, and how
//! far a TLB reaches. This module does not walk.

use crate::ranges::Range;
use crate::tree::Tree;
use std::collections::BTreeMap;

/// The kind of a leaf, by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafKind {
    /// The bytes of one leaf.
    pub leaf_bytes: u64,
    /// Whether the contiguous hint is set.
    pub contiguous: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub leaves: u64,
    /// The bytes that they map.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub leaves: BTreeMap<LeafKind, Count>,
    /// The number of tables, each counted once.
    pub tables: u64,
    pub table_bytes: u64,
    /// The TLB entries that hold everything, by size, if each contiguous group is one entry.
    with_hint: Entries,
    /// The same if each leaf is one entry.
    without_hint: Entries,
    /// The group that was counted last.
    group: Option<(u64, u64)>,
}

/// TLB entries: their number by their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(BTreeMap<u64, u64>);

impl Entries {
    pub fn add(&mut self, bytes: u64, count: u64) {
        if count > 0 {
            *self.0.entry(bytes).or_default() += count;
        }
    }

    pub fn number(&self) -> u64 {
        self.0.values().sum()
    }

    /// The bytes that the `most` largest of them hold.
    pub fn reach(&self, most: u64) -> u64 {
        let mut left = most;
        let mut reach = 0_u64;
        for (bytes, &count) in self.0.iter().rev() {
            let taken = count.min(left);
            reach = reach.saturating_add(taken.saturating_mul(*bytes));
            left -= taken;
        }
        reach
    }
}

impl Totals {
    /// Adds a range. Ranges come by ascending address.
    pub fn add_range(&mut self, tree: &Tree, range: &Range) {
        let kind = LeafKind {
            leaf_bytes: range.leaf_bytes,
            contiguous: range.contiguous,
        };
        let leaves = range.bytes / range.leaf_bytes;
        let count = self.leaves.entry(kind).or_default();
        count.leaves += leaves;
        count.bytes += range.bytes;
        self.without_hint.add(range.leaf_bytes, leaves);
        let size = tree.geometry().page_size();
        let group = range.leaf_bytes * size.contiguous_entries(range.level) as u64;
        if !range.contiguous || group == range.leaf_bytes {
            self.with_hint.add(range.leaf_bytes, leaves);
            return;
        }
        // A group may be only partly in use, or have leaves in several ranges.
        let (first, last) = (range.start / group, range.last() / group);
        let again = self.group == Some((group, first));
        self.with_hint
            .add(group, last - first + 1 - u64::from(again));
        self.group = Some((group, last));
    }

    pub const fn add_table(&mut self, tree: &Tree) {
        self.tables += 1;
        self.table_bytes += tree.geometry().page_size().bytes();
    }

    /// Adds those of another tree.
    pub fn add(&mut self, other: &Self) {
        for (kind, count) in &other.leaves {
            let own = self.leaves.entry(*kind).or_default();
            own.leaves += count.leaves;
            own.bytes += count.bytes;
        }
        self.tables += other.tables;
        self.table_bytes += other.table_bytes;
        for (own, other) in [
            (&mut self.with_hint, &other.with_hint),
            (&mut self.without_hint, &other.without_hint),
        ] {
            for (&bytes, &count) in &other.0 {
                own.add(bytes, count);
            }
        }
        self.group = None;
    }

    /// The bytes that are mapped; memory that is mapped twice counts twice.
    pub fn mapped(&self) -> u64 {
        self.leaves.values().map(|count| count.bytes).sum()
    }

    /// The TLB entries that hold everything: with the contiguous hint, if `hint` is set, or without.
    pub const fn tlb(&self, hint: bool) -> &Entries {
        if hint {
            &self.with_hint
        } else {
            &self.without_hint
        }
    }

    /// Returns the bytes of mapped memory that a TLB of `entries` entries holds at best: the
    /// largest leaves. This is a model, in which every entry can hold every size.
    pub fn reach(&self, entries: u64, hint: bool) -> u64 {
        self.tlb(hint).reach(entries).min(self.mapped())
    }
}
