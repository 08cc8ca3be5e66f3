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
use super::walk::Slot;
use super::{BitChange, BitPattern, PageTables, TableEnvironment};
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
    /// The first offset that they translate.
    pub(super) from: u64,
}

impl Few {
    /// The indices of the entries.
    #[inline(always)]
    const fn indices(&self) -> core::ops::Range<usize> {
        self.first.index..self.first.index + self.count
    }

    /// The page at `offset`, whose entry is `first`.
    pub(super) const fn page(first: Slot, offset: u64) -> Self {
        Self {
            first,
            level: Level::L3,
            count: 1,
            from: offset,
        }
    }
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// The entries that translate a range, if they are at most `most` whole ones of one table, at a
    /// level that may have leaves, for outputs from `output` on that are as aligned.
    #[inline(always)]
    fn few(&self, start: S::Input, bytes: u64, output: u64, most: usize) -> Option<Few> {
        let from = self.geometry.offset(S::address(start))?;
        let start_level = self.geometry.start_level();
        let mut table = self.root_of(from);
        let (in_place, moved) = self.geometry.table_bits();
        // Written out, the steps have constant shifts. Tables whose addresses have bits that a 52-bit
        // format moves are left to the general operation, so that no step waits for those.
        macro_rules! steps {
            ($($above:ident)+) => {
                'found: {
                    $(
                        if start_level <= Level::$above {
                            let level = Level::$above;
                            let index = Self::index(from, level);
                            let entry = self.load(table, index);
                            if !BitPattern::TABLE.matches(entry) {
                                break 'found (index, level);
                            }
                            if entry.0 & moved != 0 {
                                return None;
                            }
                            table = PhysicalAddress(entry.0 & in_place & !(P::SIZE.bytes() - 1));
                        }
                    )+
                    (Self::index(from, Level::L3), Level::L3)
                }
            };
        }
        let (index, level) = if P::SIZE.has_minus1() {
            steps!(Minus1 L0 L1 L2)
        } else {
            steps!(L0 L1 L2)
        };
        let shift = P::SIZE.level_shift(level);
        let count = (bytes >> shift) as usize;
        let fits = (from | bytes | output) & ((1 << shift) - 1) == 0
            && count.wrapping_sub(1) < most
            && index + count <= P::SIZE.entries()
            && bytes <= self.geometry.span() - from
            && self.geometry.leaf_allowed(level);
        fits.then_some(Few {
            first: Slot { table, index },
            level,
            count,
            from,
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
        // No contiguous group is this small.
        let most = FEW - usize::from(leaves.contiguous);
        match self.few(start, bytes, output.0, most) {
            Some(few) => self.map_few(few, output, bytes, bits, leaves.top),
            None => false,
        }
    }

    /// Maps entries, if all are empty.
    #[inline(always)]
    pub(super) fn map_few(
        &mut self,
        few: Few,
        output: PhysicalAddress,
        bytes: u64,
        bits: u64,
        top: Level,
    ) -> bool {
        let Few { first, level, .. } = few;
        // No run of outputs below the format's break crosses it.
        let output_bits = self.geometry.pa_bits().min(OUTPUT_RUN_SHIFT);
        let last = output.0.wrapping_add(bytes - 1);
        if (output.0 | last) >> output_bits != 0 || level < top {
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
            leaf.0 = leaf.0.wrapping_add(P::SIZE.entry_bytes(level));
        }
        if self.is_live() {
            self.pending.made_valid();
            self.publish();
        }
        true
    }

    /// Changes a range, or unmaps it ([`CLEAR`](super::unmap::CLEAR)) where its table stays.
    #[inline]
    pub(super) fn change_near(
        &mut self,
        start: S::Input,
        bytes: u64,
        change: BitChange,
        empty: EmptyTables,
    ) -> bool {
        match self.few(start, bytes, 0, FEW) {
            Some(few) => self.change_few(few, change, empty),
            None => false,
        }
    }

    /// Changes entries, if all are valid leaves outside contiguous groups and hardware updates none
    /// of them. A table that must not become empty must have other entries.
    #[inline(always)]
    pub(super) fn change_few(&mut self, few: Few, change: BitChange, empty: EmptyTables) -> bool {
        let Few { first, level, count, from } = few;
        let leaf = BitPattern::leaf(level).and(BitPattern::SINGLE);
        let mut altered = 0;
        for index in few.indices() {
            let old = self.load(first.table, index);
            if !leaf.matches(old) || self.is_live() && self.may_be_updated(old) {
                return false;
            }
            altered |= change.apply(old).0 ^ old.0;
        }
        let stays = empty == EmptyTables::Keep
            || level == self.geometry.start_level()
            || self.has_others(first.table, first.index, count);
        if !stays || altered == 0 {
            // What alters nothing is nothing to do, if it is a change.
            return stays && change.clear | change.set != 0;
        }
        let how = self.visibility();
        for index in few.indices() {
            let new = change.apply(self.load(first.table, index));
            self.store(first.table, index, new, how);
        }
        if self.is_live() {
            self.flush_few(from, count, level);
        }
        true
    }

    /// Invalidates the TLB for some leaves of one table.
    #[inline(never)]
    fn flush_few(&mut self, from: u64, count: usize, level: Level) {
        self.flush_leaves(from, Self::behind(from, level, count), level);
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
