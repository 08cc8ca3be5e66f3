//! Unmapping a range, and freeing the tables that become empty.
//!
//! The operation clears and records entries. Empty tables go into the chain of the tree's
//! [pending](super::pending) changes, and the flush at the end frees them.

use super::stage::Stage;
use super::{BitChange, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress};

/// Clears every bit of a leaf.
const CLEAR: BitChange = BitChange {
    of: BitChange::LEAVES,
    clear: u64::MAX,
    set: 0,
};

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
    pub fn unmap(&mut self, start: S::Input, bytes: u64) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        if from == to {
            return Ok(());
        }
        self.split_edges(from, to, CLEAR)?;
        let level = self.geometry.start_level();
        let mut at = from;
        while at < to {
            let next = self.root_end(at, to);
            self.unmap_in(self.root_of(at), level, at, next);
            at = next;
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
    /// tables that become empty.
    fn unmap_in(&mut self, table: PhysicalAddress, level: Level, from: u64, to: u64) {
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
            let run = self.leaves_end(table, level, at, to);
            if run > at {
                let count = ((run - at) >> P::SIZE.level_shift(level)) as usize;
                self.update(table, Self::index(at, level), count, CLEAR);
                self.pending.leaves(at, run, level, bytes);
                at = run;
                continue;
            }
            let next = to.min((at & !(bytes - 1)) + bytes);
            let index = Self::index(at, level);
            let entry = self.load(table, index);
            match entry.kind(&self.geometry, level) {
                // `leaves_end` above found every leaf.
                Kind::Invalid | Kind::Leaf => {}
                Kind::PresentInvalid => self.store(table, index, Descriptor::INVALID, how),
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    if next - at == bytes {
                        self.store(table, index, Descriptor::INVALID, how);
                        self.unlink_all(below, level.next(), at, bytes);
                    } else {
                        self.unmap_in(below, level.next(), at, next);
                        if self.is_empty(below) {
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
                let run = self.leaves_end(table, level, at, offset + span);
                if run > at {
                    self.pending.leaves(at, run, level, bytes);
                    at = run;
                    continue;
                }
                let entry = self.load(table, Self::index(at, level));
                if entry.is_table(level) {
                    let below = self.geometry.address_of(entry, level);
                    self.unlink_all(below, level.next(), at, bytes);
                }
                at += bytes;
            }
        }
        self.chain(table, span);
    }

    fn is_empty(&self, table: PhysicalAddress) -> bool {
        self.find_mapped(table, 0, P::SIZE.entries()).is_none()
    }
}
