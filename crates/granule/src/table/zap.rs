//! Unmapping pages and releasing their frames, in three steps that need no memory:
//!
//! 1. Detach: pages and blocks become invalid but keep their outputs, by the present-invalid mark. A table
//!    that translates nothing else is detached as a whole, by the same mark in the entry that points
//!    to it, and its own entries do not change. The caller knows the range in which nothing else is, so no
//!    table is searched for other entries.
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
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress};

/// Makes pages invalid but keeps their outputs.
const DETACH: BitChange = BitChange {
    of: Descriptor::VALID,
    clear: Descriptor::VALID,
    set: Descriptor::PRESENT_INVALID,
};

impl<P: PageChoice, E: TableEnvironment> PageTables<P, E> {
    /// Unmaps the pages between two offsets, and calls `release` for runs of their frames once no
    /// CPU can reach them. Returns the number of unmapped pages.
    ///
    /// Tables that translate only offsets in `hole`, which contains the range, are freed, except the root.
    /// Others stay, even if they are empty. No other page may be mapped in the hole, and each table there must
    /// translate a part of the range: the invalidation reaches no other table.
    ///
    /// The caller must have split a block, and cleared the hint of a contiguous group, that an end of
    /// the range cuts.
    pub(crate) fn zap_pages(
        &mut self,
        (from, to): (u64, u64),
        hole: (u64, u64),
        mut release: impl FnMut(FreedFrames),
    ) -> u64 {
        if from >= to {
            return 0;
        }
        let place = self.place(from);
        let bytes = self.size().entry_bytes(place.level) << self.size().index_bits();
        let start = from & !(bytes - 1);
        let (mut table, mut level) = (self.root, self.geometry.start_level());
        if to - start <= bytes && (start < hole.0 || hole.1 < start + bytes) {
            // The range lies in this table, which stays, as those above it do.
            (table, level) = (place.slot.table, place.level);
        }
        self.detach(table, level, (from, to), hole);
        self.pending.within(from, to);
        if !self.pending.is_stale() {
            return 0;
        }
        let page = self.size().bytes();
        let invalidated = self.flush();
        // Consecutive frames often continue from one table to the next, so runs join across tables.
        let mut run = FreedFrames::none();
        let pages = invalidated.collect(table, level, (from, to), false, &mut |freed| {
            let before = run.append(freed, page);
            if before.count() > 0 {
                release(before);
            }
        });
        if run.count() > 0 {
            release(run);
        }
        pages
    }

    /// Detaches the pages between two offsets, and the tables that translate only offsets in `hole`.
    fn detach(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        (from, to): (u64, u64),
        hole: (u64, u64),
    ) {
        if level.is_last() {
            let count = ((to - from) >> self.size().shift()) as usize;
            let pages = self.update(table, self.index(from, level), count, DETACH);
            if pages > 0 {
                self.pending.some_leaves(level, self.size());
            }
            return;
        }
        let how = self.visibility();
        let bytes = self.size().entry_bytes(level);
        let mut at = from;
        while at < to {
            let start = at & !(bytes - 1);
            let next = to.min(start + bytes);
            let index = self.index(at, level);
            let entry = self.load(table, index);
            if entry.is_table(level) {
                let under = level.next();
                if hole.0 <= start && start + bytes <= hole.1 {
                    self.store(table, index, entry.present_invalid(), how);
                    self.pending.unlinked(self.size().bytes());
                    self.pending.below(under);
                } else {
                    let below = self.geometry.address_of(entry, level);
                    self.detach(below, under, (at, next), hole);
                }
            } else if entry.is_valid() {
                self.update(table, index, 1, DETACH);
                self.pending.some_leaves(level, self.size());
            }
            at = next;
        }
    }

    /// Whether a table has no entry but those for some of the offsets that it translates.
    fn has_none_outside(
        &self,
        table: PhysicalAddress,
        level: Level,
        (from, to): (u64, u64),
    ) -> bool {
        let shift = self.size().level_shift(level);
        let first = self.index(from, level);
        let behind = first + ((to - 1) >> shift) as usize - (from >> shift) as usize + 1;
        let rest = self.size().entries() - behind;
        self.find_mapped(table, 0, first).is_none()
            && self.find_mapped(table, behind, rest).is_none()
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
            let count = (next - at) >> self.size().shift();
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

impl<P: PageChoice, E: TableEnvironment> Invalidated<'_, P, E> {
    /// Releases the frames of the detached pages and blocks between two offsets, and frees the detached tables
    /// below `table`. If `table` itself is detached, all that it leads to is. Returns the number of pages.
    fn collect(
        mut self,
        table: PhysicalAddress,
        level: Level,
        (from, to): (u64, u64),
        detached: bool,
        release: &mut impl FnMut(FreedFrames),
    ) -> u64 {
        let (how, size) = (self.look().visibility(), self.look().size());
        let first = size.index(from, level);
        if level.is_last() {
            let count = ((to - from) >> size.shift()) as usize;
            let pages = self.release_frames(table, first, count, release);
            if !detached {
                // Every page in the range was detached.
                let tables = self.tables();
                tables.fill(table, first, count, Descriptor::INVALID, 0, how);
            }
            return pages;
        }
        let shift = size.level_shift(level);
        let end = first + ((to - 1) >> shift) as usize - (from >> shift) as usize + 1;
        let (mut pages, mut index) = (0, first);
        while let Some(found) = self.look().next_mapped(table, index, end) {
            index = found + 1;
            let entry = self.look().load(table, found);
            let here = detached || !entry.is_valid();
            let link = Descriptor((entry.0 & !Descriptor::PRESENT_INVALID) | Descriptor::VALID);
            let start = ((from >> shift) + (found - first) as u64) << shift;
            let bytes = size.entry_bytes(level);
            if link.is_table(level) {
                let below = self.look().geometry.address_of(link, level);
                let part = (from.max(start), to.min(start + bytes));
                pages += self
                    .again()
                    .collect(below, level.next(), part, here, release);
                if here {
                    debug_assert!(self.look().has_none_outside(below, level.next(), part));
                    self.free(below);
                }
            } else if here {
                let count = bytes >> size.shift();
                let output = self.look().block_output(entry);
                release(self.frames(output, count));
                pages += count;
            }
            if here && !detached {
                self.tables().store(table, found, Descriptor::INVALID, how);
            }
        }
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
