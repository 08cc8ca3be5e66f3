//! Planning: what a list of [`Piece`]s, or the parts of a leaf that is split, come to.
//!
//! A [`Plan`] is how one of them is mapped, the same for all of its tables; a [`Cursor`] is where
//! a pass over them is. The first pass is here: it walks what exists, finds what is in the way
//! and counts the tables that are missing. Nothing in here stores or allocates; the pass that
//! does is in [`map`](super::map).

use super::piece::{Leaves, Piece};
use super::{Environment, PageTables, TableError};
use crate::arch::page_size::{Level, Page, PageSize};
use crate::arch::{Descriptor, Geometry, Kind, PhysicalAddress};
use core::marker::PhantomData;

/// Consecutive outputs may be written as one run only where adding a step to the descriptor
/// gives the next address: the 52-bit formats keep the bits from here up elsewhere.
pub(super) const OUTPUT_RUN_SHIFT: u32 = 48;

/// How one piece is mapped: what is the same for all of its tables, worked out once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Output address less offset, wrapping.
    distance: u64,
    /// The first level at which leaves are made.
    pub(super) top: Level,
    contiguous: bool,
    /// The encoded attributes.
    pub(super) bits: u64,
    /// The leaves are written hidden.
    pub(super) hidden: bool,
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
    pub(super) at: u64,
    pub(super) to: u64,
    pub(super) plan: Plan,
    page: PhantomData<P>,
}

impl<'a, P: Page> Cursor<'a, P> {
    pub(super) fn new(pieces: &'a [Piece], geometry: Geometry, window: (u64, u64)) -> Self {
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
    pub(super) fn done_to(&mut self, offset: u64) {
        self.at = offset;
        if offset >= self.to {
            self.next_piece();
        }
    }

    /// The end of the whole entries of `level` that this piece covers from `at` on, not beyond
    /// `end`; `at` itself if that is inside an entry or the piece ends inside it.
    pub(super) fn whole_to(&self, level: Level, end: u64) -> u64 {
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
    pub(super) fn check_pieces(&self, pieces: &[Piece]) -> Result<(), TableError> {
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
    pub(super) fn missing(
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
}
