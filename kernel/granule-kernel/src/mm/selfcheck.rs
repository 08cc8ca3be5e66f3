//! Checks the kernel's own tables after boot, in three ways: by the CPU's translations, by patterns in
//! memory, and by a walk of every entry.
//!
//! Each check counts what it examined, so that an empty check is visible.

#![allow(unsafe_code, reason = "a page through two mappings")]

use crate::arch::cpu;
use crate::mm::map::LinearMap;
use crate::mm::walker::{self, Tree};
use core::ops::ControlFlow;
use granule::arch::Level;
use granule::arch::{Attributes, Geometry, Kind, Permissions, PhysicalAddress, VirtualAddress};
use granule::linear::Placement;
use granule::table::{Entry, Leaves, Piece, TableError, Visit};
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::layout;
use granule_kcore::parameters::{Parameters, SelfCheck};
use thiserror::Error;

/// Number of random addresses to translate, and most pages to write and read.
const SAMPLES: u64 = 4096;

/// A fault that a check found.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum Fault {
    #[error("{address} translates to {seen:#x}, expected {expected}")]
    Translation {
        address: VirtualAddress,
        expected: PhysicalAddress,
        seen: u64,
    },
    #[error("{address} faults with status {status:#04x}, expected {expected}")]
    Faults {
        address: VirtualAddress,
        expected: PhysicalAddress,
        status: u64,
    },
    #[error(
        "{seen:#x} is read from page {page} through a second mapping, {expected:#x} was written through the linear map"
    )]
    Pattern {
        page: PhysicalAddress,
        expected: u64,
        seen: u64,
    },
    #[error(
        "the leaf at {address}, to {output}, is not planned: its output, size or permissions are others"
    )]
    Leaf {
        address: VirtualAddress,
        output: PhysicalAddress,
    },
    #[error("the leaf at {address} is writable and executable")]
    WritableExecutable { address: VirtualAddress },
    #[error(
        "{seen} leaves of {bytes:#x} bytes (contiguous: {contiguous}), {expected} were planned"
    )]
    LeafCount {
        bytes: u64,
        contiguous: bool,
        expected: u64,
        seen: u64,
    },
    #[error("{seen:#x} bytes are mapped, {expected:#x} were planned")]
    Coverage { expected: u64, seen: u64 },
    #[error("{seen} tables are found, {expected} were allocated")]
    TableCount { expected: u64, seen: u64 },
    #[error("the self-check cannot map a page: {0}")]
    Table(#[from] TableError),
}

/// The amount that the checks examined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    pub(crate) translations: u64,
    pub(crate) patterns: u64,
    pub(crate) leaves: u64,
    pub(crate) tables: u64,
    /// Bytes of the linear map that are read-only.
    pub(crate) read_only_bytes: u64,
}

/// The checks, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Compares all entries with the plan.
    Walk,
    /// Checks the CPU's translations.
    Translations,
    /// Reads memory through two mappings.
    Patterns,
}

pub(crate) fn extent(parameters: &Parameters<'_>, map: &LinearMap) -> SelfCheck {
    let of_pages = map
        .stats
        .leaves()
        .filter(|(size, _)| size.level.number() == 3);
    let bytes = of_pages.map(|(size, count)| size.bytes * count).sum();
    let asked = parameters.self_check;
    asked.unwrap_or(SelfCheck::for_pages(bytes))
}

/// Runs all checks. `before` is called ahead of each stage, so that tests can make it fail.
#[inline(never)]
pub(crate) fn run(
    tables: &mut Tree<'_>,
    map: &LinearMap,
    placement: &Placement,
    memory: &Memory,
    (seed, extent): (u64, SelfCheck),
    mut before: impl FnMut(Stage, &mut Tree<'_>),
) -> Result<Looked, Fault> {
    let mut looked = Looked::default();
    if extent == SelfCheck::Off {
        return Ok(looked);
    }
    before(Stage::Walk, tables);
    walk(tables, map, placement, extent, &mut looked)?;
    before(Stage::Translations, tables);
    translations(map, placement, seed, &mut looked)?;
    before(Stage::Patterns, tables);
    patterns(tables, placement, memory, &mut looked)?;
    Ok(looked)
}

fn check_translation(placement: &Placement, output: u64, looked: &mut Looked) -> Result<(), Fault> {
    let expected = PhysicalAddress(output);
    let address = VirtualAddress(output.wrapping_add(placement.distance()));
    looked.translations += 1;
    match cpu::translate(address.0) {
        Ok(seen) if seen == output => Ok(()),
        Ok(seen) => Err(Fault::Translation {
            address,
            expected,
            seen,
        }),
        Err(status) => Err(Fault::Faults {
            address,
            expected,
            status,
        }),
    }
}

/// Translates random addresses. The walk checks the ends of the runs of leaves.
pub(crate) fn translations(
    map: &LinearMap,
    placement: &Placement,
    seed: u64,
    looked: &mut Looked,
) -> Result<(), Fault> {
    let mut random = seed | 1;
    for _ in 0..SAMPLES {
        // xorshift64: any even spread serves, and the seed is in the boot record.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut offset = random % map.stats.bytes.max(1);
        for piece in &map.pieces {
            if offset < piece.bytes {
                check_translation(placement, piece.output.0 + offset, looked)?;
                break;
            }
            offset -= piece.bytes;
        }
    }
    Ok(())
}

/// Writes a pattern to free pages through the linear map and reads it back through a page of the fixmap.
fn patterns(
    tables: &mut Tree<'_>,
    placement: &Placement,
    memory: &Memory,
    looked: &mut Looked,
) -> Result<(), Fault> {
    let size = tables.geometry().page_size();
    let page = size.bytes();
    let second = VirtualAddress(layout::CHECK_VADDR);
    let pages: u64 = memory
        .free_pages()
        .map(|range| range.len() >> size.shift())
        .sum();
    let stride = pages.div_ceil(SAMPLES).max(1);
    let mut number = 0u64;
    for range in memory.free_pages() {
        let in_range = range.len() >> size.shift();
        let mut at = number.div_ceil(stride) * stride - number;
        while at < in_range {
            let output = PhysicalAddress(range.start() + at * page);
            let expected = output.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let first = output.0.wrapping_add(placement.distance()) as *mut u64;
            // SAFETY: a free page of RAM, mapped writable by the linear map and not in use.
            unsafe { first.write_volatile(expected) };
            let read = Attributes::normal(Permissions::READ);
            tables.map(second, output, page, read, Leaves::PAGES)?;
            walker::assume_visible(tables, second, page);
            // SAFETY: the page was just mapped there.
            let seen = unsafe { (second.0 as *const u64).read_volatile() };
            walker::unmap(tables, second, page)?;
            looked.patterns += 1;
            if seen != expected {
                return Err(Fault::Pattern {
                    page: output,
                    expected,
                    seen,
                });
            }
            at += stride;
        }
        number += in_range;
    }
    Ok(())
}

/// A walk over the linear map's leaves, entry by entry.
struct LeafWalk<'a> {
    placement: &'a Placement,
    geometry: Geometry,
    /// The rest of the plan. Leaves and pieces both ascend.
    pieces: &'a [Piece],
    bytes: u64,
    /// Counts of single leaves and of groups, by level.
    seen: [[u64; 2]; Level::ALL.len()],
    last: Option<Entry>,
}

impl LeafWalk<'_> {
    /// Checks a run of leaves, piece by piece: two pieces may differ in their largest leaves alone.
    fn leaf(&mut self, entry: &Entry, looked: &mut Looked) -> Result<(), Fault> {
        let mut rest = *entry;
        loop {
            while let Some((first, behind)) = self.pieces.split_first()
                && first.output_end() <= rest.output
            {
                self.pieces = behind;
            }
            let end = self.pieces.first().map_or(0, |piece| piece.output_end().0);
            let inside = end.saturating_sub(rest.output.0) / rest.bytes;
            let mut part = rest;
            part.count = rest.count.min(inside.max(1) as usize);
            self.leaves(&part, looked)?;
            if part.count == rest.count {
                return Ok(());
            }
            let bytes = part.bytes * part.count as u64;
            rest.output.0 += bytes;
            rest.start.0 += bytes;
            rest.index += part.count;
            rest.count -= part.count;
        }
    }

    fn leaves(&mut self, entry: &Entry, looked: &mut Looked) -> Result<(), Fault> {
        let attributes = Attributes::decode(entry.descriptor, &self.geometry);
        let planned = self.pieces.first().is_some_and(|piece| {
            piece.output <= entry.output
                && entry.output.0 + entry.bytes * entry.count as u64 <= piece.output_end().0
                && piece.attributes == attributes
        });
        if !planned || self.placement.virtual_address(entry.output) != Some(entry.start) {
            return Err(Fault::Leaf {
                address: entry.start,
                output: entry.output,
            });
        }
        let bytes = entry.bytes * entry.count as u64;
        self.bytes += bytes;
        if !attributes.permissions.writable {
            looked.read_only_bytes += bytes;
        }
        let level = (entry.level.number() + 1) as usize;
        if let Some([single, grouped]) = self.seen.get_mut(level) {
            let contiguous = entry.descriptor.is_contiguous();
            *(if contiguous { grouped } else { single }) += entry.count as u64;
        }
        let goes_on = self.last.is_some_and(|last| {
            last.level == entry.level
                && last.descriptor.is_contiguous() == entry.descriptor.is_contiguous()
                && last.output.0 + last.bytes * last.count as u64 == entry.output.0
        });
        if !goes_on {
            self.end_of_run(looked)?;
            check_translation(self.placement, entry.output.0, looked)?;
        }
        self.last = Some(*entry);
        Ok(())
    }

    /// Checks the pages of a table that lies in one piece as a whole: those at the piece's edges, and of the others one
    /// in [`SelfCheck::SHARE`], in each table another one. False if the table is to be walked.
    fn sample(
        &mut self,
        tables: &Tree<'_>,
        table: &Entry,
        looked: &mut Looked,
    ) -> Result<bool, Fault> {
        let page = self.geometry.page_size().bytes();
        let count = page / 8;
        let Some(output) = self.placement.physical_address(table.start) else {
            return Ok(false);
        };
        let end = output.0 + page * count;
        let mut pieces = self.pieces.iter();
        let piece = pieces.find(|piece| piece.output <= output && end <= piece.output_end().0);
        let Some(piece) = piece.filter(|_| table.bytes == page * count) else {
            return Ok(false);
        };
        self.end_of_run(looked)?;
        self.last = None;
        let first = output.0 / table.bytes % SelfCheck::SHARE;
        let inside = (first..count).step_by(SelfCheck::SHARE as usize);
        let edges = [
            (piece.output == output).then_some(0),
            (piece.output_end().0 == end).then_some(count - 1),
        ];
        let mut contiguous = None;
        for index in edges.into_iter().flatten().chain(inside) {
            let expected = PhysicalAddress(output.0 + index * page);
            let address = VirtualAddress(table.start.0 + index * page);
            let leaf = tables.query(address);
            let planned = leaf.filter(|leaf| {
                leaf.output == expected
                    && leaf.bytes == page
                    && leaf.attributes == piece.attributes
                    && *contiguous.get_or_insert(leaf.contiguous) == leaf.contiguous
            });
            looked.leaves += 1;
            if planned.is_none() {
                let output = leaf.map_or(expected, |leaf| leaf.output);
                return Err(Fault::Leaf { address, output });
            }
            if index == 0 || index == count - 1 {
                check_translation(self.placement, expected.0, looked)?;
            }
        }
        self.bytes += table.bytes;
        if !piece.attributes.permissions.writable {
            looked.read_only_bytes += table.bytes;
        }
        if let Some([single, grouped]) = self.seen.last_mut() {
            *(if contiguous == Some(true) {
                grouped
            } else {
                single
            }) += count;
        }
        Ok(true)
    }

    /// Asks the CPU to translate the last byte of the run of like leaves that ends here.
    fn end_of_run(&self, looked: &mut Looked) -> Result<(), Fault> {
        let Some(last) = self.last else {
            return Ok(());
        };
        let end = last.output.0 + last.bytes * last.count as u64;
        check_translation(self.placement, end - 1, looked)
    }
}

/// Checks every entry of the upper VA range, or those of a sample: the linear map against the plan, both ends of
/// each run of like leaves against the CPU, and that no leaf is writable and executable.
pub(crate) fn walk(
    tables: &mut Tree<'_>,
    map: &LinearMap,
    placement: &Placement,
    extent: SelfCheck,
    looked: &mut Looked,
) -> Result<(), Fault> {
    let geometry = *tables.geometry();
    let mut leaves = LeafWalk {
        placement,
        geometry,
        pieces: map.pieces.as_slice(),
        bytes: 0,
        seen: [[0; 2]; Level::ALL.len()],
        last: None,
    };
    let mut linear_tables = 0;
    let mut look = |sampled: Option<&Tree<'_>>, entry: &Entry| {
        // Its last address: the window may begin inside what a table covers, and ends with a half of the
        // space, where every table ends.
        let last = VirtualAddress(entry.start.0 + (entry.bytes - 1));
        let in_linear = placement.physical_address(last).is_some();
        if entry.kind == Kind::Table {
            looked.tables += 1;
            linear_tables += u64::from(in_linear);
            if let Some(tables) = sampled.filter(|_| in_linear) {
                return match leaves.sample(tables, entry, looked) {
                    Ok(true) => ControlFlow::Continue(Visit::Skip),
                    Ok(false) => ControlFlow::Continue(Visit::Descend),
                    Err(fault) => ControlFlow::Break(fault),
                };
            }
        } else {
            looked.leaves += entry.count as u64;
            let permissions = Attributes::decode(entry.descriptor, &geometry).permissions;
            if permissions.writable_and_executable() {
                return ControlFlow::Break(Fault::WritableExecutable {
                    address: entry.start,
                });
            }
            if in_linear && let Err(fault) = leaves.leaf(entry, looked) {
                return ControlFlow::Break(fault);
            }
        }
        ControlFlow::Continue(Visit::Descend)
    };
    let fault = if extent == SelfCheck::Sample {
        let tables = &*tables;
        tables.visit_all(|entry| look(Some(tables), entry))
    } else {
        tables.visit_runs(|entry| look(None, entry))
    };
    if let ControlFlow::Break(fault) = fault {
        return Err(fault);
    }
    leaves.end_of_run(looked)?;
    if leaves.bytes != map.stats.bytes {
        return Err(Fault::Coverage {
            expected: map.stats.bytes,
            seen: leaves.bytes,
        });
    }
    for size in geometry.leaf_sizes() {
        let entries = size.bytes >> geometry.page_size().level_shift(size.level);
        let level = (size.level.number() + 1) as usize;
        let [single, grouped] = leaves.seen.get(level).copied().unwrap_or_default();
        let seen = if size.contiguous { grouped } else { single } / entries;
        let planned = map.stats.leaves().find(|(other, _)| *other == size);
        let expected = planned.map_or(0, |(_, count)| count);
        if seen != expected {
            return Err(Fault::LeafCount {
                bytes: size.bytes,
                contiguous: size.contiguous,
                expected,
                seen,
            });
        }
    }
    if linear_tables != map.stats.tables {
        return Err(Fault::TableCount {
            expected: map.stats.tables,
            seen: linear_tables,
        });
    }
    Ok(())
}
