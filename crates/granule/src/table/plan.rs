//! Planning a map of [`Piece`]s or of the parts of a split leaf.
//!
//! A [`Plan`] says how one piece or part is mapped; a [`Cursor`] is the position of a pass over
//! them. The first pass is here: it walks the existing tables, finds obstacles and counts the
//! missing tables. The code here stores and allocates nothing; the pass that does is in
//! [`map`](super::map).

use super::frames::{Frames, FramesLeft};
use super::piece::{Leaves, Piece};
use super::stage::{Stage, Stage1};
use super::{PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, Page, PageSize};
use crate::arch::{Descriptor, Geometry, Kind, PhysicalAddress};
use core::marker::PhantomData;

/// A run of consecutive outputs must not cross a multiple of two to this power. Adding a step to a
/// descriptor gives the next address only below this bit, because the 52-bit formats keep the
/// higher bits elsewhere.
pub(super) const OUTPUT_RUN_SHIFT: u32 = 48;

/// The mapping of one piece: the values that all of its tables share, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Output address minus offset, wrapping.
    distance: u64,
    /// The highest level of leaves.
    pub(super) top: Level,
    contiguous: bool,
    /// The encoded attributes.
    pub(super) bits: u64,
    /// Whether the leaves are present-invalid.
    pub(super) present_invalid: bool,
}

impl Plan {
    const NONE: Self = Self {
        distance: 0,
        top: Level::L3,
        contiguous: false,
        bits: 0,
        present_invalid: false,
    };

    /// The plan of `piece`, whose first offset is `from`.
    pub(crate) fn new(geometry: &Geometry, piece: &Piece, from: u64) -> Self {
        Self::of_piece::<Stage1>(geometry, piece, from)
    }

    /// As [`new`](Self::new), for either stage.
    fn of_piece<S: Stage>(
        geometry: &Geometry,
        piece: &Piece<S::Input, S::Attributes>,
        from: u64,
    ) -> Self {
        let distance = piece.output.0.wrapping_sub(from);
        let bits = S::encode(&piece.attributes, geometry);
        Self::with_bits(geometry, distance, piece.leaves, bits)
    }

    /// As [`new`](Self::new) without the attributes, which suffices for counting.
    pub(crate) fn shape(geometry: &Geometry, piece: &Piece, from: u64) -> Self {
        let distance = piece.output.0.wrapping_sub(from);
        Self::with_bits(geometry, distance, piece.leaves, 0)
    }

    /// The plan of a range whose outputs lie `distance` from its offsets. `bits` are the bits of
    /// its leaves, without address, contiguous hint and kind.
    pub(super) fn with_bits(geometry: &Geometry, distance: u64, leaves: Leaves, bits: u64) -> Self {
        let size = geometry.page_size();
        let mut top = Level::L3;
        // Go up from the pages. The first level that fails ends the search: the levels above it
        // have no leaves either, or offset and output differ there in the bits below the leaf too.
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
            present_invalid: false,
        }
    }

    /// The plan that maps the range of the leaf `descriptor` again, with all of its bits.
    pub(super) fn of_leaf(
        geometry: &Geometry,
        descriptor: Descriptor,
        level: Level,
        distance: u64,
        leaves: Leaves,
    ) -> Self {
        let bits = geometry.attribute_bits(descriptor, level);
        Self {
            present_invalid: !descriptor.is_valid(),
            ..Self::with_bits(geometry, distance, leaves, bits)
        }
    }

    pub(crate) const fn top(&self) -> Level {
        self.top
    }

    pub(crate) const fn bits(&self) -> u64 {
        self.bits
    }

    /// The entries of a contiguous group at `level`; 1 if the plan uses no hint there.
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

    /// The run of leaves of `level` from offset `at`, up to `end`, that differ by a constant step:
    /// the number of entries, and their bits besides the plan's.
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

/// A part of an existing leaf, to map again as the leaf maps it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) plan: Plan,
}

/// The input of a pass, in ascending order.
#[derive(Clone)]
enum Source<'a, S: Stage> {
    Pieces(&'a [Piece<S::Input, S::Attributes>]),
    Parts(&'a [Part]),
    Frames(FramesLeft<'a>),
}

/// The position of a pass over pieces, parts or frames, which runs in ascending order.
#[derive(Clone)]
pub(super) struct Cursor<'a, P, S: Stage> {
    source: Source<'a, S>,
    geometry: Geometry,
    /// The offsets of this pass; the parts of pieces outside are skipped.
    window: (u64, u64),
    /// The next offset to map, up to `to`; both are `u64::MAX` at the end.
    pub(super) at: u64,
    pub(super) to: u64,
    pub(super) plan: Plan,
    page: PhantomData<P>,
}

impl<'a, P: Page, S: Stage> Cursor<'a, P, S> {
    pub(super) fn new(
        pieces: &'a [Piece<S::Input, S::Attributes>],
        geometry: Geometry,
        window: (u64, u64),
    ) -> Self {
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

    /// A cursor over the parts of a leaf.
    pub(super) fn over_parts(parts: &'a [Part], geometry: Geometry) -> Self {
        let mut cursor = Self::new(&[], geometry, (0, geometry.span()));
        cursor.source = Source::Parts(parts);
        cursor.next_piece();
        cursor
    }

    /// A cursor over checked frames.
    pub(super) fn over_frames(frames: FramesLeft<'a>, geometry: Geometry) -> Self {
        let mut cursor = Self::new(&[], geometry, (0, geometry.span()));
        cursor.source = Source::Frames(frames);
        cursor.next_piece();
        cursor
    }

    /// Takes the next piece or part from the source: its offsets and plan.
    fn take(&mut self) -> Option<Part> {
        match &mut self.source {
            Source::Pieces(pieces) => {
                let (piece, rest) = pieces.split_first()?;
                *pieces = rest;
                let start = S::address(piece.start);
                let from = start.0.wrapping_sub(self.geometry.base().0);
                let to = from.saturating_add(piece.bytes);
                let plan = Plan::of_piece::<S>(&self.geometry, piece, from);
                Some(Part { from, to, plan })
            }
            Source::Parts(parts) => {
                let (part, rest) = parts.split_first()?;
                *parts = rest;
                Some(*part)
            }
            Source::Frames(frames) => {
                let (from, to, first) = frames.take(P::SIZE)?;
                let distance = first.wrapping_sub(from);
                let plan = Plan::with_bits(&self.geometry, distance, frames.leaves, frames.bits);
                Some(Part { from, to, plan })
            }
        }
    }

    /// Moves to the next piece that overlaps the window.
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

    /// Moves to `offset`: everything before it is mapped.
    #[inline(always)]
    pub(super) fn done_to(&mut self, offset: u64) {
        self.at = offset;
        if offset >= self.to {
            self.next_piece();
        }
    }

    /// The end of the whole entries of `level` that this piece covers from `at` on, at most `end`.
    /// Returns `at` itself if it lies inside an entry, or if the piece ends inside that entry.
    pub(super) fn whole_to(&self, level: Level, end: u64) -> u64 {
        let mask = P::SIZE.entry_bytes(level) - 1;
        if self.at & mask != 0 {
            return self.at;
        }
        (self.to.min(end) & !mask).max(self.at)
    }

    /// Whether this piece has leaves at `level`.
    const fn has_leaves(&self, level: Level) -> bool {
        level.number() >= self.plan.top.number()
    }

    /// The number of tables below one whole entry of `level` of this piece.
    fn tables_of_whole_entry(&self, level: Level) -> usize {
        if level.number() >= self.plan.top.number() {
            return 0;
        }
        1 + (self.tables_of_whole_entry(level.next()) << P::SIZE.index_bits())
    }

    /// The number of tables that map the pieces before `end` in a new table of `level`, this table
    /// included. Moves the cursor to `end`.
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

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    pub(super) fn check_pieces(
        &self,
        pieces: &[Piece<S::Input, S::Attributes>],
    ) -> Result<(), TableError> {
        let mut free_from = 0;
        for piece in pieces {
            let (from, to) = self.offsets(piece.start, piece.bytes)?;
            self.check_output(piece.output, piece.bytes)?;
            if from < free_from {
                return Err(TableError::Unsorted {
                    address: S::address(piece.start),
                });
            }
            free_from = to;
        }
        Ok(())
    }

    /// Checks the frames, and returns a cursor over them.
    pub(super) fn over_frames<'a>(
        &self,
        start: S::Input,
        frames: Frames<'a>,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Result<Cursor<'a, P, S>, TableError> {
        let mut pages: u64 = 0;
        let mut rest = frames;
        while let Some((first, count)) = rest.pop() {
            pages = pages.saturating_add(count);
            self.check_output(
                PhysicalAddress(first),
                count.saturating_mul(P::SIZE.bytes()),
            )?;
        }
        // A product that is cut off is still larger than every address space.
        let bytes = pages.saturating_mul(P::SIZE.bytes()) & !(P::SIZE.bytes() - 1);
        let (at, _) = self.offsets(start, bytes)?;
        let left = FramesLeft {
            frames,
            at,
            leaves,
            bits: S::encode(&attributes, &self.geometry),
        };
        Ok(Cursor::over_frames(left, self.geometry))
    }

    /// Checks that an output is aligned and within the physical addresses.
    pub(super) fn check_output(
        &self,
        start: PhysicalAddress,
        bytes: u64,
    ) -> Result<(), TableError> {
        let page_size = P::SIZE;
        if start.0 & (page_size.bytes() - 1) != 0 {
            return Err(TableError::Misaligned {
                value: start.0,
                page_size,
            });
        }
        let pa_bits = self.geometry.pa_bits();
        match start.0.checked_add(bytes) {
            Some(end) if end <= 1 << pa_bits => Ok(()),
            _ => Err(TableError::OutputTooLarge {
                start,
                bytes,
                pa_bits,
            }),
        }
    }

    /// Counts the missing tables for mapping all that a cursor passes over, or returns the first
    /// existing mapping as an error.
    pub(super) fn missing_in_all(
        &self,
        cursor: &mut Cursor<'_, P, S>,
    ) -> Result<usize, TableError> {
        let (level, span) = (self.geometry.start_level(), self.geometry.span());
        let mut needed = 0;
        while cursor.at < span {
            let (root, end) = (self.root_of(cursor.at), self.root_end(cursor.at, span));
            needed += self.missing(cursor, root, level, end)?;
        }
        Ok(needed)
    }

    /// Counts the missing tables for mapping the pieces before `end` below `table`, or returns the
    /// first existing mapping as an error.
    pub(super) fn missing(
        &self,
        cursor: &mut Cursor<'_, P, S>,
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
                Kind::Leaf | Kind::PresentInvalid => {
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
}
