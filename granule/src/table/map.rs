//! Mapping ranges: largest leaves first, tables written once.
//!
//! Two passes over a list of [`Piece`]s. The first walks what exists, finds what is in the way
//! and counts the tables that are missing; below an entry that does not exist yet the count is
//! arithmetic, not a walk. The second cannot fail: it fills each missing table while it is
//! private, front to back, whatever pieces meet in it, and links it with one store after it is
//! full. So a table is neither zeroed first nor read back nor written twice.

use super::{Environment, PageTables, TableError, Visibility, flush};
use crate::arch::page_size::{Level, Page, PageSize};
use crate::arch::{Attributes, Descriptor, Geometry, Kind, PhysicalAddress, VirtualAddress};
use core::marker::PhantomData;

/// How large leaves may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// The first level at which leaves are made where everything else allows it.
    pub top: Level,
    /// Whether the contiguous hint is set on whole, naturally aligned groups.
    pub contiguous: bool,
}

impl Leaves {
    /// The largest that the geometry and the alignment allow.
    pub const LARGEST: Self = Self {
        top: Level::Minus1,
        contiguous: true,
    };
    /// Single pages, so that the permissions of each can change without a split.
    pub const PAGES: Self = Self {
        top: Level::L3,
        contiguous: false,
    };
}

/// A range to be mapped alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first address, a multiple of the page size.
    pub start: VirtualAddress,
    /// What it translates to, a multiple of the page size.
    pub output: PhysicalAddress,
    /// The bytes, a multiple of the page size.
    pub bytes: u64,
    /// The memory type and permissions.
    pub attributes: Attributes,
    /// How large its leaves may be.
    pub leaves: Leaves,
}

impl Piece {
    /// The first physical address behind its output.
    #[must_use]
    pub const fn output_end(&self) -> PhysicalAddress {
        PhysicalAddress(self.output.0.saturating_add(self.bytes))
    }
}

/// Consecutive outputs may be written as one run only where adding a step to the descriptor
/// gives the next address: the 52-bit formats keep the bits from here up elsewhere.
pub(super) const OUTPUT_RUN_SHIFT: u32 = 48;

/// How one piece is mapped: what is the same for all of its tables, worked out once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Output address less offset, wrapping.
    distance: u64,
    /// The first level at which leaves are made.
    top: Level,
    contiguous: bool,
    /// The encoded attributes.
    bits: u64,
    /// The leaves are written hidden.
    hidden: bool,
}

impl Plan {
    const NONE: Self = Self {
        distance: 0,
        top: Level::L3,
        contiguous: false,
        bits: 0,
        hidden: false,
    };

    /// For `piece`, whose first offset is `from`.
    pub(crate) fn new(geometry: &Geometry, piece: &Piece, from: u64) -> Self {
        let distance = piece.output.0.wrapping_sub(from);
        let bits = piece.attributes.encode(geometry);
        Self::with_bits(geometry, distance, piece.leaves, bits)
    }

    /// As [`new`](Self::new), but good only for counting: without the attributes.
    pub(crate) fn shape(geometry: &Geometry, piece: &Piece, from: u64) -> Self {
        let distance = piece.output.0.wrapping_sub(from);
        Self::with_bits(geometry, distance, piece.leaves, 0)
    }

    /// For a range whose outputs are `distance` from its offsets, with the bits of its leaves
    /// (but address, contiguous hint and kind) as they are to be.
    pub(super) fn with_bits(geometry: &Geometry, distance: u64, leaves: Leaves, bits: u64) -> Self {
        let size = geometry.page_size();
        let mut top = Level::L3;
        // Upward from the pages: which levels have leaves, and at which offset and output agree
        // in the bits below the leaf, only ever stops.
        for level in [Level::L2, Level::L1, Level::L0] {
            if level < leaves.top
                || level < geometry.start_level()
                || !geometry.leaf_allowed(level)
                || distance & (size.entry_bytes(level) - 1) != 0
            {
                break;
            }
            top = level;
        }
        Self {
            distance,
            top,
            contiguous: leaves.contiguous,
            bits,
            hidden: false,
        }
    }

    /// For mapping anew what `descriptor`, a leaf, maps: with all its bits, whatever they mean.
    pub(super) fn of_leaf(
        geometry: &Geometry,
        descriptor: Descriptor,
        level: Level,
        distance: u64,
        leaves: Leaves,
    ) -> Self {
        let bits = geometry.attribute_bits(descriptor, level);
        Self {
            hidden: !descriptor.is_valid(),
            ..Self::with_bits(geometry, distance, leaves, bits)
        }
    }

    pub(crate) const fn top(&self) -> Level {
        self.top
    }

    pub(crate) const fn bits(&self) -> u64 {
        self.bits
    }

    /// The entries of a contiguous group at `level`, 1 where the hint is not to be used.
    #[inline(always)]
    pub(crate) const fn group(&self, size: PageSize, level: Level) -> usize {
        let entries = size.contiguous_entries(level);
        if self.contiguous && self.distance & (size.entry_bytes(level) * entries as u64 - 1) == 0 {
            entries
        } else {
            1
        }
    }

    pub(crate) const fn output(&self, offset: u64) -> u64 {
        offset.wrapping_add(self.distance)
    }

    /// The leaves from offset `at` on, up to `end`, that differ by a constant step: how many
    /// entries of `level`, and the bits they have besides the plan's.
    pub(crate) fn run(&self, size: PageSize, level: Level, at: u64, end: u64) -> (usize, u64) {
        let group_mask = size.entry_bytes(level) * self.group(size, level) as u64 - 1;
        let first_group = (at + group_mask) & !group_mask;
        let groups_end = end & !group_mask;
        let grouped = self.group(size, level) > 1 && first_group < groups_end;
        let (stop, bits) = if grouped && at == first_group {
            (groups_end, Descriptor::CONTIGUOUS)
        } else if grouped && at < first_group {
            (first_group, 0)
        } else {
            (end, 0)
        };
        let output = self.output(at);
        let format_break = (output | ((1 << OUTPUT_RUN_SHIFT) - 1)) + 1;
        let bytes = (stop - at).min(format_break - output);
        ((bytes >> size.level_shift(level)) as usize, bits)
    }
}

/// A part of an existing leaf, to be mapped anew as the leaf maps it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) plan: Plan,
}

/// What a pass maps; either ascends.
#[derive(Clone, Copy)]
enum Source<'a> {
    Pieces(&'a [Piece]),
    Parts(&'a [Part]),
}

/// Where a pass over the pieces is: they ascend, and so does the pass.
pub(super) struct Cursor<'a, P> {
    source: Source<'a>,
    geometry: Geometry,
    /// The offsets that this pass is about; what pieces have outside is passed over.
    window: (u64, u64),
    /// The next offset to map, up to `to`; both `u64::MAX` when nothing is left.
    at: u64,
    to: u64,
    plan: Plan,
    page: PhantomData<P>,
}

impl<'a, P: Page> Cursor<'a, P> {
    fn new(pieces: &'a [Piece], geometry: Geometry, window: (u64, u64)) -> Self {
        let (at, to) = (u64::MAX, u64::MAX);
        let page = PhantomData;
        let mut cursor = Self {
            source: Source::Pieces(pieces),
            geometry,
            window,
            at,
            to,
            plan: Plan::NONE,
            page,
        };
        cursor.next_piece();
        cursor
    }

    /// Over parts of a leaf.
    pub(super) fn over_parts(parts: &'a [Part], geometry: Geometry) -> Self {
        let mut cursor = Self::new(&[], geometry, (0, geometry.span()));
        cursor.source = Source::Parts(parts);
        cursor.next_piece();
        cursor
    }

    /// The next piece or part: its offsets and how it is mapped.
    fn take(&mut self) -> Option<Part> {
        match &mut self.source {
            Source::Pieces(pieces) => {
                let (piece, rest) = pieces.split_first()?;
                *pieces = rest;
                let from = piece.start.0.wrapping_sub(self.geometry.base().0);
                let to = from.saturating_add(piece.bytes);
                let plan = Plan::new(&self.geometry, piece, from);
                Some(Part { from, to, plan })
            }
            Source::Parts(parts) => {
                let (part, rest) = parts.split_first()?;
                *parts = rest;
                Some(*part)
            }
        }
    }

    /// Goes on with the next piece that has something in the window.
    fn next_piece(&mut self) {
        while let Some(part) = self.take() {
            let at = part.from.max(self.window.0);
            let to = part.to.min(self.window.1);
            if at < to {
                (self.at, self.to) = (at, to);
                self.plan = part.plan;
                return;
            }
        }
        (self.at, self.to) = (u64::MAX, u64::MAX);
    }

    /// Everything before `offset` is done.
    #[inline(always)]
    fn done_to(&mut self, offset: u64) {
        self.at = offset;
        if offset >= self.to {
            self.next_piece();
        }
    }

    /// The end of the whole entries of `level` that this piece covers from `at` on, not beyond
    /// `end`; `at` itself if that is inside an entry or the piece ends inside it.
    fn whole_to(&self, level: Level, end: u64) -> u64 {
        let mask = P::SIZE.entry_bytes(level) - 1;
        if self.at & mask != 0 {
            return self.at;
        }
        (self.to.min(end) & !mask).max(self.at)
    }

    /// Whether entries of `level` are leaves in this piece.
    const fn has_leaves(&self, level: Level) -> bool {
        level.number() >= self.plan.top.number()
    }

    /// The tables it takes to translate one whole entry of `level` of this piece.
    fn tables_of_whole_entry(&self, level: Level) -> usize {
        if level.number() >= self.plan.top.number() {
            return 0;
        }
        1 + (self.tables_of_whole_entry(level.next()) << P::SIZE.index_bits())
    }

    /// The tables it takes to map what lies before `end` in a new table of `level`, itself
    /// included; goes on to `end`.
    pub(super) fn tables_in_new(&mut self, level: Level, end: u64) -> usize {
        let mut tables = 1;
        while self.at < end {
            if level.is_last() {
                self.done_to(self.to.min(end));
                continue;
            }
            let whole = self.whole_to(level, end);
            if whole > self.at {
                let entries = ((whole - self.at) >> P::SIZE.level_shift(level)) as usize;
                tables += entries * self.tables_of_whole_entry(level);
                self.done_to(whole);
            } else {
                let bytes = P::SIZE.entry_bytes(level);
                let entry_end = (self.at & !(bytes - 1)) + bytes;
                tables += self.tables_in_new(level.next(), entry_end);
            }
        }
        tables
    }
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Maps `bytes` bytes from `start` to the physical addresses from `output` on.
    ///
    /// Nothing may be mapped there yet. No TLBI is issued: an entry that was invalid is never
    /// cached (IWZCBG). On live tables one DSB and one ISB make the whole range usable by this
    /// CPU; another CPU may use it after a context synchronisation event of its own.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`OutputTooLarge`](TableError::OutputTooLarge),
    /// [`AlreadyMapped`](TableError::AlreadyMapped), [`OutOfTables`](TableError::OutOfTables).
    pub fn map(
        &mut self,
        start: VirtualAddress,
        output: PhysicalAddress,
        bytes: u64,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        self.map_pieces(&[Piece {
            start,
            output,
            bytes,
            attributes,
            leaves,
        }])
    }

    /// As [`map`](Self::map), for several pieces at once, all or none: tables that more than one
    /// of them has a part in are still written once, and one pair of barriers serves all.
    ///
    /// # Errors
    ///
    /// As for [`map`](Self::map), and [`TableError::Unsorted`] unless the pieces ascend without
    /// overlapping.
    pub fn map_pieces(&mut self, pieces: &[Piece]) -> Result<(), TableError> {
        self.map_unpublished(pieces, (0, self.geometry.span()))?;
        self.publish();
        Ok(())
    }

    /// Makes all that was mapped so far usable by this CPU. Nothing on tables that are not live.
    pub(crate) fn publish(&mut self) {
        if self.liveness == super::Liveness::Live {
            flush::publish(&mut self.environment);
        }
    }

    /// Maps what `pieces` have among the offsets of `window`, without the barriers: nothing of
    /// it may be used before [`publish`](Self::publish).
    pub(crate) fn map_unpublished(
        &mut self,
        pieces: &[Piece],
        window: (u64, u64),
    ) -> Result<(), TableError> {
        self.check_pieces(pieces)?;
        let (root, level) = (self.root, self.geometry.start_level());
        let mut cursor = Cursor::new(pieces, self.geometry, window);
        let needed = self.missing(&mut cursor, root, level, self.geometry.span())?;
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        let mut cursor = Cursor::new(pieces, self.geometry, window);
        self.map_in(&mut cursor, root, level, self.geometry.span())
            .ok_or(exhausted)
    }

    fn check_pieces(&self, pieces: &[Piece]) -> Result<(), TableError> {
        let page_size = P::SIZE;
        let pa_bits = self.geometry.pa_bits();
        let mut free_from = 0;
        for piece in pieces {
            let (from, to) = self.offsets(piece.start, piece.bytes)?;
            let output = piece.output;
            if output.0 & (page_size.bytes() - 1) != 0 {
                return Err(TableError::Misaligned {
                    value: output.0,
                    page_size,
                });
            }
            match output.0.checked_add(piece.bytes) {
                Some(end) if end <= 1 << pa_bits => {}
                _ => {
                    let (start, bytes) = (output, piece.bytes);
                    return Err(TableError::OutputTooLarge {
                        start,
                        bytes,
                        pa_bits,
                    });
                }
            }
            if from < free_from {
                return Err(TableError::Unsorted {
                    address: piece.start,
                });
            }
            free_from = to;
        }
        Ok(())
    }

    /// Counts the tables that mapping what lies before `end` in `table` takes, or finds what is
    /// in the way.
    fn missing(
        &self,
        cursor: &mut Cursor<'_, P>,
        table: PhysicalAddress,
        level: Level,
        end: u64,
    ) -> Result<usize, TableError> {
        let bytes = P::SIZE.entry_bytes(level);
        let mut needed = 0;
        while cursor.at < end {
            let at = cursor.at;
            if level.is_last() {
                let to = cursor.to.min(end);
                let count = ((to - at) >> P::SIZE.shift()) as usize;
                if let Some(mapped) = self.find_mapped(table, Self::index(at, level), count) {
                    let address = self.address(at + ((mapped as u64) << P::SIZE.shift()));
                    return Err(TableError::AlreadyMapped { address });
                }
                cursor.done_to(to);
                continue;
            }
            let entry_end = (at & !(bytes - 1)) + bytes;
            let entry = self.load(table, Self::index(at, level));
            match entry.kind(&self.geometry, level) {
                Kind::Leaf | Kind::Hidden => {
                    return Err(TableError::AlreadyMapped {
                        address: self.address(at),
                    });
                }
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    needed += self.missing(cursor, below, level.next(), entry_end)?;
                }
                Kind::Invalid
                    if cursor.has_leaves(level) && cursor.whole_to(level, entry_end) > at =>
                {
                    cursor.done_to(entry_end);
                }
                Kind::Invalid => needed += cursor.tables_in_new(level.next(), entry_end),
            }
        }
        Ok(needed)
    }

    /// Maps what lies before `end` in a table that exists. `None` only if the allocator breaks
    /// its word.
    fn map_in(
        &mut self,
        cursor: &mut Cursor<'_, P>,
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
            // Whole entries that do not exist yet are written together.
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

    /// Fills a new table of `level`, which is private, from its first entry to its last: with
    /// what lies before `end`, and with nothing where there is nothing.
    pub(super) fn build(
        &mut self,
        cursor: &mut Cursor<'_, P>,
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
    fn leave_empty(&mut self, table: PhysicalAddress, first: usize, count: usize) {
        // A loop that is seen to store zeros becomes a call of `memset`, which without NEON takes
        // six times the instructions of paired stores.
        let nothing = core::hint::black_box(Descriptor::INVALID);
        self.fill(table, first, count, nothing, 0, Visibility::Private);
    }

    /// Builds the one table for the entry of `level` that the cursor is in, and links it.
    fn build_child(
        &mut self,
        cursor: &mut Cursor<'_, P>,
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

    /// Writes whole entries from `start` to `end`: leaves where the plan has leaves at this
    /// level, else tables that are full.
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
        // The common case is whole tables of pages without the hint, whose outputs do not cross
        // the format's break, as aligned ones never do: nothing is worked out again for each.
        let simple = child_level.is_last()
            && !plan.hidden
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

    /// Links tables that follow each other in memory, from index `index` on.
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

    /// Writes leaves where groups are possible: what is not a whole group at either end is
    /// written without the hint.
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

    /// Writes leaves of one kind for the entries from `start` to `end`.
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
            if plan.hidden {
                first = first.hidden();
            }
            self.fill(table, Self::index(at, level), count, first, step, how);
            at += run;
        }
    }
}
