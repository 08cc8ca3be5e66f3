//! Mapping, changing and unmapping a few whole entries of one table that exists, or of two
//! neighbours: a page, some pages that follow each other, a block.
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

/// Whether entries were changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// They were not.
    No,
    /// They were.
    Yes,
    /// They were, and their table was freed.
    YesAndFreed,
}

impl Few {
    /// The indices of the entries.
    #[inline(always)]
    const fn indices(&self) -> core::ops::Range<usize> {
        self.first.index..self.first.index + self.count
    }

    /// The offset behind them.
    #[inline(always)]
    const fn end<P: Page>(&self) -> u64 {
        self.from + ((self.count as u64) << P::SIZE.level_shift(self.level))
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
    /// The offsets of a range that lies in the space and is not empty.
    #[inline(always)]
    fn range(&self, start: S::Input, bytes: u64) -> Option<(u64, u64)> {
        let from = self.geometry.offset(S::address(start))?;
        if bytes.wrapping_sub(1) < self.geometry.span() - from {
            Some((from, from + bytes))
        } else {
            None
        }
    }

    /// The entries of one table that translate a range from its first offset on, if they are whole
    /// and at most `most`, at a level that may have leaves, for outputs from `output` on that are as
    /// aligned.
    #[inline(always)]
    fn few(&self, from: u64, to: u64, output: u64, most: usize) -> Option<Few> {
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
        let count = ((to - from) >> shift) as usize;
        let fits = (from | to | output) & ((1 << shift) - 1) == 0
            && count.wrapping_sub(1) < most
            && self.geometry.leaf_allowed(level);
        fits.then_some(Few {
            first: Slot { table, index },
            level,
            count: count.min(P::SIZE.entries() - index),
            from,
        })
    }

    /// As [`map`](Self::map) with encoded attributes.
    #[inline(always)]
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
        let Some((from, to)) = self.range(start, bytes) else {
            return false;
        };
        // No run of outputs below the format's break crosses it.
        let output_bits = self.geometry.pa_bits().min(OUTPUT_RUN_SHIFT);
        let last = output.0.wrapping_add(bytes - 1);
        match self.few(from, to, output.0, most) {
            Some(few) if (output.0 | last) >> output_bits == 0 && few.level >= leaves.top => {
                if few.end::<P>() == to {
                    self.map_few(&few, output, bits)
                } else {
                    self.map_two(&few, to, output, bits, most)
                }
            }
            _ => false,
        }
    }

    /// Maps entries, if all are empty.
    #[inline(always)]
    pub(super) fn map_few(&mut self, few: &Few, output: PhysicalAddress, bits: u64) -> bool {
        if !self.are_empty(few) {
            return false;
        }
        self.fill_few(few, output, bits);
        if self.is_live() {
            self.pending.made_valid();
            self.publish();
        }
        true
    }

    /// As [`map_few`](Self::map_few), of the last entries of one table and the first of the next.
    #[cold]
    #[inline(never)]
    fn map_two(
        &mut self,
        few: &Few,
        to: u64,
        output: PhysicalAddress,
        bits: u64,
        most: usize,
    ) -> bool {
        let end = few.end::<P>();
        let behind = output.wrapping_add(end - few.from);
        match self.few_behind(end, to, behind.0, most) {
            Some(next) if next.level == few.level && next.end::<P>() == to => {
                if !self.are_empty(few) || !self.are_empty(&next) {
                    return false;
                }
                self.fill_few(few, output, bits);
                self.fill_few(&next, behind, bits);
                self.pending.made_valid();
                self.publish();
                true
            }
            _ => false,
        }
    }

    /// [`few`](Self::few), out of line.
    #[inline(never)]
    fn few_behind(&self, from: u64, to: u64, output: u64, most: usize) -> Option<Few> {
        self.few(from, to, output, most)
    }

    /// Whether all of these entries are empty.
    #[inline(always)]
    fn are_empty(&self, few: &Few) -> bool {
        let empty = |index| BitPattern::EMPTY.matches(self.load(few.first.table, index));
        few.indices().all(empty)
    }

    /// Stores the leaves of these entries.
    #[inline(always)]
    fn fill_few(&mut self, few: &Few, output: PhysicalAddress, bits: u64) {
        let mut leaf = Descriptor::leaf(&self.geometry, few.level, output, bits);
        let how = self.visibility();
        for index in few.indices() {
            self.store(few.first.table, index, leaf, how);
            leaf.0 = leaf.0.wrapping_add(P::SIZE.entry_bytes(few.level));
        }
    }

    /// Changes a range, or unmaps it ([`CLEAR`](super::unmap::CLEAR)).
    #[inline(always)]
    pub(super) fn change_near(
        &mut self,
        start: S::Input,
        bytes: u64,
        change: BitChange,
        empty: EmptyTables,
    ) -> bool {
        let Some((from, to)) = self.range(start, bytes) else {
            return false;
        };
        match self.few(from, to, 0, FEW) {
            Some(few) if few.end::<P>() == to => self.change_few(&few, change, empty) != Done::No,
            Some(few) => self.change_two(&few, to, change, empty),
            None => false,
        }
    }

    /// Changes entries, if all are valid leaves outside contiguous groups and hardware updates none
    /// of them.
    #[inline(always)]
    pub(super) fn change_few(&mut self, few: &Few, change: BitChange, empty: EmptyTables) -> Done {
        match self.altered(few, change) {
            // What alters nothing is nothing to do, if it is a change.
            Some(0) if change.clear | change.set != 0 => return Done::Yes,
            None | Some(0) => return Done::No,
            Some(_) => {}
        }
        self.store_few(few, change);
        if empty == EmptyTables::Free && !self.stays(few) {
            self.free_emptied(few);
            return Done::YesAndFreed;
        }
        if self.is_live() {
            self.flush_few(few.from, few.end::<P>(), few.level);
        }
        Done::Yes
    }

    /// As [`change_few`](Self::change_few), of the last entries of one table and the first of the
    /// next, if both stay.
    #[cold]
    #[inline(never)]
    fn change_two(&mut self, few: &Few, to: u64, change: BitChange, empty: EmptyTables) -> bool {
        let Some(next) = self.few_behind(few.end::<P>(), to, 0, FEW) else {
            return false;
        };
        let keep = empty == EmptyTables::Keep;
        let stay = keep || (self.stays(few) && self.stays(&next));
        if !stay || next.level != few.level || next.end::<P>() != to {
            return false;
        }
        let mut any = 0;
        for few in [few, &next] {
            match self.altered_out_of_line(few, change) {
                Some(altered) => any |= altered,
                None => return false,
            }
        }
        if any == 0 {
            return change.clear | change.set != 0;
        }
        self.store_few(few, change);
        self.store_few(&next, change);
        if self.is_live() {
            self.flush_few(few.from, to, few.level);
        }
        true
    }

    /// [`altered`](Self::altered), out of line.
    #[inline(never)]
    fn altered_out_of_line(&self, few: &Few, change: BitChange) -> Option<u64> {
        self.altered(few, change)
    }

    /// The bits in which `change` alters any of these entries, if all are valid leaves outside
    /// contiguous groups and hardware updates none of them.
    #[inline(always)]
    fn altered(&self, few: &Few, change: BitChange) -> Option<u64> {
        let leaf = BitPattern::leaf(few.level).and(BitPattern::SINGLE);
        let mut altered = 0;
        for index in few.indices() {
            let old = self.load(few.first.table, index);
            if !leaf.matches(old) || self.is_live() && self.may_be_updated(old) {
                return None;
            }
            altered |= change.apply(old).0 ^ old.0;
        }
        Some(altered)
    }

    /// Stores these entries changed.
    #[inline(always)]
    fn store_few(&mut self, few: &Few, change: BitChange) {
        let how = self.visibility();
        for index in few.indices() {
            let new = change.apply(self.load(few.first.table, index));
            self.store(few.first.table, index, new, how);
        }
    }

    /// Whether a table stays without these entries.
    #[inline(always)]
    pub(super) fn stays(&self, few: &Few) -> bool {
        few.level == self.geometry.start_level()
            || self.has_others(few.first.table, few.first.index, few.count)
    }

    /// Frees the table whose last entries were cleared, and flushes.
    #[cold]
    #[inline(never)]
    fn free_emptied(&mut self, few: &Few) {
        let (from, to) = (few.from, few.end::<P>());
        if self.is_live() {
            let bytes = P::SIZE.entry_bytes(few.level);
            self.pending.leaves(from, to, few.level, bytes);
        }
        self.prune(few.first.table, few.level, (from, to, to), true);
        self.flush();
    }

    /// Invalidates the TLB for some leaves of one level.
    #[inline(never)]
    fn flush_few(&mut self, from: u64, to: u64, level: Level) {
        self.flush_leaves(from, to, level);
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
    #[cold]
    #[inline(never)]
    fn is_used_outside(&self, table: PhysicalAddress, first: usize, behind: usize) -> bool {
        let rest = P::SIZE.entries() - behind;
        self.find_mapped(table, 0, first).is_some()
            || self.find_mapped(table, behind, rest).is_some()
    }
}
