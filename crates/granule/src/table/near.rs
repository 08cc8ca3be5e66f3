//! Mapping, changing and unmapping what lies close together: a page, a block, or a few pages of one
//! table that exists or of two neighbours.
//!
//! Each operation here does the usual case, or does nothing and returns false: then the general
//! operation does it or says why it is impossible. So these functions decide no error, reserve no
//! table and split no leaf. What they do is the same to the last barrier.
//!
//! One walk serves all cases. Its way to the last level, and a size that the compiler knows, leave
//! of the rest what one page needs.

use super::piece::Leaves;
use super::stage::Stage;
use super::unmap::EmptyTables;
use super::walk::{Place, Slot};
use super::{BitChange, BitPattern, PageTables, TableEnvironment};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress, tlbi};

/// The most pages that a loop over single ones handles faster than the general operation.
const FEW: usize = 16;

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

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// The offset of an address in the space, and the last entry on the way there.
    #[inline(always)]
    fn near(&self, start: S::Input) -> Option<(u64, Place)> {
        let from = self.geometry.offset(S::address(start))?;
        Some((from, self.near_place(from)))
    }

    /// Whether a range is one entry of this level, which may be a leaf. `start` has the bits of all of
    /// its first addresses.
    #[inline(always)]
    fn is_entry(&self, start: u64, bytes: u64, level: Level) -> bool {
        bytes == self.size().entry_bytes(level)
            && start & (bytes - 1) == 0
            && self.geometry.leaf_allowed(level)
    }

    /// The number of pages of a range in the space from the offset `from` on, if it is at most `most`.
    #[inline(always)]
    fn few(&self, from: u64, bytes: u64, most: usize) -> Option<usize> {
        let count = bytes >> self.size().shift();
        let fits = count.wrapping_sub(1) < most as u64
            && (from | bytes) & (self.size().bytes() - 1) == 0
            && bytes <= self.geometry.span() - from;
        fits.then_some(count as usize)
    }

    /// Whether outputs, of which these are the first page and the last, are pages below 2^48. No format
    /// moves a bit of those.
    #[inline(always)]
    fn is_near(&self, first: PhysicalAddress, last: PhysicalAddress) -> bool {
        let (near, _) = self.geometry.near_bits();
        (first.0 | last.0) & !near == 0
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
        let Some((from, place)) = self.near(start) else {
            return false;
        };
        if !place.level.is_last() || bytes == self.size().bytes() {
            return place.level >= leaves.top
                && self.is_entry(from | output.0, bytes, place.level)
                && self.map_entry(&place, output, bits);
        }
        // No contiguous group is this small.
        let most = FEW - usize::from(leaves.contiguous);
        let last = output.wrapping_add(bytes.wrapping_sub(self.size().bytes()));
        match self.few(from, bytes, most) {
            Some(count) if self.is_near(output, last) => {
                let Slot { table, index } = place.slot;
                if index + count <= self.size().entries() {
                    let slot = |page| Slot {
                        table,
                        index: index + page,
                    };
                    self.map_few(count, slot, output, bits)
                } else {
                    self.map_across(from, count, output, bits)
                }
            }
            _ => false,
        }
    }

    /// Maps an entry, if it is empty.
    #[inline(always)]
    pub(super) fn map_entry(&mut self, place: &Place, output: PhysicalAddress, bits: u64) -> bool {
        if !BitPattern::EMPTY.matches(place.entry) || !self.is_near(output, output) {
            return false;
        }
        let leaf = Descriptor(output.0 | bits | BitPattern::leaf(place.level).value);
        self.store(place.slot.table, place.slot.index, leaf, self.visibility());
        self.publish_valid();
        true
    }

    /// Maps pages, if all entries are empty. `slot` has the entry of each.
    #[inline(always)]
    fn map_few(
        &mut self,
        count: usize,
        slot: impl Fn(usize) -> Slot,
        output: PhysicalAddress,
        bits: u64,
    ) -> bool {
        let mut all = 0;
        for Slot { table, index } in (0..count).map(&slot) {
            all |= self.load(table, index).0;
        }
        if !BitPattern::EMPTY.matches(Descriptor(all)) {
            return false;
        }
        let mut page = Descriptor(output.0 | bits | BitPattern::PAGE.value);
        let how = self.visibility();
        for Slot { table, index } in (0..count).map(&slot) {
            self.store(table, index, page, how);
            page.0 = page.0.wrapping_add(self.size().bytes());
        }
        self.publish_valid();
        true
    }

    /// As [`map_few`](Self::map_few), of the last entries of one table and the first of the next.
    #[cold]
    #[inline(never)]
    fn map_across(&mut self, from: u64, count: usize, output: PhysicalAddress, bits: u64) -> bool {
        match self.across(from, count) {
            Some(slot) => self.map_few(count, slot, output, bits),
            None => false,
        }
    }

    /// The entries of pages in two tables.
    #[inline(always)]
    fn across(&self, from: u64, count: usize) -> Option<impl Fn(usize) -> Slot + use<P, E, S>> {
        let size = self.size();
        let last = from + (((count - 1) as u64) << size.shift());
        let first = self.place(from).slot;
        let Place {
            slot: next, level, ..
        } = self.place(last);
        let slot = move |page| {
            let index = first.index + page;
            let table = if index < size.entries() {
                first.table
            } else {
                next.table
            };
            Slot {
                table,
                index: index & (size.entries() - 1),
            }
        };
        level.is_last().then_some(slot)
    }

    /// Makes entries that became valid usable.
    #[inline(always)]
    fn publish_valid(&mut self) {
        if self.is_live() {
            self.pending.made_valid();
            self.publish();
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
        let Some((from, place)) = self.near(start) else {
            return false;
        };
        if !place.level.is_last() || bytes == self.size().bytes() {
            return self.is_entry(from, bytes, place.level)
                && self.change_entry(&place, from, change, empty) != Done::No;
        }
        match self.few(from, bytes, FEW) {
            Some(count) => {
                let Slot { table, index } = place.slot;
                let frees = empty == EmptyTables::Free;
                if index + count > self.size().entries() {
                    return self.change_across(from, count, change, frees);
                }
                let slot = |page| Slot {
                    table,
                    index: index + page,
                };
                let done = self.change_few(count, slot, change);
                let level = place.level;
                if done == Some(true) {
                    if frees && !self.has_others(place.slot, level, count) {
                        self.free_emptied(place.slot, level, (from, from + bytes));
                    } else if self.is_live() {
                        self.flush_few(from, bytes);
                    }
                }
                done.is_some()
            }
            _ => false,
        }
    }

    /// Changes an entry at the offset `from`, if it is a valid leaf outside contiguous groups and
    /// hardware does not update it.
    #[inline(always)]
    pub(super) fn change_entry(
        &mut self,
        place: &Place,
        from: u64,
        change: BitChange,
        empty: EmptyTables,
    ) -> Done {
        let Place { slot, level, entry } = *place;
        if !BitPattern::leaf(level)
            .and(BitPattern::SINGLE)
            .matches(entry)
        {
            return Done::No;
        }
        let new = change.apply(entry);
        if self.is_live() {
            if self.may_be_updated(entry) {
                return Done::No;
            }
            if new == entry {
                return Done::Yes;
            }
        }
        self.store(slot.table, slot.index, new, self.visibility());
        if empty == EmptyTables::Free && !self.has_others(slot, level, 1) {
            self.free_emptied(slot, level, (from, from + self.size().entry_bytes(level)));
            return Done::YesAndFreed;
        }
        if self.is_live() {
            self.flush_entry(from, level);
        }
        Done::Yes
    }

    /// Changes pages without the invalidation, if all are valid ones outside contiguous groups and
    /// hardware updates none of them. `slot` has the entry of each. Returns whether there is
    /// something to invalidate.
    #[inline(always)]
    fn change_few(
        &mut self,
        count: usize,
        slot: impl Fn(usize) -> Slot,
        change: BitChange,
    ) -> Option<bool> {
        let (mut all, mut any) = (u64::MAX, 0);
        for Slot { table, index } in (0..count).map(&slot) {
            let old = self.load(table, index).0;
            all &= old;
            any |= old;
        }
        let page = BitPattern::PAGE;
        if all & page.mask != page.value || any & Descriptor::CONTIGUOUS != 0 {
            return None;
        }
        if self.is_live() {
            if self.may_update(all, any) {
                return None;
            }
            if (any & change.clear & !change.set) | (change.set & !all) == 0 {
                return Some(false);
            }
        }
        let how = self.visibility();
        for Slot { table, index } in (0..count).map(&slot) {
            let new = change.apply(self.load(table, index));
            self.store(table, index, new, how);
        }
        Some(true)
    }

    /// Whether hardware may update one of some leaves, of which all have the bits of the first value
    /// and any has those of the second. A clean leaf lacks a permission, which is a clear bit at stage
    /// 2 and a set one at stage 1.
    #[inline(always)]
    fn may_update(&self, all: u64, any: u64) -> bool {
        let managed = any & Descriptor::DIRTY_MODIFIER;
        self.may_be_updated(Descriptor(all | managed)) || self.may_be_updated(Descriptor(any))
    }

    /// As [`change_few`](Self::change_few), of the last entries of one table and the first of the
    /// next, with the invalidation. With `frees` it looks first whether both stay.
    #[cold]
    #[inline(never)]
    fn change_across(&mut self, from: u64, count: usize, change: BitChange, frees: bool) -> bool {
        let Some(slot) = self.across(from, count) else {
            return false;
        };
        let here = self.size().entries() - slot(0).index;
        let parts = [(slot(0), here), (slot(here), count - here)];
        let stays = |(first, count): &(Slot, usize)| self.has_others(*first, Level::L3, *count);
        if frees && !parts.iter().all(stays) {
            return false;
        }
        let done = self.change_few(count, slot, change);
        if done == Some(true) && self.is_live() {
            self.flush_few(from, (count as u64) << self.size().shift());
        }
        done.is_some()
    }

    /// Frees the table whose last entries were cleared, and flushes.
    #[cold]
    #[inline(never)]
    fn free_emptied(&mut self, first: Slot, level: Level, (from, to): (u64, u64)) {
        if self.is_live() {
            let bytes = self.size().entry_bytes(level);
            self.pending.leaves(from, to, level, bytes);
        }
        self.prune(first.table, level, (to, to), true);
        self.flush();
    }

    /// Invalidates the TLB for one leaf.
    #[inline(never)]
    fn flush_entry(&mut self, from: u64, level: Level) {
        let to = from + self.size().entry_bytes(level);
        self.flush_leaves(from, to, level, tlbi::of_entry);
    }

    /// Invalidates the TLB for some pages.
    #[inline(never)]
    fn flush_few(&mut self, from: u64, bytes: u64) {
        self.flush_leaves(from, from + bytes, Level::L3, tlbi::of_few_pages);
    }

    /// Whether a table is the root, or has an entry that is not empty besides `count` from `first` on.
    /// Neighbours usually belong together, so those two spare most searches.
    #[inline(always)]
    pub(super) fn has_others(&self, first: Slot, level: Level, count: usize) -> bool {
        let Slot { table, index } = first;
        let behind = index + count;
        let mapped = |index| self.load(table, index).0 & BitChange::LEAVES != 0;
        (behind < self.size().entries() && mapped(behind))
            || (index > 0 && mapped(index - 1))
            || self.is_used_outside(first, level, behind)
    }

    /// Whether a table is the root, or has an entry that is not empty before `first`, or from
    /// `behind` on.
    #[cold]
    #[inline(never)]
    fn is_used_outside(&self, first: Slot, level: Level, behind: usize) -> bool {
        let Slot { table, index } = first;
        level == self.geometry.start_level()
            || self.find_mapped(table, 0, index).is_some()
            || self
                .find_mapped(table, behind, self.size().entries() - behind)
                .is_some()
    }
}
