//! The walk that every query and every visit is, over tables of any source.
//!
//! A [`Source`] reads entries: of [`PageTables`](super::PageTables), where reading cannot fail, or of
//! a [`TableView`](super::TableView), where it can. The code here only reads: it stores nothing,
//! allocates nothing and issues no barrier.

use super::TableError;
use super::plan::OUTPUT_RUN_SHIFT;
use super::stage::Stage;
use crate::arch::page_size::{Level, PageSize};
use crate::arch::{Attributes, Descriptor, Geometry, Kind, PhysicalAddress, VirtualAddress};
use core::convert::Infallible;
use core::ops::ControlFlow;

/// The mapping of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapping<I = VirtualAddress, A = Attributes> {
    /// The physical address of the queried address.
    pub output: PhysicalAddress,
    /// The first address of the entry.
    pub start: I,
    /// The bytes of the entry; in a contiguous group still those of the entry, not of the group.
    pub bytes: u64,
    /// The level of the entry.
    pub level: Level,
    /// Whether the contiguous hint is set.
    pub contiguous: bool,
    /// The memory type and permissions.
    pub attributes: A,
}

/// One entry found by a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry<I = VirtualAddress> {
    /// The table that holds the entry.
    pub table: PhysicalAddress,
    /// The index in that table.
    pub index: usize,
    /// The level of that table.
    pub level: Level,
    /// The first address that the entry translates.
    pub start: I,
    /// The bytes that the entry translates.
    pub bytes: u64,
    /// The length of the run that begins here: entries of this table with the same attributes and
    /// consecutive outputs. Always 1 except in a visit of runs.
    pub count: usize,
    /// The descriptor itself.
    pub descriptor: Descriptor,
    /// The kind: a leaf, a present-invalid leaf, or a table.
    pub kind: Kind,
    /// The address of the next table, or the first byte of the output.
    pub output: PhysicalAddress,
}

/// How a visit goes on after an entry. [`ControlFlow::Break`] ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a visit goes in or past")]
pub enum Visit {
    /// With the entries of the table that the entry points to. After a leaf it is the same as
    /// [`Skip`](Self::Skip).
    Descend,
    /// With the next entry.
    Skip,
}

impl Visit {
    /// The answer of a visitor that sees every entry and never ends the visit:
    /// [`Descend`](Self::Descend).
    pub const EVERYTHING: ControlFlow<Infallible, Self> = ControlFlow::Continue(Self::Descend);
}

/// A table that a walk left out, the offset from which on, and the reason.
pub(super) struct LeftOut<W> {
    pub table: PhysicalAddress,
    pub level: Level,
    pub offset: u64,
    pub why: W,
}

/// The source that a walk reads.
pub(super) trait Source {
    /// The stage of the tables.
    type Stage: Stage;
    /// Why a table is left out.
    type Why;

    /// The page size; a constant where the source knows it at compile time.
    fn page_size(&self) -> PageSize;
    fn geometry(&self) -> &Geometry;
    /// Whether the walk may read this table next. The tables above it were entered last.
    fn enter(&self, table: PhysicalAddress, level: Level) -> Result<(), Self::Why>;
    fn load(&self, table: PhysicalAddress, index: usize) -> Result<Descriptor, Self::Why>;
}

/// Checks a range of addresses and returns its offsets in the half. The page size is the geometry's,
/// as a constant where the caller has one.
#[inline(always)]
pub(super) fn offsets(
    geometry: &Geometry,
    page_size: PageSize,
    start: VirtualAddress,
    bytes: u64,
) -> Result<(u64, u64), TableError> {
    let page = page_size.bytes();
    for value in [start.0, bytes] {
        if value & (page - 1) != 0 {
            return Err(TableError::Misaligned { value, page_size });
        }
    }
    let outside = TableError::OutsideSpace {
        start,
        bytes,
        va_bits: geometry.va_bits(),
    };
    let offset = geometry.offset(start).ok_or(outside)?;
    match offset.checked_add(bytes) {
        Some(end) if end <= geometry.span() => Ok((offset, end)),
        _ => Err(outside),
    }
}

/// The mapping of an address of a stage.
type MappingOf<S> = Mapping<<S as Stage>::Input, <S as Stage>::Attributes>;
/// An entry of tables of a stage.
type EntryOf<S> = Entry<<S as Stage>::Input>;

/// The base-2 logarithm of the bytes that one root table translates.
const fn root_shift(geometry: &Geometry, size: PageSize) -> u32 {
    size.level_shift(geometry.start_level()) + size.index_bits()
}

/// The root table that translates `offset`, of those that follow `root` in memory.
#[inline(always)]
pub(super) fn root_of<S: Stage>(
    geometry: &Geometry,
    size: PageSize,
    root: PhysicalAddress,
    offset: u64,
) -> PhysicalAddress {
    if !S::CONCATENATED {
        return root;
    }
    let number = offset >> root_shift(geometry, size);
    // The root of a guest's tables may be any number.
    root.wrapping_add(number << size.shift())
}

/// The end, at most `to`, of the offsets that the same root table translates as `at`.
#[inline(always)]
pub(super) fn root_end<S: Stage>(geometry: &Geometry, size: PageSize, at: u64, to: u64) -> u64 {
    if !S::CONCATENATED {
        return to;
    }
    let bytes = 1 << root_shift(geometry, size);
    to.min((at & !(bytes - 1)) + bytes)
}

/// Walks to `offset` and returns the last entry on the way.
#[inline(always)]
pub(super) fn walk<S: Source>(
    source: &S,
    root: PhysicalAddress,
    offset: u64,
) -> Result<(Level, Descriptor), LeftOut<S::Why>> {
    let geometry = source.geometry();
    let mut table = root_of::<S::Stage>(geometry, source.page_size(), root, offset);
    let mut level = geometry.start_level();
    loop {
        let index = source.page_size().index(offset, level);
        let descriptor = source.load(table, index).map_err(|why| LeftOut {
            table,
            level,
            offset,
            why,
        })?;
        if !descriptor.is_table(level) {
            return Ok((level, descriptor));
        }
        table = geometry.address_of(descriptor, level);
        level = level.next();
    }
}

/// The mapping of `offset` by the entry that a walk to it found in a table of `level`.
#[inline(always)]
pub(super) fn mapping<S: Source>(
    source: &S,
    level: Level,
    entry: Descriptor,
    offset: u64,
) -> Option<MappingOf<S::Stage>> {
    let geometry = source.geometry();
    if entry.kind(geometry, level) != Kind::Leaf {
        return None;
    }
    let bytes = source.page_size().entry_bytes(level);
    let start = offset & !(bytes - 1);
    let first = geometry.address_in(entry.0, source.page_size().level_shift(level));
    Some(Mapping {
        output: first.wrapping_add(offset - start),
        start: S::Stage::input(geometry.base().wrapping_add(start)),
        bytes,
        level,
        contiguous: entry.is_contiguous(),
        attributes: S::Stage::decode(entry, geometry),
    })
}

/// Visits the entries of a tree between two offsets, in runs if `RUNS`, by each of its root tables.
pub(super) fn visit_tree<S: Source, B, const RUNS: bool>(
    source: &S,
    root: PhysicalAddress,
    (from, to): (u64, u64),
    visit: &mut impl FnMut(Result<&EntryOf<S::Stage>, LeftOut<S::Why>>) -> ControlFlow<B, Visit>,
) -> ControlFlow<B> {
    let (size, geometry) = (source.page_size(), source.geometry());
    let level = geometry.start_level();
    let mut at = from;
    while at < to {
        let table = root_of::<S::Stage>(geometry, size, root, at);
        let next = root_end::<S::Stage>(geometry, size, at, to);
        visit_table::<S, B, RUNS>(source, table, level, (at, next), visit)?;
        at = next;
    }
    ControlFlow::Continue(())
}

/// Visits the entries of a table between two offsets, in runs if `RUNS`. A table that the source
/// leaves out is reported once, and the visit goes on behind it.
fn visit_table<S: Source, B, const RUNS: bool>(
    source: &S,
    table: PhysicalAddress,
    level: Level,
    (from, to): (u64, u64),
    visit: &mut impl FnMut(Result<&EntryOf<S::Stage>, LeftOut<S::Why>>) -> ControlFlow<B, Visit>,
) -> ControlFlow<B> {
    let (size, geometry) = (source.page_size(), source.geometry());
    let bytes = size.entry_bytes(level);
    let mut at = from;
    let mut left_out = source.enter(table, level).err();
    while at < to && left_out.is_none() {
        let first = at & !(bytes - 1);
        let mut next = to.min(first + bytes);
        let index = size.index(at, level);
        let descriptor = match source.load(table, index) {
            Ok(descriptor) => descriptor,
            Err(why) => {
                left_out = Some(why);
                break;
            }
        };
        let kind = descriptor.kind(geometry, level);
        if kind != Kind::Invalid {
            let output = geometry.address_of(descriptor, level);
            let mut count = 1;
            if RUNS && kind == Kind::Leaf {
                let most = size.entries() - index;
                let in_range = (to - first).div_ceil(bytes) as usize;
                // Beyond this limit the addition carries into bits that are not an address (with
                // TCR.DS from bit 49 into GP), and an unrelated leaf would look like the next
                // one.
                let rest = (1 << OUTPUT_RUN_SHIFT) - (output.0 & ((1 << OUTPUT_RUN_SHIFT) - 1));
                let in_format = (rest >> size.level_shift(level)) as usize;
                let most = most.min(in_range).min(in_format);
                count = run_length(source, table, index, bytes, descriptor, most);
                next = to.min(first + count as u64 * bytes);
            }
            let entry = Entry {
                table,
                index,
                level,
                start: S::Stage::input(geometry.base().wrapping_add(first)),
                bytes,
                count,
                descriptor,
                kind,
                output,
            };
            if visit(Ok(&entry))? == Visit::Descend && kind == Kind::Table {
                visit_table::<S, B, RUNS>(source, output, level.next(), (at, next), visit)?;
            }
        }
        at = next;
    }
    if let Some(why) = left_out {
        visit(Err(LeftOut {
            table,
            level,
            offset: at,
            why,
        }))?;
    }
    ControlFlow::Continue(())
}

/// The number of entries from `index` on, at most `most`, each of which is the one before and `step`.
#[inline(always)]
pub(super) fn run_length<S: Source>(
    source: &S,
    table: PhysicalAddress,
    index: usize,
    step: u64,
    first: Descriptor,
    most: usize,
) -> usize {
    let mut expected = first.0;
    let mut count = 1;
    while count < most {
        expected = expected.wrapping_add(step);
        let next = source.load(table, index + count);
        if !next.is_ok_and(|next| next.0 == expected) {
            break;
        }
        count += 1;
    }
    count
}
