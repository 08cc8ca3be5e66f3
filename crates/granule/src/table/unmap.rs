//! Unmapping a range, and freeing the tables that become empty.
//!
//! The operation clears and records entries. Empty tables of a live tree go into the chain of its
//! [pending](super::pending) changes, and the flush at the end frees them. A tree that no CPU walks
//! frees them at once.

use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{BitChange, BitPattern, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, Kind, PhysicalAddress};

/// Clears every bit of a leaf.
pub(super) const CLEAR: BitChange = BitChange {
    of: BitChange::LEAVES,
    clear: u64::MAX,
    set: 0,
};

/// The treatment of tables that an unmap leaves without entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a table stays or goes")]
pub enum EmptyTables {
    /// They are freed, except the root.
    Free,
    /// They stay, for ranges that are soon mapped again. [`PageTables::unmap`] of a range frees
    /// them later.
    Keep,
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Unmaps `bytes` bytes from `start`, and skips unmapped addresses. Tables that become empty
    /// are freed, except the root.
    ///
    /// On live tables the TLB is invalidated before this method returns: by address or range, or as
    /// a whole where that is cheaper. No TLBI is issued if the range was unmapped or held only
    /// present-invalid blocks.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`InsideLeaf`](TableError::InsideLeaf) when the range begins or ends inside a block or
    /// contiguous group and the CPUs' level of FEAT_BBM does not allow splitting it
    /// ([`set_bbm`](Self::set_bbm)); [`OutOfTables`](TableError::OutOfTables) for that split.
    #[inline(always)]
    pub fn unmap(&mut self, start: S::Input, bytes: u64) -> Result<(), TableError> {
        if self.change_near(start, bytes, CLEAR, EmptyTables::Free) {
            return Ok(());
        }
        self.unmap_range(start, bytes, EmptyTables::Free)
    }

    /// As [`unmap`](Self::unmap), but keeps tables that become empty.
    ///
    /// # Errors
    ///
    /// As for [`unmap`](Self::unmap).
    #[inline(always)]
    pub fn unmap_keeping_tables(&mut self, start: S::Input, bytes: u64) -> Result<(), TableError> {
        if self.change_near(start, bytes, CLEAR, EmptyTables::Keep) {
            return Ok(());
        }
        self.unmap_range(start, bytes, EmptyTables::Keep)
    }

    #[inline(never)]
    pub(super) fn unmap_range(
        &mut self,
        start: S::Input,
        bytes: u64,
        empty: EmptyTables,
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        if from == to {
            return Ok(());
        }
        self.split_edges(from, to, &|_| CLEAR)?;
        let free = empty == EmptyTables::Free;
        let mut at = from;
        while at < to {
            // An entry that lies in the range as a whole goes with all tables below it.
            let mut lowest = Level::L3;
            while free
                && lowest > self.geometry.start_level()
                && self.is_whole(at, lowest.above(), to)
            {
                lowest = lowest.above();
            }
            let Place { slot, level, .. } = self.place_to(at, lowest);
            let table = slot.table;
            at = self.clear_entries(table, level, at, to, free);
            if free {
                self.prune(table, level, (at, to), false);
            }
        }
        if self.pending.has_unlinked() {
            // TLBs may cache pointers to the unlinked tables for unmapped addresses too, so the
            // whole range is invalidated.
            self.pending.range(from, to);
        }
        self.flush();
        Ok(())
    }

    /// Clears the entries of one table from the one for `at` on, up to `to` or to a table to look
    /// into, and returns the offset behind. With `free` tables that lie in the range as a whole are
    /// unlinked without a look at their entries.
    fn clear_entries(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        at: u64,
        to: u64,
        free: bool,
    ) -> u64 {
        if level.is_last() {
            let count = self.whole(at, level, to);
            let end = self.behind(at, level, count);
            if self.update(table, self.index(at, level), count, CLEAR) > 0 {
                self.pending_leaves(at, end, level);
            }
            return end;
        }
        let end = self.table_end(at, level, to);
        let mut at = at;
        while at < end {
            let index = self.index(at, level);
            let entry = self.load(table, index);
            let mut next = self.end_of(at, level).min(to);
            match entry.kind(&self.geometry, level) {
                Kind::Invalid => {}
                Kind::Leaf => {
                    let count = self.whole(at, level, to);
                    let count = self.update_alike(table, index, count, BitPattern::BLOCK, CLEAR);
                    next = self.behind(at, level, count);
                    self.pending_leaves(at, next, level);
                }
                Kind::PresentInvalid => {
                    self.store(table, index, Descriptor::INVALID, self.visibility())
                }
                Kind::Table if free && self.is_whole(at, level, to) => {
                    self.store(table, index, Descriptor::INVALID, self.visibility());
                    self.unlink_all(self.output(entry), level.next(), at);
                }
                Kind::Table => break,
            }
            at = next;
        }
        at
    }

    /// Unlinks the table whose entries up to `at` were cleared, if the whole range is done with it
    /// and it is empty, as the caller may know, and then the table above it.
    pub(super) fn prune(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        (at, to): (u64, u64),
        is_empty: bool,
    ) {
        let (mut table, mut level, mut is_empty) = (table, level, is_empty);
        while level > self.geometry.start_level() {
            let last = at - 1;
            let bytes = self.size().entry_bytes(level) << self.size().index_bits();
            let start = last & !(bytes - 1);
            let is_done = at == to || at == start + bytes;
            // Entries before the last one may be tables that stay.
            let index = self.index(last, level) + 1;
            if !is_done || !is_empty && self.has_others(Slot { table, index }, level, 0) {
                return;
            }
            is_empty = false;
            let above = self.place_to(last, level.above()).slot;
            self.store(
                above.table,
                above.index,
                Descriptor::INVALID,
                self.visibility(),
            );
            self.unlink(table, bytes);
            (table, level) = (above.table, level.above());
        }
    }

    /// Unlinks a table, and all tables below it. Their leaves stay as they are, because no walk
    /// reaches them after the invalidation. Of tables that no CPU walks, those of pages are not even
    /// looked at.
    fn unlink_all(&mut self, table: PhysicalAddress, level: Level, offset: u64) {
        let bytes = self.size().entry_bytes(level);
        let span = bytes << self.size().index_bits();
        if level.is_last() {
            self.pending_leaves(offset, offset + span, level);
            return self.unlink(table, span);
        }
        let below = level.next();
        let end = offset + span;
        let mut at = offset;
        while at < end {
            let slot = Slot {
                table,
                index: self.index(at, level),
            };
            let entry = self.load(table, slot.index);
            let mut next = at + bytes;
            if !entry.is_table(level) {
                if entry.is_valid() {
                    next = self.leaves_end(slot, level, at, end).max(next);
                    self.pending_leaves(at, next, level);
                }
            } else if below.is_last() && !self.is_live() {
                self.unlink(self.output(entry), bytes);
            } else {
                self.unlink_all(self.output(entry), below, at);
            }
            at = next;
        }
        self.unlink(table, span);
    }

    /// Records leaves of `level` that live tables had between two offsets.
    #[inline(always)]
    fn pending_leaves(&mut self, from: u64, to: u64, level: Level) {
        if self.is_live() {
            self.pending
                .leaves(from, to, level, self.size().entry_bytes(level));
        }
    }
}
