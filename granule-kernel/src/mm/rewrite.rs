//! Rewriting the linear map to pages, for a system in which not all CPUs allow live splits.
//!
//! The boot CPU decides by itself how large leaves are, before it knows of others. If one of those
//! then turns out weaker, a permission of a page could no longer be changed; so all blocks are
//! split at once, by the boot CPU, which by its own level may, while no other CPU uses the tables.
//!
//! This is done before the frame allocator takes over: the tables can then come from early memory
//! in one piece, as those of the map did, so that most are linked in runs; and before the other
//! CPUs check their translations, which then are those of the map that stays.

use super::map::{LinearMap, Request};
use super::walker::Tree;
use crate::cpu::parking;
use crate::mm::selfcheck::{self, Fault, Looked};
use core::fmt;
use granule::arch::PhysicalAddress;
use granule::arch::trust::Decision;
use granule::linear::Census;
use granule::table::{Leaves, TableError};
use granule_boot::memblock::{self, Direction};
use granule_kcore::devicetree::memory::Memory;

/// Why the map cannot be rewritten. The tables are as they were; the plan of them is not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// There is no memory for the tables.
    NoTableMemory {
        pages: u64,
        page_bytes: u64,
        error: memblock::Error,
    },
    /// The walker refused.
    Table(TableError),
    /// What was made is not what was planned.
    SelfCheck(Fault),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTableMemory {
                pages,
                page_bytes,
                error,
            } => write!(
                f,
                "no free range of RAM holds the {pages} tables of {page_bytes} bytes that it takes ({error}); arm64.bbm=0 makes it of pages from the start"
            ),
            Self::Table(error) => write!(f, "{error}"),
            Self::SelfCheck(fault) => write!(f, "{fault}"),
        }
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

/// Whether a map made for `request` must be rewritten on a system that is trusted like `all`.
pub(crate) fn is_needed(request: &Request<'_>, all: &Decision) -> bool {
    request.parameters.rodata.changes_pages()
        && request.trust.splits_blocks()
        && !all.splits_blocks()
}

/// Splits all that is larger than a page. Every CPU but this one is parked meanwhile. `map` and
/// `looked` then tell of the map as it is.
// Its own frame: the boot's lies under all that follows, and what it holds is large.
#[inline(never)]
pub(crate) fn to_pages(
    request: &Request<'_>,
    tables: &mut dyn Tree,
    memory: &mut Memory,
    map: &mut LinearMap,
    seed: u64,
    looked: &mut Looked,
) -> Result<(), Failure> {
    // In place: a second list of them is a quarter of the boot's stack, and where this fails the
    // boot ends.
    for piece in &mut map.pieces {
        piece.leaves = Leaves::PAGES;
    }
    let pieces = map.pieces.as_slice();
    let census = Census::new(&request.geometry, pieces);
    let added = census.tables().saturating_sub(map.census.tables());
    let pages = added.saturating_sub(tables.arena().map_or(0, |arena| arena.available()));
    if pages > 0 {
        let page_bytes = request.geometry.page_size().bytes();
        let bytes = pages * page_bytes;
        let start = memory
            .allocate(bytes, page_bytes, 0..u64::MAX, Direction::TopDown)
            .map_err(|error| Failure::NoTableMemory {
                pages,
                page_bytes,
                error,
            })?;
        let end = PhysicalAddress(start + bytes);
        // The linear map has all of early memory.
        if let Some(arena) = tables.arena() {
            arena.extend_mapped(PhysicalAddress(start), end);
        }
    }
    tables.set_bbm(request.trust.level);
    let (Some(lowest), Some(highest)) = (pieces.first(), pieces.last()) else {
        return Ok(());
    };
    // Holes between the pieces are passed over.
    let window = (highest.start.0 + highest.bytes).wrapping_sub(lowest.start.0);
    // The invalidation at the end of it leaves this CPU no block; the others come back with an
    // empty TLB.
    let added =
        parking::with_others_parked(|| tables.limit_leaves(lowest.start, window, Leaves::PAGES))?;
    map.rewritten = Some(added as u64);
    map.census = census;

    // What was walked before is no more; what the CPU was asked counts on.
    *looked = Looked {
        patterns: looked.patterns,
        translations: looked.translations,
        ..Looked::default()
    };
    selfcheck::walk(tables, map, &request.placement, looked)
        .and_then(|()| selfcheck::translations(map, &request.placement, seed, looked))
        .map_err(Failure::SelfCheck)
}
