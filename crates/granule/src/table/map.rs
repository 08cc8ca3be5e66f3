//! Mapping ranges with the largest leaves, writing each table once.
//!
//! A map takes two passes over a list of [`Piece`]s. The first pass, in `plan`, walks the existing
//! tables, finds obstacles and counts the missing tables; below an empty entry the count is
//! arithmetic, not a walk. The second pass cannot fail. It fills each missing table front to back
//! while the table is private, also where several pieces share it, and links the full table with
//! one store. So no table is zeroed first, read back or written twice.

use super::frames::Frames;
use super::piece::{Leaves, Piece};
use super::plan::{Cursor, OUTPUT_RUN_SHIFT, Plan};
use super::stage::Stage;
use super::{PageTables, TableEnvironment, TableError, Visibility};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, PhysicalAddress};

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
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
        if bytes == P::SIZE.bytes() {
            let bits = S::encode(&attributes, &self.geometry);
            if self.map_page(start, output, bits) {
                return Ok(());
            }
        }
        self.map_piece(Piece {
            start,
            output,
            bytes,
            attributes,
            leaves,
        })
    }

    #[inline(never)]
    pub(super) fn map_piece(
        &mut self,
        piece: Piece<S::Input, S::Attributes>,
    ) -> Result<(), TableError> {
        if piece.bytes == P::SIZE.bytes() {
            if let Some((_, slot)) = self.page_of_other_format(piece.start) {
                let bits = S::encode(&piece.attributes, &self.geometry);
                if self.map_slot(slot, piece.output, bits) {
                    return Ok(());
                }
            }
        }
        self.map_pieces(&[piece])
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

    /// Maps the pages from `start` on to `frames`, one after the other, all or none. Every table is
    /// written once, and one pair of barriers serves all frames. Consecutive frames get the largest
    /// leaves that `leaves` and their alignment allow.
    ///
    /// ```
    /// use granule::arch::{Attributes, Page4K, Permissions, PhysicalAddress, VirtualAddress};
    /// use granule::table::{Frames, Leaves, PageTables, TableEnvironment, TableError};
    ///
    /// fn buffer<E: TableEnvironment>(
    ///     tables: &mut PageTables<Page4K, E>,
    ///     start: VirtualAddress,
    /// ) -> Result<(), TableError> {
    ///     let frames = [0x8004_0000, 0x8001_3000, 0x9000_0000].map(PhysicalAddress);
    ///     let attributes = Attributes::normal(Permissions::READ_WRITE);
    ///     tables.map_frames(start, Frames::Single(&frames), attributes, Leaves::LARGEST)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`map`](Self::map). Nothing is mapped then.
    pub fn map_frames(
        &mut self,
        start: S::Input,
        frames: Frames<'_>,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        let cursor = self.over_frames(start, frames, attributes, leaves)?;
        let mapped = self.map_cursor(cursor);
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
        self.map_cursor(Cursor::new(pieces, self.geometry, window))
    }

    /// Maps everything that a new cursor passes over, without the barriers.
    pub(super) fn map_cursor(&mut self, mut cursor: Cursor<'_, P, S>) -> Result<(), TableError> {
        let (level, span) = (self.geometry.start_level(), self.geometry.span());
        let needed = self.missing_in_all(&mut cursor.clone())?;
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        self.pending.made_valid();
        while cursor.at < span {
            let (root, end) = (self.root_of(cursor.at), self.root_end(cursor.at, span));
            self.map_in(&mut cursor, root, level, end)
                .ok_or(exhausted)?;
        }
        Ok(())
    }

    /// Maps the pieces before `end` in an existing table. `None` means that the allocator broke its
    /// promise.
    fn map_in(
        &mut self,
        cursor: &mut Cursor<'_, P, S>,
        table: PhysicalAddress,
        level: Level,
        end: u64,
    ) -> Option<()> {
        let (leaf, link) = (self.visibility(), self.linking());
        let bytes = P::SIZE.entry_bytes(level);
        while cursor.at < end {
            let at = cursor.at;
            let index = Self::index(at, level);
            if level.is_last() {
                // The first pass saw every one of these entries invalid.
                let to = cursor.to.min(end);
                self.fill_leaves(&cursor.plan, table, level, at, to, leaf);
                cursor.done_to(to);
                continue;
            }
            let entry_end = (at & !(bytes - 1)) + bytes;
            let entry = self.load(table, index);
            if entry.is_table(level) {
                let below = self.geometry.address_of(entry, level);
                self.map_in(cursor, below, level.next(), entry_end)?;
                continue;
            }
            // Whole empty entries are written together.
            let most = cursor.whole_to(level, end);
            let mut whole = at;
            while whole < most && !self.load(table, Self::index(whole, level)).is_table(level) {
                whole += bytes;
            }
            if whole == at {
                self.build_child(cursor, table, level, entry_end, link)?;
            } else {
                self.write_whole(&cursor.plan, table, level, at, whole, leaf, link)?;
                cursor.done_to(whole);
            }
        }
        Some(())
    }

    /// Fills a new, private table of `level` from its first entry to its last: with the pieces
    /// before `end`, and with invalid entries elsewhere.
    pub(super) fn build(
        &mut self,
        cursor: &mut Cursor<'_, P, S>,
        table: PhysicalAddress,
        level: Level,
        end: u64,
    ) -> Option<()> {
        let private = Visibility::Private;
        let bytes = P::SIZE.entry_bytes(level);
        let mut written = 0;
        while cursor.at < end {
            let at = cursor.at;
            let index = Self::index(at, level);
            if index > written {
                self.leave_empty(table, written, index - written);
            }
            let whole = cursor.whole_to(level, end);
            if whole > at {
                self.write_whole(&cursor.plan, table, level, at, whole, private, private)?;
                cursor.done_to(whole);
                written = index + ((whole - at) >> P::SIZE.level_shift(level)) as usize;
            } else {
                let entry_end = (at & !(bytes - 1)) + bytes;
                self.build_child(cursor, table, level, entry_end, private)?;
                written = index + 1;
            }
        }
        let rest = P::SIZE.entries() - written;
        if rest > 0 {
            self.leave_empty(table, written, rest);
        }
        Some(())
    }

    /// Makes entries of a private table invalid.
    pub(super) fn leave_empty(&mut self, table: PhysicalAddress, first: usize, count: usize) {
        // The compiler turns a loop that visibly stores zeros into a call of `memset`. In kernels
        // for arm64, without NEON, that takes six times the instructions of paired stores.
        let nothing = if cfg!(target_arch = "aarch64") {
            core::hint::black_box(Descriptor::INVALID)
        } else {
            Descriptor::INVALID
        };
        self.fill(table, first, count, nothing, 0, Visibility::Private);
    }

    /// Builds the table for the cursor's entry of `level`, and links it.
    fn build_child(
        &mut self,
        cursor: &mut Cursor<'_, P, S>,
        table: PhysicalAddress,
        level: Level,
        entry_end: u64,
        link: Visibility,
    ) -> Option<()> {
        let index = Self::index(cursor.at, level);
        let child = self.environment.allocate(1)?.first;
        self.build(cursor, child, level.next(), entry_end)?;
        self.store(table, index, Descriptor::table(&self.geometry, child), link);
        Some(())
    }

    /// Writes whole entries from `start` to `end`: leaves if the plan has leaves at this level,
    /// else full tables.
    #[allow(clippy::too_many_arguments)]
    fn write_whole(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
        leaf: Visibility,
        link: Visibility,
    ) -> Option<()> {
        if level >= plan.top {
            self.fill_leaves(plan, table, level, start, end, leaf);
            return Some(());
        }
        let bytes = P::SIZE.entry_bytes(level);
        let page = P::SIZE.bytes();
        let child_level = level.next();
        let private = Visibility::Private;
        // The common case is whole tables of pages without the hint and with aligned outputs, which
        // never cross the format's break. It needs no computation for each table.
        let simple = child_level.is_last()
            && !plan.present_invalid
            && plan.group(P::SIZE, Level::L3) == 1
            && plan.output(start) & (bytes - 1) == 0;
        let mut index = Self::index(start, level);
        let mut left = ((end - start) >> P::SIZE.level_shift(level)) as usize;
        let mut at = start;
        while left > 0 {
            let run = self.environment.allocate(left)?;
            let mut child = run.first;
            for _ in 0..run.count {
                if simple {
                    let output = PhysicalAddress(plan.output(at));
                    let first = Descriptor::leaf(&self.geometry, Level::L3, output, plan.bits);
                    let step = P::SIZE.bytes();
                    self.fill(child, 0, P::SIZE.entries(), first, step, private);
                } else if child_level.is_last() {
                    self.fill_leaves(plan, child, Level::L3, at, at + bytes, private);
                } else {
                    self.write_whole(plan, child, child_level, at, at + bytes, private, private)?;
                }
                child.0 += page;
                at += bytes;
            }
            self.link_run(table, index, run.first, run.count, link);
            index += run.count;
            left -= run.count;
        }
        Some(())
    }

    /// Links tables that are consecutive in memory, from index `index` on.
    fn link_run(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        first: PhysicalAddress,
        count: usize,
        link: Visibility,
    ) {
        let mask = (1 << OUTPUT_RUN_SHIFT) - 1;
        let page = P::SIZE.bytes();
        let mut done = 0;
        while done < count {
            let child = first.0 + done as u64 * page;
            let before_break = (mask + 1 - (child & mask)) >> P::SIZE.shift();
            let run = (count - done).min(before_break as usize);
            let descriptor = Descriptor::table(&self.geometry, PhysicalAddress(child));
            self.fill(table, index + done, run, descriptor, page, link);
            done += run;
        }
    }

    /// Writes leaves for the whole entries from `start` to `end`, with the contiguous hint on
    /// each whole group.
    #[inline(always)]
    fn fill_leaves(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
        how: Visibility,
    ) {
        let group = plan.group(P::SIZE, level);
        if group > 1 {
            self.fill_groups(plan, table, level, start, end, how);
        } else {
            self.fill_run(plan, table, level, start, end, 0, how);
        }
    }

    /// Writes leaves where groups are possible. The leaves at either end that form no whole group
    /// get no hint.
    fn fill_groups(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
        how: Visibility,
    ) {
        let group = P::SIZE.contiguous_entries(level) as u64;
        let mask = group * P::SIZE.entry_bytes(level) - 1;
        let groups_start = ((start + mask) & !mask).min(end);
        let groups_end = (end & !mask).max(groups_start);
        self.fill_run(plan, table, level, start, groups_start, 0, how);
        self.fill_run(
            plan,
            table,
            level,
            groups_start,
            groups_end,
            Descriptor::CONTIGUOUS,
            how,
        );
        self.fill_run(plan, table, level, groups_end, end, 0, how);
    }

    /// Writes leaves with the additional bits `more` for the entries from `start` to `end`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn fill_run(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
        more: u64,
        how: Visibility,
    ) {
        let step = P::SIZE.entry_bytes(level);
        let mut at = start;
        while at < end {
            let output = plan.output(at);
            let format_break = (output | ((1 << OUTPUT_RUN_SHIFT) - 1)) + 1;
            let run = (end - at).min(format_break - output);
            let count = (run >> P::SIZE.level_shift(level)) as usize;
            let bits = plan.bits | more;
            let mut first = Descriptor::leaf(&self.geometry, level, PhysicalAddress(output), bits);
            if plan.present_invalid {
                first = first.present_invalid();
            }
            self.fill(table, Self::index(at, level), count, first, step, how);
            at += run;
        }
    }
}
