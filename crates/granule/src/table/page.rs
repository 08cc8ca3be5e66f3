//! Operations on single pages: find, make or change one entry at a time.
//!
//! [`space`](crate::space) uses them on its tables, which hold pages, contiguous groups of pages and
//! blocks of level 2 ([`block`](super::block)).
//! A step records its stores as [pending](super::pending) changes, and the caller ends the
//! operation with [`publish`](PageTables::publish).

pub(crate) use super::walk::{Place as PagePlace, Slot};
use super::{BitChange, FreedFrames, PageTables, TableEnvironment, TableError, Visibility};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress};

impl<P: PageChoice, E: TableEnvironment> PageTables<P, E> {
    /// The entry of the page at `offset` and its descriptor, if there is a last-level table for it.
    pub(crate) fn page(&self, offset: u64) -> Option<(Slot, Descriptor)> {
        let (slot, _) = self.pages_from(offset, offset);
        slot.map(|slot| (slot, self.entry(slot)))
    }

    pub(crate) fn entry(&self, slot: Slot) -> Descriptor {
        self.load(slot.table, slot.index)
    }

    /// The entry of the page at `at`, if there is a last-level table for it, and the end of that
    /// table, or of the hole without one. The end is at most `to`.
    pub(crate) fn pages_from(&self, at: u64, to: u64) -> (Option<Slot>, u64) {
        let PagePlace { slot, level, .. } = self.place(at);
        if level.is_last() {
            (Some(slot), self.table_end(at, level, to))
        } else {
            (None, to.min(self.end_of(at, level)))
        }
    }

    /// Moves `place`, the empty entry where the tables end, down to `level`, and returns it. Makes the
    /// missing tables, all or none of them. The new tables are empty, and one store-release links
    /// them.
    #[inline(always)]
    pub(crate) fn make_slot(
        &mut self,
        offset: u64,
        place: &mut PagePlace,
        level: Level,
    ) -> Result<Slot, TableError> {
        if place.level < level {
            place.slot = Slot {
                table: self.make_tables(offset, place, level)?,
                index: self.index(offset, level),
            };
            place.level = level;
        }
        Ok(place.slot)
    }

    /// Makes the tables for `offset` from `place` to `to`, and returns the last one.
    #[cold]
    fn make_tables(
        &mut self,
        offset: u64,
        place: &PagePlace,
        to: Level,
    ) -> Result<PhysicalAddress, TableError> {
        let PagePlace { slot, level, .. } = *place;
        let needed = (to.number() - level.number()) as usize;
        let exhausted = TableError::OutOfTables { needed };
        if !self.reserve(needed) {
            return Err(exhausted);
        }
        let private = Visibility::Private;
        let first = self.take().ok_or(exhausted)?;
        self.leave_empty(first, 0, self.size().entries());
        let (mut last, mut below) = (first, level.next());
        while below < to {
            let next = self.take().ok_or(exhausted)?;
            self.leave_empty(next, 0, self.size().entries());
            let link = Descriptor::table(&self.geometry, next);
            self.store(last, self.index(offset, below), link, private);
            last = next;
            below = below.next();
        }
        let link = Descriptor::table(&self.geometry, first);
        self.store(slot.table, slot.index, link, self.linking());
        self.pending.made_valid();
        Ok(last)
    }

    /// Stores the entry of a page or block that has none. The store is a store-release, so a CPU that walks
    /// by the entry sees everything stored into the page before. Otherwise another CPU in the space
    /// could read what the page held before it was zeroed.
    pub(crate) fn set_page(&mut self, slot: Slot, entry: Descriptor) {
        let how = self.linking();
        self.store(slot.table, slot.index, entry, how);
        self.pending.made_valid();
    }

    /// Stores the entries of a contiguous group, none of which is valid: `entry` has the hint and the
    /// output of the first member, whose slot is `first`. As for [`set_page`](Self::set_page), each
    /// store is a store-release. A walker that sees some of them may take the hint for all, and the
    /// others translate as it then says.
    pub(crate) fn set_group(&mut self, first: Slot, entry: Descriptor) {
        let count = self.size().contiguous_entries(Level::L3);
        let how = self.linking();
        let step = self.size().bytes();
        self.fill(first.table, first.index, count, entry, step, how);
        self.pending.made_valid();
    }

    /// Whether no page of the group of `slot` is mapped.
    pub(crate) fn is_group_empty(&self, slot: Slot) -> bool {
        let first = self.first_of_group(slot);
        let count = self.size().contiguous_entries(Level::L3);
        self.find_mapped(first.table, first.index, count).is_none()
    }

    /// Changes bits of the page's entry in place without losing an update by hardware, and
    /// invalidates the TLB for the page.
    pub(crate) fn update_page(&mut self, offset: u64, slot: Slot, clear: u64, set: u64) {
        let of = Descriptor::VALID;
        let change = BitChange { of, clear, set };
        self.update(slot.table, slot.index, 1, change);
        self.flush_pages(offset, offset + self.size().bytes());
    }

    /// Sets a page's clear access flag. No CPU caches an entry without the flag, so the change
    /// counts as making an invalid entry valid.
    pub(crate) fn set_accessed(&mut self, slot: Slot) {
        let change = BitChange {
            of: Descriptor::VALID,
            clear: 0,
            set: Descriptor::ACCESS_FLAG,
        };
        self.update(slot.table, slot.index, 1, change);
        self.pending.made_valid();
    }

    /// Replaces a page by another one with break-before-make (RDDMVT), and returns the old page's
    /// frame.
    // A part of the copy at a first write, whoever else has the same tables.
    #[inline(always)]
    pub(crate) fn replace_page(&mut self, offset: u64, slot: Slot, new: Descriptor) -> FreedFrames {
        let old = self.exchange(slot.table, slot.index, Descriptor::INVALID);
        let frame = self.output(old);
        let broken = self.flush_pages(offset, offset + self.size().bytes());
        let freed = broken.frames(frame, 1);
        self.set_page(slot, new);
        self.publish();
        freed
    }
}
