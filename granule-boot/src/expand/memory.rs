//! RAM by the EFI memory map, and the nodes that say it.

use super::super::acpi::Srat;
use super::super::efi::{Map, Role};
use super::super::memblock::{Region, Regions};
use super::super::tree::{Cells, Range, WriteError, Writer};
use super::{EFI_RUNTIME, ExpandError, FROM_EFI, Note, Notes, end};

/// The most separate ranges of RAM; early memory has room for no more.
const MOST_BANKS: usize = 128;

type Done<T = ()> = Result<T, WriteError>;

/// The RAM of a machine: merged, ascending, without what anything else in the map keeps.
#[derive(Clone, Debug)]
pub(super) struct Banks(Regions<MOST_BANKS>);

impl Banks {
    pub(super) fn of(map: Map<'_>, notes: &mut Notes) -> Result<Self, ExpandError> {
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
            if let Some(region) = Region::new(range.start, end(range))
                && banks.0.insert(region).is_err()
            {
                notes.add(Note::MapFull(range));
            }
        }
        // Where descriptors overlap, the one that keeps counts.
        for one in map {
            if !matches!(one.role(), Role::Runtime | Role::Kept) {
                continue;
            }
            let most = one.range().unwrap_or(Range {
                start: one.start,
                bytes: u64::MAX,
            });
            banks.take(most, notes);
        }
        if banks.0.as_slice().is_empty() {
            return Err(ExpandError::NoMemory);
        }
        Ok(banks)
    }

    /// Takes `range` away, and tells what of it was RAM.
    fn take(&mut self, range: Range, notes: &mut Notes) {
        let end = end(range);
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
            notes.add(Note::MapFull(Range {
                start: end,
                bytes: upper.end().saturating_sub(end),
            }));
            // Only removing from the middle takes room.
            let _ = self.0.remove(upper);
        }
    }

    /// The parts of RAM inside `range`.
    fn inside(&self, range: Range) -> impl Iterator<Item = Range> {
        let end = end(range);
        let parts = self.0.as_slice().iter();
        parts.filter_map(move |own| {
            let part = own.inside(range.start, end)?;
            Some(Range {
                start: part.start(),
                bytes: part.len(),
            })
        })
    }
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
    for one in near.into_iter().flat_map(Srat::memory) {
        let Some(region) = Region::new(one.range.start, end(one.range)) else {
            continue;
        };
        if rest.inside(one.range).next().is_some() {
            node(to, cells, &rest, one.range, Some(one.domain), notes)?;
            // Without room, the node of the rest says some memory a second time.
            let _ = rest.0.remove(region);
        }
    }
    let all = Range {
        start: 0,
        bytes: u64::MAX,
    };
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
    reg(to, cells, banks.inside(range).filter(fits))?;
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
        reg(to, cells, [range].into_iter())?;
        to.property(b"no-map", &[])?;
        to.property(FROM_EFI, &[])?;
        to.end()?;
    }
    Ok(())
}

/// Whether a `reg` with these cells can say any memory.
pub(super) const fn can_hold(cells: Cells) -> bool {
    cells.address >= 1 && cells.address <= 4 && cells.size >= 1 && cells.size <= 4
}

/// Whether the addresses of a range fit into the cells.
fn fits(cells: Cells, range: Range) -> bool {
    let last = end(range).saturating_sub(1);
    cells.address > 1 || u32::try_from(last).is_ok()
}

/// Writes `reg`. A range whose size does not fit into the cells becomes several.
fn reg<'t>(to: &mut Writer<'t>, cells: Cells, ranges: impl Iterator<Item = Range>) -> Done {
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
    to.list(b"reg", all)
}
