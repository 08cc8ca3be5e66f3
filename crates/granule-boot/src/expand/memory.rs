//! RAM by the EFI memory map, and the nodes that describe it.
//!
//! Memory that firmware uses at run time is a child of `/reserved-memory` with `no-map` and the `compatible`
//! `granule,efi-runtime`. Kept memory of an absurd size reaches to the next descriptor. Of more than 128
//! separate ranges of RAM the smallest are left out.

use super::super::acpi::Srat;
use super::super::efi::{Descriptor, EFI_PAGE, Map, Role};
use super::super::memblock::{Region, Regions};
use super::super::tree::{Cells, Range, WriteError, Writer};
use super::{EFI_RUNTIME, ExpandError, FROM_EFI, Note, Notes};

/// The most separate ranges of RAM; early memory has room for no more.
const MOST_BANKS: usize = 128;
/// The most separate ranges that are collected before the smallest are left out.
const MOST_RANGES: usize = 512;
/// The most ranges of memory that get a node of their own, because something is near them.
const MOST_NEAR: usize = 256;
/// For how many kept descriptors of no sensible size the next one is looked for, each time in all of the map.
const MOST_ABSURD: u32 = 64;

type Done<T = ()> = Result<T, WriteError>;

/// The RAM of a machine: merged, ascending, without what anything else in the map keeps.
#[derive(Clone, Debug)]
pub(super) struct Banks<const N: usize = MOST_BANKS>(Regions<N>);

impl Banks {
    pub(super) fn of(map: Map<'_>, notes: &mut Notes) -> Result<Self, ExpandError> {
        let mut all = Banks::<MOST_RANGES>::usable(map, notes);
        while all.0.as_slice().len() > MOST_BANKS {
            let Some(smallest) = all.0.take_smallest() else {
                break;
            };
            notes.add(Note::MapFull(smallest.into()));
        }
        let mut banks = Self(Regions::EMPTY);
        for region in all.0.as_slice() {
            // There are not too many now.
            let _ = banks.0.insert(*region);
        }
        if banks.0.as_slice().is_empty() {
            return Err(ExpandError::NoMemory);
        }
        Ok(banks)
    }
}

impl<const N: usize> Banks<N> {
    /// All RAM, as far as there is room.
    fn usable(map: Map<'_>, notes: &mut Notes) -> Self {
        let mut banks = Self(Regions::EMPTY);
        for one in map {
            if !matches!(one.role(), Role::Usable | Role::Tables) {
                continue;
            }
            let Some(range) = one.range() else {
                notes.add(Note::MapEndless {
                    start: one.start,
                    pages: one.pages,
                });
                continue;
            };
            if let Some(region) = Region::new(range.start, range.end()) {
                if banks.0.insert(region).is_err() {
                    notes.add(Note::MapFull(range));
                }
            }
        }
        // Where descriptors overlap, the one that keeps counts.
        let mut absurd = 0_u32;
        for one in map {
            if matches!(one.role(), Role::Usable | Role::Tables) {
                continue;
            }
            let range = one.range().unwrap_or_else(|| {
                notes.add(Note::MapKept {
                    start: one.start,
                    pages: one.pages,
                });
                absurd = absurd.saturating_add(1);
                covered(map, &one, absurd <= MOST_ABSURD)
            });
            banks.take(range, notes);
        }
        banks
    }

    /// Takes `range` away, and notes the RAM in it.
    fn take(&mut self, range: Range, notes: &mut Notes) {
        let end = range.end();
        let Some(region) = Region::new(range.start, end) else {
            return;
        };
        let mut inside = self.inside(range);
        let Some(first) = inside.next() else {
            return;
        };
        drop(inside);
        notes.add(Note::MapOverlap(first));
        if self.0.remove(region).is_ok() {
            return;
        }
        // No room for both parts: the upper one goes too.
        let around = self.0.as_slice().iter().find(|own| own.end() > end);
        let upper = around.and_then(|own| Region::new(range.start, own.end()));
        if let Some(upper) = upper {
            let bytes = upper.end().saturating_sub(end);
            notes.add(Note::MapFull(Range::new(end, bytes)));
            // Only removing from the middle takes room.
            let _ = self.0.remove(upper);
        }
    }

    /// The parts of RAM inside `range`.
    fn inside(&self, range: Range) -> impl Iterator<Item = Range> {
        let parts = self.0.as_slice().iter();
        parts.filter_map(move |own| own.inside(range.start, range.end()).map(Range::from))
    }
}

/// The whole pages that a descriptor covers that begins inside a page or has no end. One without an end reaches
/// to the next descriptor, as far as that is looked for.
fn covered(map: Map<'_>, one: &Descriptor, looks: bool) -> Range {
    let mask = EFI_PAGE.wrapping_sub(1);
    let end = one.pages.checked_mul(EFI_PAGE);
    let end = end.and_then(|bytes| one.start.checked_add(bytes)?.checked_add(mask));
    let end = end.map(|end| end & !mask).unwrap_or_else(|| {
        let starts = map.filter(|_| looks).filter_map(|other| other.range());
        let above = starts.map(|it| it.start).filter(|it| *it > one.start);
        above.min().unwrap_or(u64::MAX)
    });
    let start = one.start & !mask;
    Range::new(start, end.saturating_sub(start))
}

/// Memory with tables, which is RAM and stays reserved.
pub(super) fn tables(map: Map<'_>) -> impl Iterator<Item = Range> {
    map.filter(|one| matches!(one.role(), Role::Tables))
        .filter_map(|one| one.range())
}

/// Writes the memory nodes: one for each range of `near`, and one for the rest.
pub(super) fn nodes<'t>(
    to: &mut Writer<'t>,
    cells: Cells,
    banks: &Banks,
    near: Option<Srat<'_>>,
    notes: &mut Notes,
) -> Done {
    let mut rest = banks.clone();
    let mut count = 0_usize;
    for one in near.into_iter().flat_map(Srat::memory) {
        let Some(region) = Region::new(one.range.start, one.range.end()) else {
            continue;
        };
        if rest.inside(one.range).next().is_some() {
            count = count.saturating_add(1);
            if count > MOST_NEAR {
                notes.add(Note::Near);
                break;
            }
            node(to, cells, &rest, one.range, Some(one.domain), notes)?;
            // Without room, the node of the rest describes some memory a second time.
            let _ = rest.0.remove(region);
        }
    }
    let all = Range::new(0, u64::MAX);
    if rest.inside(all).next().is_some() {
        node(to, cells, &rest, all, None, notes)?;
    }
    Ok(())
}

/// Writes a memory node with the RAM inside `range`.
fn node<'t>(
    to: &mut Writer<'t>,
    cells: Cells,
    banks: &Banks,
    range: Range,
    domain: Option<u32>,
    notes: &mut Notes,
) -> Done {
    let Some(first) = banks.inside(range).next() else {
        return Ok(());
    };
    to.begin_at(b"memory", first.start)?;
    to.text(b"device_type", b"memory")?;
    let fits = |range: &Range| fits(cells, *range);
    for range in banks.inside(range).filter(|range| !fits(range)) {
        notes.add(Note::Cells(range.start));
    }
    reg(to, b"reg", cells, banks.inside(range).filter(fits))?;
    if let Some(domain) = domain {
        to.cells(b"numa-node-id", &[domain])?;
    }
    to.property(FROM_EFI, &[])?;
    to.end()
}

/// Writes a node in `/reserved-memory` for each range that firmware uses at run time.
pub(super) fn runtime<'t>(
    to: &mut Writer<'t>,
    cells: Cells,
    map: Map<'_>,
    notes: &mut Notes,
) -> Done {
    for one in map.filter(|one| matches!(one.role(), Role::Runtime)) {
        let Some(range) = one.range().filter(|range| range.bytes != 0) else {
            continue;
        };
        if !can_hold(cells) || !fits(cells, range) {
            // No RAM, so nothing maps it either way.
            notes.add(Note::Cells(range.start));
            continue;
        }
        to.begin_at(b"efi-runtime", range.start)?;
        to.text(b"compatible", EFI_RUNTIME)?;
        reg(to, b"reg", cells, [range].into_iter())?;
        to.property(b"no-map", &[])?;
        to.property(FROM_EFI, &[])?;
        to.end()?;
    }
    Ok(())
}

/// Whether a `reg` with these cells can describe any memory.
pub(super) const fn can_hold(cells: Cells) -> bool {
    cells.address >= 1 && cells.address <= 4 && cells.size >= 1 && cells.size <= 4
}

/// Whether the addresses of a range fit into the cells.
fn fits(cells: Cells, range: Range) -> bool {
    let last = range.end().saturating_sub(1);
    cells.address > 1 || u32::try_from(last).is_ok()
}

/// Writes `reg`, or another property of its kind. A range whose size does not fit into the cells becomes
/// several.
pub(super) fn reg<'t>(
    to: &mut Writer<'t>,
    name: &'t [u8],
    cells: Cells,
    ranges: impl Iterator<Item = Range>,
) -> Done {
    let most = if cells.size > 1 { u64::MAX } else { 1 << 31 };
    let pieces = ranges.flat_map(move |range| {
        let mut rest = range;
        core::iter::from_fn(move || {
            let bytes = rest.bytes.min(most);
            let piece = Range { bytes, ..rest };
            rest.start = rest.start.saturating_add(bytes);
            rest.bytes = rest.bytes.saturating_sub(bytes);
            (bytes != 0).then_some(piece)
        })
    });
    let numbers = pieces.flat_map(move |piece| {
        let Range { start, bytes } = piece;
        [(start, cells.address), (bytes, cells.size)]
    });
    let all = numbers.flat_map(|(number, cells)| {
        (0..cells).rev().map(move |place| {
            // The cells above the second hold zeros.
            let shift = place.saturating_mul(32);
            let cell = number.checked_shr(shift).unwrap_or_default() as u32;
            cell.to_be_bytes()
        })
    });
    to.list(name, all)
}
