//! Mapping ranges with the largest leaves, writing each table once.
//!
//! A map takes two passes over its [`Parts`]. The first pass, in `plan`, walks the existing
//! tables, finds obstacles and counts the missing tables; below an empty entry the count is
//! arithmetic, not a walk. The second pass cannot fail. It fills each missing table front to back
//! while the table is private, also where several parts share it, and links the full table with
//! one store. So no table is zeroed first, read back or written twice.

use super::piece::{Leaves, Piece};
use super::plan::{Cursor, OUTPUT_RUN_SHIFT, Part, Parts, Plan};
use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{PageTables, TableEnvironment, TableError, Visibility};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress};

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Maps `bytes` bytes from `start` to the physical addresses from `output` on.
    ///
    /// The range must not be mapped yet. No TLBI is issued, because an invalid entry is never
    /// cached (IWZCBG). On live tables one DSB and one ISB make the whole range usable by this CPU.
    /// Another CPU may use it after its own context synchronisation event.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`OutputTooLarge`](TableError::OutputTooLarge),
    /// [`AlreadyMapped`](TableError::AlreadyMapped), [`OutOfTables`](TableError::OutOfTables).
    #[inline(always)]
    pub fn map(
        &mut self,
        start: S::Input,
        output: PhysicalAddress,
        bytes: u64,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        let bits = S::encode(&attributes, &self.geometry);
        if self.map_near(start, output, bytes, bits, leaves) {
            return Ok(());
        }
        self.map_range(start, output, bytes, bits, leaves)
    }

    /// As [`map`](Self::map) with encoded attributes.
    #[inline(never)]
    pub(super) fn map_range(
        &mut self,
        start: S::Input,
        output: PhysicalAddress,
        bytes: u64,
        bits: u64,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        self.check_output(output, bytes)?;
        let distance = output.0.wrapping_sub(from);
        let plan = Plan::with_bits(&self.geometry, distance, leaves, bits);
        let mapped = self.map_parts(Parts::Of(&[Part { from, to, plan }]));
        self.publish();
        mapped
    }

    /// As [`map`](Self::map), for several pieces at once, all or none. A table that several pieces
    /// share is still written once, and one pair of barriers serves all pieces.
    ///
    /// # Errors
    ///
    /// As for [`map`](Self::map), and [`TableError::Unsorted`] unless the pieces ascend without
    /// overlapping.
    pub fn map_pieces(
        &mut self,
        pieces: &[Piece<S::Input, S::Attributes>],
    ) -> Result<(), TableError> {
        let mapped = self.map_unpublished(pieces, (0, self.geometry.span()));
        self.publish();
        mapped
    }

    /// Maps the parts of `pieces` inside the offsets of `window`, without the barriers. The range
    /// must not be used before [`publish`](Self::publish).
    pub(crate) fn map_unpublished(
        &mut self,
        pieces: &[Piece<S::Input, S::Attributes>],
        window: (u64, u64),
    ) -> Result<(), TableError> {
        self.check_pieces(pieces)?;
        self.map_parts(Parts::Pieces(pieces, window))
    }

    /// Maps parts, which were checked, without the barriers.
    pub(super) fn map_parts(&mut self, parts: Parts<'_, S>) -> Result<(), TableError> {
        // A copy, because the tables change while the cursor looks at it.
        let geometry = self.geometry;
        let mut cursor = Cursor::new(parts, &geometry);
        let needed = self.missing(cursor.clone())?;
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.reserve(needed) {
            return Err(exhausted);
        }
        self.pending.made_valid();
        let (how, link) = (self.visibility(), self.linking());
        let span = self.geometry.span();
        while cursor.at < span {
            let at = cursor.at;
            // The first pass found that nothing is mapped here.
            let Place { slot, level, .. } = self.place(at);
            let mut to = self.end_of(at, level);
            let whole = cursor.whole_to(level, self.table_end(at, level, span));
            if level.is_last() {
                to = whole;
            } else if whole > at {
                // Whole empty entries are written together, up to the next table.
                let count = ((whole - at) >> self.size().level_shift(level)) as usize;
                let table = self.find_mapped(slot.table, slot.index, count);
                to = self.behind(at, level, table.unwrap_or(count).max(1));
            }
            self.write(&mut cursor, slot.table, level, to, how, link)
                .ok_or(exhausted)?;
        }
        Ok(())
    }

    /// Maps the cursor's part up to `to` in the entries of one table, all of which are whole or
    /// which is one. `None` means that the environment broke its promise.
    #[inline(never)]
    fn write(
        &mut self,
        cursor: &mut Cursor<'_, P, S>,
        table: PhysicalAddress,
        level: Level,
        to: u64,
        leaf: Visibility,
        link: Visibility,
    ) -> Option<()> {
        let at = cursor.at;
        let whole = cursor.whole_to(level, to);
        if whole == at {
            return self.build_child(cursor, table, level, to, link);
        }
        if level >= cursor.plan.top() {
            self.fill_leaves(&cursor.plan, table, level, at, whole, leaf);
            cursor.done_to(whole);
            return Some(());
        }
        if !level.next().is_last() {
            while cursor.at < whole {
                let end = self.end_of(cursor.at, level);
                self.build_child(cursor, table, level, end, link)?;
            }
            return Some(());
        }
        let index = self.index(at, level);
        self.build_pages(&cursor.plan, Slot { table, index }, at, whole, link)?;
        cursor.done_to(whole);
        Some(())
    }

    /// Makes last-level tables for the whole entries of level 2 from `at` to `end`, from `slot` on.
    fn build_pages(
        &mut self,
        plan: &Plan,
        slot: Slot,
        at: u64,
        end: u64,
        link: Visibility,
    ) -> Option<()> {
        let (mut at, mut index) = (at, slot.index);
        while at < end {
            let left = ((end - at) >> self.size().level_shift(Level::L2)) as usize;
            let run = self.take_run(left)?;
            self.fill_tables(plan, run.first, run.count, at);
            self.link_run(Slot { index, ..slot }, run.first, run.count, link);
            index += run.count;
            at = self.behind(at, Level::L2, run.count);
        }
        Some(())
    }

    /// Fills new last-level tables that are consecutive in memory with the pages from the offset
    /// `at` on.
    #[inline(never)]
    fn fill_tables(&mut self, plan: &Plan, first: PhysicalAddress, count: usize, at: u64) {
        let bytes = self.size().entry_bytes(Level::L2);
        let private = Visibility::Private;
        let size = self.size();
        let group = plan.group(size, Level::L3);
        let (entries, hint) = plan.run(size.shift(), group, at, at + bytes);
        // The common case takes no computation for each table: none begins or ends inside a group, and
        // no output crosses the format's break.
        let last = plan.output(self.behind(at, Level::L2, count) - 1);
        let crosses = (plan.output(at) ^ last) >> OUTPUT_RUN_SHIFT != 0;
        let simple = entries == size.entries() && !crosses;
        let (mut child, mut at) = (first, at);
        for _ in 0..count {
            if simple {
                let first = plan.leaf(&self.geometry, Level::L3, at, hint);
                self.fill(child, 0, entries, first, self.size().bytes(), private);
            } else {
                self.fill_leaves(plan, child, Level::L3, at, at + bytes, private);
            }
            child.0 += self.size().bytes();
            at += bytes;
        }
    }

    /// Links tables that are consecutive in memory, from `slot` on.
    #[inline(never)]
    fn link_run(&mut self, slot: Slot, first: PhysicalAddress, count: usize, link: Visibility) {
        let mask = (1 << OUTPUT_RUN_SHIFT) - 1;
        let page = self.size().bytes();
        let mut done = 0;
        while done < count {
            let child = first.0 + done as u64 * page;
            let before_break = (mask + 1 - (child & mask)) >> self.size().shift();
            let run = (count - done).min(before_break as usize);
            let descriptor = Descriptor::table(&self.geometry, PhysicalAddress(child));
            self.fill(slot.table, slot.index + done, run, descriptor, page, link);
            done += run;
        }
    }

    /// Builds the table for the cursor's entry of `level`, which ends at `end`, and links it.
    fn build_child(
        &mut self,
        cursor: &mut Cursor<'_, P, S>,
        table: PhysicalAddress,
        level: Level,
        end: u64,
        link: Visibility,
    ) -> Option<()> {
        let index = self.index(cursor.at, level);
        let child = self.take()?;
        self.build(cursor, child, level.next(), end)?;
        self.store(table, index, Descriptor::table(&self.geometry, child), link);
        Some(())
    }

    /// Fills a new, private table of `level` from its first entry to its last: with the parts
    /// before `end`, and with invalid entries elsewhere.
    pub(super) fn build(
        &mut self,
        cursor: &mut Cursor<'_, P, S>,
        table: PhysicalAddress,
        level: Level,
        end: u64,
    ) -> Option<()> {
        let private = Visibility::Private;
        let mut written = 0;
        while cursor.at < end {
            let at = cursor.at;
            let index = self.index(at, level);
            self.leave_empty(table, written, index - written);
            let to = cursor.whole_to(level, end);
            let to = if to > at { to } else { self.end_of(at, level) };
            self.write(cursor, table, level, to, private, private)?;
            written = self.index(to - 1, level) + 1;
        }
        self.leave_empty(table, written, self.size().entries() - written);
        Some(())
    }

    /// Makes entries of a private table invalid.
    pub(super) fn leave_empty(&mut self, table: PhysicalAddress, first: usize, count: usize) {
        if count == 0 {
            return;
        }
        // The compiler turns a loop that visibly stores zeros into a call of `memset`. In kernels
        // for arm64, without NEON, that takes six times the instructions of paired stores.
        let nothing = if cfg!(target_arch = "aarch64") {
            core::hint::black_box(Descriptor::INVALID)
        } else {
            Descriptor::INVALID
        };
        self.fill(table, first, count, nothing, 0, Visibility::Private);
    }

    /// Writes leaves for the whole entries from `at` to `end`, with the contiguous hint on each
    /// whole group.
    #[inline(never)]
    fn fill_leaves(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        at: u64,
        end: u64,
        how: Visibility,
    ) {
        let shift = self.size().level_shift(level);
        let group = plan.group(self.size(), level);
        let (mut at, mut index) = (at, self.index(at, level));
        while at < end {
            let (count, hint) = plan.run(shift, group, at, end);
            let first = plan.leaf(&self.geometry, level, at, hint);
            self.fill(table, index, count, first, 1 << shift, how);
            index += count;
            at += (count as u64) << shift;
        }
    }
}
