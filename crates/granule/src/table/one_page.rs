//! Mapping, changing and unmapping one page whose tables exist, without the general walk.
//!
//! Each operation here does the usual case, or does nothing and returns false: then the general
//! operation does it or says why it is impossible. So these functions decide no error, reserve no
//! table and split no leaf. What they do is the same to the last barrier.

use super::stage::Stage;
use super::unmap::EmptyTables;
use super::{BitChange, BitPattern, Liveness, PageTables, TableEnvironment, Visibility};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, OutputFormat, PhysicalAddress};

/// The position of a page's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The last-level table.
    pub(crate) table: PhysicalAddress,
    /// The index in it.
    pub(crate) index: usize,
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// As [`map`](Self::map) of one page with encoded attributes.
    #[inline]
    pub(super) fn map_page(&mut self, start: S::Input, output: PhysicalAddress, bits: u64) -> bool {
        match self.page_at(start) {
            Some((_, slot)) => self.map_slot(slot, output, bits),
            None => false,
        }
    }

    /// As [`change`](Self::change) of one page.
    #[inline]
    pub(super) fn change_page(&mut self, start: S::Input, change: BitChange) -> bool {
        match self.page_at(start) {
            Some((offset, slot)) => self.change_slot(offset, slot, change),
            None => false,
        }
    }

    /// As [`unmap_range`](Self::unmap_range) of one page.
    #[inline]
    pub(super) fn unmap_page(&mut self, start: S::Input, empty: EmptyTables) -> bool {
        match self.page_at(start) {
            Some((offset, slot)) => self.unmap_slot(offset, slot, empty),
            None => false,
        }
    }

    /// The offset of a page and its entry, if tables lead there.
    #[inline(always)]
    fn page_at(&self, start: S::Input) -> Option<(u64, Slot)> {
        let offset = self.geometry.offset(S::address(start))?;
        if offset & (P::SIZE.bytes() - 1) != 0 {
            return None;
        }
        Some((offset, self.slot_of(offset)?))
    }

    /// The entry of the page at `offset`, if tables of the usual format lead there.
    #[inline(always)]
    fn slot_of(&self, offset: u64) -> Option<Slot> {
        if self.geometry.format() != OutputFormat::Bits48 {
            return None;
        }
        let start = self.geometry.start_level();
        let mut table = self.root_of(offset);
        // Written out, the steps have constant shifts. Level -1 has another format.
        for level in [Level::L0, Level::L1, Level::L2] {
            if start <= level {
                let entry = self.load(table, Self::index(offset, level));
                if !BitPattern::TABLE.matches(entry) {
                    return None;
                }
                table = OutputFormat::Bits48.address_in(entry.0, P::SIZE.shift());
            }
        }
        let index = Self::index(offset, Level::L3);
        Some(Slot { table, index })
    }

    /// The offset of a page and its entry, if tables of another format lead there. This walk is
    /// no part of the code that is inlined.
    pub(super) fn page_of_other_format(&self, start: S::Input) -> Option<(u64, Slot)> {
        if self.geometry.format() == OutputFormat::Bits48 {
            return None;
        }
        let (offset, _) = self.offsets(start, P::SIZE.bytes()).ok()?;
        let (slot, _) = self.pages_from(offset, offset);
        Some((offset, slot?))
    }

    /// The entry of the page at `at`, if there is a last-level table for it, and the end of that
    /// table, or of the hole without one. The end is at most `to`.
    pub(crate) fn pages_from(&self, at: u64, to: u64) -> (Option<Slot>, u64) {
        let mut table = self.root_of(at);
        let mut level = self.geometry.start_level();
        loop {
            let index = Self::index(at, level);
            if level.is_last() {
                let left = (P::SIZE.entries() - index) as u64;
                return (
                    Some(Slot { table, index }),
                    to.min(at + (left << P::SIZE.shift())),
                );
            }
            let entry = self.load(table, index);
            if !entry.is_table(level) {
                let bytes = P::SIZE.entry_bytes(level);
                return (None, to.min((at & !(bytes - 1)) + bytes));
            }
            table = self.geometry.address_of(entry, level);
            level = level.next();
        }
    }

    /// Maps the page of an entry, if the entry is empty.
    #[inline(always)]
    pub(super) fn map_slot(&mut self, slot: Slot, output: PhysicalAddress, bits: u64) -> bool {
        let fits = output.0 & (P::SIZE.bytes() - 1) == 0
            && output.0 >> self.geometry.pa_bits() == 0
            && BitPattern::EMPTY.matches(self.load(slot.table, slot.index));
        if !fits {
            return false;
        }
        let page = Descriptor::leaf(&self.geometry, Level::L3, output, bits);
        if self.liveness == Liveness::Private {
            self.store(slot.table, slot.index, page, Visibility::Private);
        } else {
            self.map_live(slot, page);
        }
        true
    }

    /// Changes the entry of a page, if it is a valid page outside contiguous groups.
    #[inline(always)]
    pub(super) fn change_slot(&mut self, offset: u64, slot: Slot, change: BitChange) -> bool {
        let old = self.load(slot.table, slot.index);
        is_single(old)
            && change.clear | change.set != 0
            && self.replace_slot(offset, slot, old, change.apply(old))
    }

    /// Clears the entry of a page, if it is a valid page outside contiguous groups and its table
    /// stays.
    #[inline(always)]
    pub(super) fn unmap_slot(&mut self, offset: u64, slot: Slot, empty: EmptyTables) -> bool {
        let Slot { table, index } = slot;
        let old = self.load(table, index);
        is_single(old)
            && (empty == EmptyTables::Keep
                || self.has_neighbour(table, index, index)
                || self.has_others(slot))
            && self.replace_slot(offset, slot, old, Descriptor::INVALID)
    }

    /// Replaces the valid page `old` by `new`, unless hardware may update it.
    #[inline(always)]
    fn replace_slot(&mut self, offset: u64, slot: Slot, old: Descriptor, new: Descriptor) -> bool {
        if self.liveness == Liveness::Private {
            self.store(slot.table, slot.index, new, Visibility::Private);
            return true;
        }
        if new == old {
            return true;
        }
        if self.geometry.may_be_updated(old) {
            return false;
        }
        self.replace_live(offset, slot, new);
        true
    }

    /// Whether the table of `slot` has another entry that is not empty.
    #[inline(never)]
    fn has_others(&self, slot: Slot) -> bool {
        let behind = slot.index + 1;
        let rest = P::SIZE.entries() - behind;
        self.find_mapped(slot.table, 0, slot.index).is_some()
            || self.find_mapped(slot.table, behind, rest).is_some()
    }

    /// Stores the entry of a page that live tables did not map.
    #[inline(never)]
    fn map_live(&mut self, slot: Slot, page: Descriptor) {
        self.store(slot.table, slot.index, page, Visibility::Live);
        self.pending.made_valid();
        self.publish();
    }

    /// Replaces a valid page of live tables that hardware does not update, and invalidates the TLB
    /// for it.
    #[inline(never)]
    fn replace_live(&mut self, offset: u64, slot: Slot, new: Descriptor) {
        self.store(slot.table, slot.index, new, Visibility::Live);
        self.flush_pages(offset, offset + P::SIZE.bytes());
    }
}

/// Whether the entry of a last-level table is a valid page outside contiguous groups.
#[inline(always)]
const fn is_single(entry: Descriptor) -> bool {
    BitPattern::PAGE.matches(entry) && !entry.is_contiguous()
}
