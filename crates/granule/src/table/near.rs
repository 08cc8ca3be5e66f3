//! Mapping, changing and unmapping a few whole entries of one table that exists: a page, some pages
//! that follow each other, a block.
//!
//! Each operation here does the usual case, or does nothing and returns false: then the general
//! operation does it or says why it is impossible. So these functions decide no error, reserve no
//! table and split no leaf. What they do is the same to the last barrier.

use super::piece::Leaves;
use super::plan::OUTPUT_RUN_SHIFT;
use super::stage::Stage;
use super::unmap::EmptyTables;
use super::walk::{Place, Slot};
use super::{BitChange, BitPattern, Liveness, PageTables, TableEnvironment, Visibility};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, PhysicalAddress};

/// The most entries that a loop over single ones handles faster than the general operation.
const FEW: usize = 16;

/// A few whole entries of one table.
#[derive(Clone, Copy)]
pub(super) struct Few {
    pub(super) first: Slot,
    pub(super) level: Level,
    pub(super) count: usize,
    /// The first offset that they translate, and the one behind them.
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Few {
    /// The indices of the entries.
    #[inline(always)]
    const fn indices(&self) -> core::ops::Range<usize> {
        self.first.index..self.first.index + self.count
    }

    /// The page at `offset`, whose entry is `first`.
    pub(super) const fn page<P: Page>(first: Slot, offset: u64) -> Self {
        Self {
            first,
            level: Level::L3,
            count: 1,
            from: offset,
            to: offset + P::SIZE.bytes(),
        }
    }
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// The entries that translate a range, if they are few whole ones of one table.
    #[inline(always)]
    pub(super) fn few(&self, start: S::Input, bytes: u64) -> Option<Few> {
        let from = self.geometry.offset(S::address(start))?;
        let last = bytes.wrapping_sub(1);
        if last >= self.geometry.span() - from {
            return None;
        }
        let across = from ^ (from + last);
        let Place { slot, level, .. } = self.descend(from, across);
        let to = from + bytes;
        let shift = P::SIZE.level_shift(level);
        let count = bytes >> shift;
        if (from | to) & ((1 << shift) - 1) != 0 || count > FEW as u64 {
            return None;
        }
        if S::CONCATENATED && across >> shift >> P::SIZE.index_bits() != 0 {
            // The range crosses from one root table to the next.
            return None;
        }
        Some(Few {
            first: slot,
            level,
            count: count as usize,
            from,
            to,
        })
    }

    /// As [`map`](Self::map) with encoded attributes.
    #[inline]
    pub(super) fn map_near(
        &mut self,
        start: S::Input,
        output: PhysicalAddress,
        bytes: u64,
        bits: u64,
        leaves: Leaves,
    ) -> bool {
        match self.few(start, bytes) {
            Some(few) => self.map_few(few, output, bits, leaves),
            None => false,
        }
    }

    /// Maps entries, if all are empty and no contiguous group is among them.
    #[inline(always)]
    pub(super) fn map_few(
        &mut self,
        few: Few,
        output: PhysicalAddress,
        bits: u64,
        leaves: Leaves,
    ) -> bool {
        let Few { first, level, count, .. } = few;
        let step = P::SIZE.entry_bytes(level);
        let end = output.0.wrapping_add((count as u64) << P::SIZE.level_shift(level));
        let fits = output.0 & (step - 1) == 0
            && (output.0 | (end - 1)) >> self.geometry.pa_bits() == 0
            && (output.0 ^ (end - 1)) >> OUTPUT_RUN_SHIFT == 0
            && level >= leaves.top
            && self.geometry.leaf_allowed(level)
            && !(leaves.contiguous && count >= P::SIZE.contiguous_entries(level).max(2));
        if !fits {
            return false;
        }
        for index in few.indices() {
            if !BitPattern::EMPTY.matches(self.load(first.table, index)) {
                return false;
            }
        }
        let mut leaf = Descriptor::leaf(&self.geometry, level, output, bits);
        let how = self.visibility();
        for index in few.indices() {
            self.store(first.table, index, leaf, how);
            leaf.0 = leaf.0.wrapping_add(step);
        }
        if how != Visibility::Private {
            self.pending.made_valid();
            self.publish();
        }
        true
    }

    /// As [`change`](Self::change).
    #[inline]
    pub(super) fn change_near(&mut self, start: S::Input, bytes: u64, change: BitChange) -> bool {
        match self.few(start, bytes) {
            Some(few) => self.change_few(few, change),
            None => false,
        }
    }

    /// Changes entries, if all are valid leaves outside contiguous groups and hardware updates none
    /// of them.
    #[inline(always)]
    pub(super) fn change_few(&mut self, few: Few, change: BitChange) -> bool {
        let Few { first, level, .. } = few;
        if change.clear | change.set == 0 {
            return false;
        }
        let private = self.liveness == Liveness::Private;
        let mut altered = 0;
        for index in few.indices() {
            let old = self.load(first.table, index);
            if !self.is_single(level, old) || !private && self.may_be_updated(old) {
                return false;
            }
            altered |= change.apply(old).0 ^ old.0;
        }
        if !private && altered == 0 {
            return true;
        }
        let how = self.visibility();
        for index in few.indices() {
            let new = change.apply(self.load(first.table, index));
            self.store(first.table, index, new, how);
        }
        if !private {
            self.flush_few(few);
        }
        true
    }

    /// As [`unmap_range`](Self::unmap_range).
    #[inline]
    pub(super) fn unmap_near(&mut self, start: S::Input, bytes: u64, empty: EmptyTables) -> bool {
        match self.few(start, bytes) {
            Some(few) => self.unmap_few(few, empty),
            None => false,
        }
    }

    /// Clears entries, if all are valid leaves outside contiguous groups, hardware updates none of
    /// them, and their table stays.
    #[inline(always)]
    pub(super) fn unmap_few(&mut self, few: Few, empty: EmptyTables) -> bool {
        let Few { first, level, count, .. } = few;
        let private = self.liveness == Liveness::Private;
        for index in few.indices() {
            let old = self.load(first.table, index);
            if !self.is_single(level, old) || !private && self.may_be_updated(old) {
                return false;
            }
        }
        let stays = empty == EmptyTables::Keep
            || level == self.geometry.start_level()
            || self.has_others(first.table, first.index, count);
        if !stays {
            return false;
        }
        let how = self.visibility();
        for index in few.indices() {
            self.store(first.table, index, Descriptor::INVALID, how);
        }
        if !private {
            self.flush_few(few);
        }
        true
    }

    /// Invalidates the TLB for a few leaves.
    #[inline(never)]
    fn flush_few(&mut self, few: Few) {
        let bytes = P::SIZE.entry_bytes(few.level);
        self.pending.leaves(few.from, few.to, few.level, bytes);
        self.flush();
    }

    /// Whether an entry is a valid leaf outside contiguous groups.
    #[inline(always)]
    const fn is_single(&self, level: Level, entry: Descriptor) -> bool {
        BitPattern::leaf(level).matches(entry)
            && !entry.is_contiguous()
            && self.geometry.leaf_allowed(level)
    }

    /// Whether a table has an entry that is not empty besides `count` from `first` on. Neighbours
    /// usually belong together, so those two spare most searches.
    #[inline(always)]
    pub(super) fn has_others(&self, table: PhysicalAddress, first: usize, count: usize) -> bool {
        let behind = first + count;
        let mapped = |index| self.load(table, index).0 & BitChange::LEAVES != 0;
        (behind < P::SIZE.entries() && mapped(behind))
            || (first > 0 && mapped(first - 1))
            || self.is_used_outside(table, first, behind)
    }

    /// Whether a table has an entry that is not empty before `first`, or from `behind` on.
    #[inline(never)]
    fn is_used_outside(&self, table: PhysicalAddress, first: usize, behind: usize) -> bool {
        let rest = P::SIZE.entries() - behind;
        self.find_mapped(table, 0, first).is_some() || self.find_mapped(table, behind, rest).is_some()
    }
}
