//! Unmapping pages whose frames are given back: in three steps that need no memory.
//!
//! 1. What goes is made invalid, but keeps its output: pages by the hidden mark, and a table with
//!    nothing in it that stays as a whole, by the same mark in the entry that leads to it. What is
//!    in such a table is not touched.
//! 2. One invalidation, of pages alone or of tables too.
//! 3. The marked entries are visited: frames are released, in runs, entries become empty, tables are
//!    given back.
//!
//! So neither a frame nor a table is anybody else's before no CPU can reach it (the order of
//! [`unmap`](PageTables::unmap), whose chain through the tables would overwrite what is to be
//! released). For tables with nothing but pages, where no block is ever hidden above the last level.

use super::{BitChange, Environment, Liveness, PageTables, flush};
use crate::arch::page_size::{Level, Page};
use crate::arch::tlbi::{Invalidation, Reach};
use crate::arch::{Descriptor, PhysicalAddress};

/// Makes pages invalid and keeps their outputs.
const DETACH: BitChange = BitChange {
    of: Descriptor::VALID,
    clear: Descriptor::VALID,
    set: Descriptor::HIDDEN,
};

/// What the invalidation has to reach.
#[derive(Default)]
struct Detached {
    pages: bool,
    tables: bool,
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Unmaps the pages between two offsets, and calls `release` for their frames, in runs, when no
    /// CPU can reach them any more. Tables left empty are freed, but not the root. Gives the pages
    /// that there were.
    ///
    /// A contiguous group that an end cuts must have been taken apart before.
    pub(crate) fn release_pages(
        &mut self,
        from: u64,
        to: u64,
        mut release: impl FnMut(PhysicalAddress, u64),
    ) -> u64 {
        if from >= to {
            return 0;
        }
        let (root, level) = (self.root, self.geometry.start_level());
        let mut detached = Detached::default();
        self.detach(root, level, from, to, &mut detached);
        if !detached.pages && !detached.tables {
            return 0;
        }
        if self.liveness == Liveness::Live {
            let (reach, level) = if detached.tables {
                (Reach::AllLevels, None)
            } else {
                (Reach::LastLevel, Some(Level::L3))
            };
            let what = Invalidation {
                start: self.address(from),
                bytes: to - from,
                stride: P::SIZE.bytes(),
                reach,
                asid: self.asid,
                level,
            };
            flush::invalidate(&mut self.environment, &what);
        }
        // Frames mostly go on from one table to the next: what they make together is one run, wherever
        // among them the tables end.
        let mut run = (PhysicalAddress(0), 0);
        let pages = self.collect(root, level, from, to, &mut |first, count| {
            if run.1 > 0 && run.0.0 + run.1 * P::SIZE.bytes() == first.0 {
                run.1 += count;
                return;
            }
            if run.1 > 0 {
                release(run.0, run.1);
            }
            run = (first, count);
        });
        if run.1 > 0 {
            release(run.0, run.1);
        }
        pages
    }

    /// The first step.
    fn detach(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        detached: &mut Detached,
    ) {
        if level.is_last() {
            let count = ((to - from) >> P::SIZE.shift()) as usize;
            let pages = self.update(table, Self::index(from, level), count, DETACH);
            detached.pages |= pages > 0;
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
                    self.detach(below, under, at, next, detached);
                    whole = !under.is_last() && self.all_detached(below);
                }
                if whole {
                    self.store(table, index, entry.hidden(), how);
                    detached.tables = true;
                }
            }
            at = next;
        }
    }

    /// Whether a last-level table has nothing outside of a range of what it translates.
    fn is_last_part(&self, table: PhysicalAddress, level: Level, from: u64, to: u64) -> bool {
        let first = Self::index(from, level);
        let behind = first + ((to - from) >> P::SIZE.shift()) as usize;
        level.is_last()
            && self.find_mapped(table, 0, first).is_none()
            && self
                .find_mapped(table, behind, P::SIZE.entries() - behind)
                .is_none()
    }

    /// Whether a table above the last level has nothing valid left.
    fn all_detached(&self, table: PhysicalAddress) -> bool {
        (0..P::SIZE.entries()).all(|index| !self.load(table, index).is_valid())
    }

    /// The third step.
    fn collect(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        release: &mut impl FnMut(PhysicalAddress, u64),
    ) -> u64 {
        let how = self.visibility();
        if level.is_last() {
            let first = Self::index(from, level);
            let count = ((to - from) >> P::SIZE.shift()) as usize;
            let pages = self.release_runs(table, first, count, release);
            // Nothing that was not detached is left between the two.
            self.fill(table, first, count, Descriptor::INVALID, 0, how);
            return pages;
        }
        let bytes = P::SIZE.entry_bytes(level);
        let mut pages = 0;
        let mut at = from;
        while at < to {
            let next = to.min((at & !(bytes - 1)) + bytes);
            let index = Self::index(at, level);
            let entry = self.load(table, index);
            if entry.is_table(level) {
                let below = self.geometry.address_of(entry, level);
                pages += self.collect(below, level.next(), at, next, release);
            } else if entry.0 & Descriptor::HIDDEN != 0 {
                pages += self.dismantle(entry, level, release);
                self.store(table, index, Descriptor::INVALID, how);
            }
            at = next;
        }
        pages
    }

    /// Releases all that is below an entry of `level` that led to a table, and frees the tables.
    fn dismantle(
        &mut self,
        entry: Descriptor,
        level: Level,
        release: &mut impl FnMut(PhysicalAddress, u64),
    ) -> u64 {
        let link = Descriptor((entry.0 & !Descriptor::HIDDEN) | Descriptor::VALID);
        let table = self.geometry.address_of(link, level);
        let below = level.next();
        let mut pages = 0;
        if below.is_last() {
            pages = self.release_runs(table, 0, P::SIZE.entries(), release);
        } else {
            let mut index = 0;
            while let Some(found) = self.next_mapped(table, index, P::SIZE.entries()) {
                index = found;
                pages += self.dismantle(self.load(table, index), below, release);
                index += 1;
            }
        }
        self.environment.free(table);
        pages
    }

    /// Calls `visit` for the frames between two offsets, in runs. For tables with nothing but pages.
    pub(crate) fn visit_frames(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(PhysicalAddress, u64),
    ) {
        let mut at = from;
        while at < to {
            let (slot, next) = self.pages_from(at, to);
            if let Some(slot) = slot {
                let count = ((next - at) >> P::SIZE.shift()) as usize;
                self.release_runs(slot.table, slot.index, count, &mut visit);
            }
            at = next;
        }
    }

    /// Calls `release` for what entries of a last-level table map, and leaves them as they are.
    fn release_runs(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        release: &mut impl FnMut(PhysicalAddress, u64),
    ) -> u64 {
        let end = first + count;
        let mut index = first;
        let mut pages = 0;
        while let Some(found) = self.next_mapped(table, index, end) {
            index = found;
            let entry = self.load(table, index);
            let output = self
                .geometry
                .address_of(Descriptor(entry.0 | Descriptor::VALID), Level::L3);
            let most = self.most_in_run(output, end - index);
            let run = self.output_run_length(table, index, entry, most);
            release(output, run as u64);
            pages += run as u64;
            index += run;
        }
        pages
    }
}
