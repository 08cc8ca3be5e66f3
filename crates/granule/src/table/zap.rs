//! Unmapping pages and releasing their frames, in three steps that need no memory:
//!
//! 1. Detach: pages and blocks become invalid but keep their outputs, by the present-invalid mark. A table
//!    without pages that stay mapped is detached as a whole, by the same mark in the entry that
//!    points to it, and its own entries do not change.
//! 2. Invalidate the TLB once, for pages alone or for tables too.
//! 3. Collect: visit the marked entries, release the frames in runs, clear the entries, free the
//!    tables.
//!
//! [`Invalidated`] does the third step, so frames and tables are reused only after the
//! invalidation. The chain of [`unmap`](PageTables::unmap) would overwrite entries whose frames are
//! still needed. A detached block and a detached table differ in bit 1, as valid ones do.

use super::block::MappedBy;
use super::pending::Invalidated;
use super::{BitChange, FreedFrames, PageTables, TableEnvironment};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, PhysicalAddress};

/// Makes pages invalid but keeps their outputs.
const DETACH: BitChange = BitChange {
    of: Descriptor::VALID,
    clear: Descriptor::VALID,
    set: Descriptor::PRESENT_INVALID,
};

impl<P: Page, E: TableEnvironment> PageTables<P, E> {
    /// Unmaps the pages between two offsets, and calls `release` for runs of their frames once no
    /// CPU can reach them. Empty tables are freed, except the root. Returns the number of unmapped
    /// pages.
    ///
    /// The caller must have split a block, and cleared the hint of a contiguous group, that an end of
    /// the range cuts.
    pub(crate) fn zap_pages(
        &mut self,
        from: u64,
        to: u64,
        mut release: impl FnMut(FreedFrames),
    ) -> u64 {
        if from >= to {
            return 0;
        }
        let (root, level) = (self.root, self.geometry.start_level());
        self.detach(root, level, from, to);
        self.pending.within(from, to);
        if !self.pending.is_stale() {
            return 0;
        }
        let invalidated = self.flush();
        // Consecutive frames often continue from one table to the next, so runs join across tables.
        let mut run = FreedFrames::none();
        let pages = invalidated.collect(root, level, from, to, &mut |freed| {
            let before = run.append(freed, P::SIZE.bytes());
            if before.count() > 0 {
                release(before);
            }
        });
        if run.count() > 0 {
            release(run);
        }
        pages
    }

    /// Detaches the pages between two offsets, and the tables without other pages.
    fn detach(&mut self, table: PhysicalAddress, level: Level, from: u64, to: u64) {
        if level.is_last() {
            let count = ((to - from) >> P::SIZE.shift()) as usize;
            let pages = self.update(table, Self::index(from, level), count, DETACH);
            if pages > 0 {
                self.pending.some_leaves::<P>(level);
            }
            return;
        }
        let how = self.visibility();
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            let next = to.min((at & !(bytes - 1)) + bytes);
            let index = Self::index(at, level);
            let entry = self.load(table, index);
            if entry.is_table(level) {
                let (below, under) = (self.geometry.address_of(entry, level), level.next());
                let mut whole = next - at == bytes || self.is_last_part(below, under, at, next);
                if !whole {
                    self.detach(below, under, at, next);
                    whole = !under.is_last() && self.all_detached(below);
                }
                if whole {
                    self.store(table, index, entry.present_invalid(), how);
                    self.pending.unlinked(P::SIZE.bytes());
                    self.pending.below(under);
                }
            } else if entry.is_valid() {
                self.update(table, index, 1, DETACH);
                self.pending.some_leaves::<P>(level);
            }
            at = next;
        }
    }

    /// Whether `table` is a last-level table without pages outside the range.
    fn is_last_part(&self, table: PhysicalAddress, level: Level, from: u64, to: u64) -> bool {
        let first = Self::index(from, level);
        let behind = first + ((to - from) >> P::SIZE.shift()) as usize;
        level.is_last()
            && self.find_mapped(table, 0, first).is_none()
            && self
                .find_mapped(table, behind, P::SIZE.entries() - behind)
                .is_none()
    }

    /// Whether a table above the last level has no valid entry left: no table and no block.
    fn all_detached(&self, table: PhysicalAddress) -> bool {
        (0..P::SIZE.entries()).all(|index| !self.load(table, index).is_valid())
    }

    /// Calls `visit` for runs of the frames between two offsets, which cut no block.
    pub(crate) fn visit_frames(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(PhysicalAddress, u64),
    ) {
        let mut at = from;
        while at < to {
            let (mapped, next) = self.mapped_from(at, to);
            let count = (next - at) >> P::SIZE.shift();
            match mapped {
                MappedBy::Pages(slot) => {
                    self.visit_table_frames(slot.table, slot.index, count as usize, &mut visit);
                }
                MappedBy::Block(_, entry) => visit(self.block_output(entry), count),
                MappedBy::Nothing => {}
            }
            at = next;
        }
    }

    /// Calls `visit` for runs of the frames of entries of a last-level table.
    fn visit_table_frames(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        visit: &mut impl FnMut(PhysicalAddress, u64),
    ) {
        let end = first + count;
        let mut index = first;
        while let Some(found) = self.next_mapped(table, index, end) {
            index = found;
            let entry = self.load(table, index);
            let output = self
                .geometry
                .address_of(Descriptor(entry.0 | Descriptor::VALID), Level::L3);
            let most = self.most_in_run(output, end - index);
            let run = self.output_run_length(table, index, entry, most);
            visit(output, run as u64);
            index += run;
        }
    }
}

impl<P: Page, E: TableEnvironment> Invalidated<'_, P, E> {
    /// Collects the detached pages and tables between two offsets. Returns the number of pages.
    fn collect(
        mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        release: &mut impl FnMut(FreedFrames),
    ) -> u64 {
        let tables = self.tables();
        let how = tables.visibility();
        if level.is_last() {
            let first = PageTables::<P, E>::index(from, level);
            let count = ((to - from) >> P::SIZE.shift()) as usize;
            let pages = self.release_frames(table, first, count, release);
            // Every page in the range was detached.
            let tables = self.tables();
            tables.fill(table, first, count, Descriptor::INVALID, 0, how);
            return pages;
        }
        let bytes = P::SIZE.entry_bytes(level);
        let mut pages = 0;
        let mut at = from;
        while at < to {
            let next = to.min((at & !(bytes - 1)) + bytes);
            let index = PageTables::<P, E>::index(at, level);
            let tables = self.tables();
            let entry = tables.load(table, index);
            if entry.is_table(level) {
                let below = tables.geometry.address_of(entry, level);
                let again = self.again();
                pages += again.collect(below, level.next(), at, next, release);
            } else if entry.0 & Descriptor::PRESENT_INVALID != 0 {
                pages += self.again().dismantle(entry, level, release);
                self.tables().store(table, index, Descriptor::INVALID, how);
            }
            at = next;
        }
        pages
    }

    /// Releases all frames below a detached entry of `level`, a block or a table, and frees the
    /// tables.
    fn dismantle(
        mut self,
        entry: Descriptor,
        level: Level,
        release: &mut impl FnMut(FreedFrames),
    ) -> u64 {
        if entry.0 & Descriptor::TABLE_OR_PAGE == 0 {
            let first = self.look().block_output(entry);
            let count = P::SIZE.entry_bytes(level) >> P::SIZE.shift();
            release(self.frames(first, count));
            return count;
        }
        let link = Descriptor((entry.0 & !Descriptor::PRESENT_INVALID) | Descriptor::VALID);
        let table = self.tables().geometry.address_of(link, level);
        let below = level.next();
        let mut pages = 0;
        if below.is_last() {
            pages = self.release_frames(table, 0, P::SIZE.entries(), release);
        } else {
            let mut index = 0;
            while let Some(found) = self.tables().next_mapped(table, index, P::SIZE.entries()) {
                index = found;
                let entry = self.tables().load(table, index);
                pages += self.again().dismantle(entry, below, release);
                index += 1;
            }
        }
        self.free(table);
        pages
    }

    /// Releases the frames of `count` entries of a last-level table, and returns their number.
    fn release_frames(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        release: &mut impl FnMut(FreedFrames),
    ) -> u64 {
        let mut pages = 0;
        let frames = |first, count| self.frames(first, count);
        self.look()
            .visit_table_frames(table, first, count, &mut |first, count| {
                pages += count;
                release(frames(first, count));
            });
        pages
    }
}
