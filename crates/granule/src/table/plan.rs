//! Planning a map: how each part is mapped, and the first pass, which finds obstacles and counts the
//! missing tables.
//!
//! A [`Plan`] says how one part is mapped; [`Parts`] are all parts of a map in ascending order; a
//! [`Cursor`] is the position of a pass over them. The code here stores and allocates nothing; the
//! pass that does is in [`map`](super::map).

use super::frames::FrameParts;
use super::piece::{Leaves, Piece};
use super::stage::Stage;
use super::walk::Place;
use super::{PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, PageChoice, PageSize, size_of};
use crate::arch::{Descriptor, Geometry, Kind, PhysicalAddress};
use core::marker::PhantomData;

/// A run of consecutive outputs must not cross a multiple of two to this power. Adding a step to a
/// descriptor gives the next address only below this bit, because the 52-bit formats keep the
/// higher bits elsewhere.
pub(super) const OUTPUT_RUN_SHIFT: u32 = 48;

/// The mapping of one part: the values that all of its tables share, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Output address minus offset, wrapping.
    distance: u64,
    /// The highest level of leaves.
    top: Level,
    contiguous: bool,
    /// The encoded attributes.
    bits: u64,
    /// The bits that make present-invalid leaves of valid ones, or none.
    flip: u64,
}

impl Plan {
    const NONE: Self = Self {
        distance: 0,
        top: Level::L3,
        contiguous: false,
        bits: 0,
        flip: 0,
    };

    /// The plan of `piece`, whose first offset is `from`.
    #[cfg(feature = "published")]
    pub(crate) fn new(geometry: &Geometry, piece: &Piece, from: u64) -> Self {
        Self::of_piece::<super::stage::Stage1>(geometry, piece, from)
    }

    /// The plan of `piece` of either stage, whose first offset is `from`.
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
            flip: 0,
        }
    }

    /// The plan that maps the leaf `descriptor`, whose first offset is `start`, again, with all of
    /// its bits.
    pub(super) fn of_leaf(
        geometry: &Geometry,
        descriptor: Descriptor,
        level: Level,
        start: u64,
        leaves: Leaves,
    ) -> Self {
        let output = geometry.address_of(descriptor, level);
        let distance = output.0.wrapping_sub(start);
        let bits = geometry.attribute_bits(descriptor, level);
        Self {
            flip: if descriptor.is_valid() {
                0
            } else {
                Descriptor::VALID | Descriptor::PRESENT_INVALID
            },
            ..Self::with_bits(geometry, distance, leaves, bits)
        }
    }

    pub(crate) const fn top(&self) -> Level {
        self.top
    }

    #[cfg(feature = "published")]
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

    /// The leaf of `level` at the offset `at`, with more bits.
    #[inline(always)]
    pub(super) const fn leaf(
        &self,
        geometry: &Geometry,
        level: Level,
        at: u64,
        more: u64,
    ) -> Descriptor {
        let output = PhysicalAddress(self.output(at));
        let leaf = Descriptor::leaf(geometry, level, output, self.bits | more);
        Descriptor(leaf.0 ^ self.flip)
    }

    /// The run of leaves of a level from offset `at`, up to `end`, that differ by a constant step:
    /// the number of entries, and their bits besides the plan's. A leaf has two to the power `shift`
    /// bytes, and `group` is that of the level.
    #[inline(always)]
    pub(crate) fn run(&self, shift: u32, group: usize, at: u64, end: u64) -> (usize, u64) {
        let mask = ((group as u64) << shift) - 1;
        // Without groups each entry is one, and the hint is none: one way for both.
        let hint = if group > 1 { Descriptor::CONTIGUOUS } else { 0 };
        let (first_group, groups_end) = ((at + mask) & !mask, end & !mask);
        let (stop, bits) = if first_group >= groups_end {
            (end, 0)
        } else if at < first_group {
            (first_group, 0)
        } else {
            (groups_end, hint)
        };
        let output = self.output(at);
        let format_break = (output | ((1 << OUTPUT_RUN_SHIFT) - 1)) + 1;
        let bytes = (stop - at).min(format_break - output);
        ((bytes >> shift) as usize, bits)
    }
}

/// A range of offsets that one plan maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) plan: Plan,
}

/// The parts of a map, in ascending order. A map passes over them twice.
///
/// No trait object, because code that runs before the MMU is on calls through no pointer.
#[derive(Clone, Copy)]
pub(super) enum Parts<'a, S: Stage> {
    /// These.
    Of(&'a [Part]),
    /// Those of pieces that lie inside a window of offsets.
    Pieces(&'a [Piece<S::Input, S::Attributes>], (u64, u64)),
    /// Those of frames.
    Frames(FrameParts<'a>),
}

/// The position of a pass over parts, which runs in ascending order.
#[derive(Clone)]
pub(super) struct Cursor<'a, P, S: Stage> {
    parts: Parts<'a, S>,
    geometry: &'a Geometry,
    /// The next offset to map, up to `to`; both are `u64::MAX` at the end.
    pub(super) at: u64,
    pub(super) to: u64,
    pub(super) plan: Plan,
    page: PhantomData<P>,
}

impl<'a, P: PageChoice, S: Stage> Cursor<'a, P, S> {
    pub(super) fn new(parts: Parts<'a, S>, geometry: &'a Geometry) -> Self {
        let mut cursor = Self {
            parts,
            geometry,
            at: u64::MAX,
            to: u64::MAX,
            plan: Plan::NONE,
            page: PhantomData,
        };
        cursor.next_part();
        cursor
    }

    #[inline(always)]
    const fn size(&self) -> PageSize {
        size_of::<P>(self.geometry)
    }

    /// Takes the next part.
    fn take(&mut self) -> Option<Part> {
        match &mut self.parts {
            Parts::Of(parts) => {
                let (part, rest) = parts.split_first()?;
                *parts = rest;
                Some(*part)
            }
            Parts::Pieces(pieces, window) => {
                let (piece, rest) = pieces.split_first()?;
                *pieces = rest;
                let start = S::address(piece.start);
                let from = start.0.wrapping_sub(self.geometry.base().0);
                Some(Part {
                    from: from.max(window.0),
                    to: from.saturating_add(piece.bytes).min(window.1),
                    plan: Plan::of_piece::<S>(self.geometry, piece, from),
                })
            }
            Parts::Frames(frames) => frames.take(self.geometry),
        }
    }

    /// Moves to the next part that is not empty.
    #[inline(never)]
    fn next_part(&mut self) {
        (self.at, self.to) = (u64::MAX, u64::MAX);
        while let Some(part) = self.take() {
            if part.from < part.to {
                (self.at, self.to) = (part.from, part.to);
                self.plan = part.plan;
                return;
            }
        }
    }

    /// Moves to `offset`: everything before it is mapped.
    #[inline(always)]
    pub(super) fn done_to(&mut self, offset: u64) {
        self.at = offset;
        if offset >= self.to {
            self.next_part();
        }
    }

    /// The end of the whole entries of `level` that this part covers from `at` on, at most `end`.
    /// Returns `at` itself if it lies inside an entry, or if the part ends inside that entry.
    #[inline(always)]
    pub(super) fn whole_to(&self, level: Level, end: u64) -> u64 {
        let mask = self.size().entry_bytes(level) - 1;
        if self.at & mask != 0 {
            return self.at;
        }
        (self.to.min(end) & !mask).max(self.at)
    }

    /// The number of tables that one whole entry of `level` takes.
    fn tables_of_whole_entry(&self, level: Level) -> usize {
        let levels = (self.plan.top.number() - level.number()).max(0);
        (0..levels).fold(0, |tables, _| 1 + (tables << self.size().index_bits()))
    }

    /// The number of tables that map the parts before `end` in a new table of `level`, this table
    /// included. Moves the cursor to `end`.
    pub(super) fn tables_in_new(&mut self, level: Level, end: u64) -> usize {
        let mut tables = 1;
        while self.at < end {
            let whole = self.whole_to(level, end);
            if whole > self.at {
                let entries = (whole - self.at) >> self.size().level_shift(level);
                tables += entries as usize * self.tables_of_whole_entry(level);
                self.done_to(whole);
            } else {
                let bytes = self.size().entry_bytes(level);
                let entry_end = (self.at | (bytes - 1)) + 1;
                tables += self.tables_in_new(level.next(), entry_end);
            }
        }
        tables
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Checks that pieces ascend and lie in the space, and that there are such outputs.
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

    /// Checks that an output is aligned and within the physical addresses.
    pub(super) fn check_output(
        &self,
        start: PhysicalAddress,
        bytes: u64,
    ) -> Result<(), TableError> {
        let page_size = self.size();
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
    pub(super) fn missing(&self, mut cursor: Cursor<'_, P, S>) -> Result<usize, TableError> {
        let span = self.geometry.span();
        let mut needed = 0;
        while cursor.at < span {
            let at = cursor.at;
            let Place { slot, level, entry } = self.place(at);
            let found = match entry.kind(&self.geometry, level) {
                Kind::Invalid => {
                    let whole = cursor.whole_to(level, self.table_end(at, level, span));
                    if whole == at {
                        needed += cursor.tables_in_new(level.next(), self.end_of(at, level));
                        continue;
                    }
                    // Whole empty entries are counted together, up to the next table.
                    let most = ((whole - at) >> self.size().level_shift(level)) as usize;
                    let found = self.find_mapped(slot.table, slot.index, most);
                    let empty = found.unwrap_or(most);
                    if !level.is_last() {
                        let empty = empty.max(1);
                        needed += empty * cursor.tables_of_whole_entry(level);
                        cursor.done_to(self.behind(at, level, empty));
                        continue;
                    }
                    let end = self.behind(at, level, empty);
                    if found.is_none() {
                        cursor.done_to(end);
                        continue;
                    }
                    end
                }
                Kind::Leaf | Kind::PresentInvalid | Kind::Table => at,
            };
            let address = self.address(found);
            return Err(TableError::AlreadyMapped { address });
        }
        Ok(needed)
    }
}
