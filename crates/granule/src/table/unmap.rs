//! Unmapping a range, and freeing the tables that become empty.
//!
//! The operation clears and records entries. Empty tables go into the chain of the tree's
//! [pending](super::pending) changes, and the flush at the end frees them.

use super::stage::Stage;
use super::{BitChange, BitPattern, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, Page};
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

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
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
        if bytes == P::SIZE.bytes() && self.unmap_page(start, EmptyTables::Free) {
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
        if bytes == P::SIZE.bytes() && self.unmap_page(start, EmptyTables::Keep) {
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
        if bytes == P::SIZE.bytes() {
            if let Some((offset, slot)) = self.page_of_other_format(start) {
                if self.unmap_slot(offset, slot, empty) {
                    return Ok(());
                }
            }
        }
        let (from, to) = self.offsets(start, bytes)?;
        if from == to {
            return Ok(());
        }
        self.split_edges(from, to, CLEAR)?;
        let level = self.geometry.start_level();
        for (root, from, to) in self.roots(from, to) {
            self.unmap_in(root, level, from, to, empty);
        }
        if self.pending.has_unlinked() {
            // TLBs may cache pointers to the unlinked tables for unmapped addresses too, so the
            // whole range is invalidated.
            self.pending.range(from, to);
        }
        self.flush();
        Ok(())
    }

    /// Clears the entries for the offsets from `from` to `to`, which cut no leaf, and unlinks the
    /// tables that become empty, or keeps them.
    fn unmap_in(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        empty: EmptyTables,
    ) {
        let how = self.visibility();
        let bytes = P::SIZE.entry_bytes(level);
        if level.is_last() {
            let first = Self::index(from, level);
            let count = ((to - from) >> P::SIZE.shift()) as usize;
            if self.update(table, first, count, CLEAR) > 0 {
                self.pending.leaves(from, to, level, bytes);
            }
            return;
        }
        let mut at = from;
        while at < to {
            let next = to.min((at & !(bytes - 1)) + bytes);
            let index = Self::index(at, level);
            let entry = self.load(table, index);
            match entry.kind(&self.geometry, level) {
                Kind::Invalid => {}
                Kind::Leaf => {
                    let run = if self.liveness == Liveness::Private {
                        let run = self.leaves_end(table, level, at, to);
                        let count = ((run - at) >> P::SIZE.level_shift(level)) as usize;
                        self.fill(table, index, count, Descriptor::INVALID, 0, how);
                        run
                    } else {
                        let (first, count) = Self::whole(level, at, to);
                        let count =
                            self.update_alike(table, first, count, BitPattern::BLOCK, CLEAR);
                        at + ((count as u64) << P::SIZE.level_shift(level))
                    };
                    self.pending.leaves(at, run, level, bytes);
                    at = run;
                    continue;
                }
                Kind::PresentInvalid => self.store(table, index, Descriptor::INVALID, how),
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    let free = empty == EmptyTables::Free;
                    if free && next - at == bytes {
                        self.store(table, index, Descriptor::INVALID, how);
                        self.unlink_all(below, level.next(), at, bytes);
                    } else {
                        self.unmap_in(below, level.next(), at, next, empty);
                        if free && self.is_empty(below, level.next(), at, next) {
                            self.store(table, index, Descriptor::INVALID, how);
                            self.chain(below, bytes);
                        }
                    }
                }
            }
            at = next;
        }
    }

    /// Adds an unlinked table, and all tables below it, to the chain. Their leaves stay as they
    /// are, because no walk reaches them after the invalidation.
    fn unlink_all(&mut self, table: PhysicalAddress, level: Level, offset: u64, span: u64) {
        let bytes = P::SIZE.entry_bytes(level);
        if level.is_last() {
            self.pending.leaves(offset, offset + span, level, bytes);
        } else {
            let mut at = offset;
            while at < offset + span {
                let entry = self.load(table, Self::index(at, level));
                let mut next = at + bytes;
                match entry.kind(&self.geometry, level) {
                    Kind::Table => {
                        let below = self.geometry.address_of(entry, level);
                        self.unlink_all(below, level.next(), at, bytes);
                    }
                    Kind::Leaf => {
                        next = self.leaves_end(table, level, at, offset + span);
                        self.pending.leaves(at, next, level, bytes);
                    }
                    Kind::Invalid | Kind::PresentInvalid => {}
                }
                at = next;
            }
        }
        self.chain(table, span);
    }

    /// Whether `table` has no entry left, after those for the offsets from `from` to `to` changed.
    fn is_empty(&self, table: PhysicalAddress, level: Level, from: u64, to: u64) -> bool {
        let (first, last) = (Self::index(from, level), Self::index(to - 1, level));
        !self.has_neighbour(table, first, last)
            && self.find_mapped(table, 0, P::SIZE.entries()).is_none()
    }

    /// Whether the entry before `first` or the one after `last` is not empty. Neighbours usually
    /// belong together, so these two spare most scans of a whole table.
    #[inline(always)]
    pub(super) fn has_neighbour(&self, table: PhysicalAddress, first: usize, last: usize) -> bool {
        let mapped = |index| self.load(table, index).0 & BitChange::LEAVES != 0;
        (last + 1 < P::SIZE.entries() && mapped(last + 1)) || (first > 0 && mapped(first - 1))
    }
}
