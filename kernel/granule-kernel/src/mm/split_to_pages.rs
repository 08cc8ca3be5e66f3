//! Splits the whole linear map to pages, for a system in which not all CPUs allow live splits.
//!
//! The boot CPU chooses the size of leaves before it has the features of the other CPUs. If one of
//! those has a lower BBM level, the permission of a single page could no longer change. So the boot
//! CPU splits all blocks at once. Its own level allows that, and no other CPU uses the tables
//! meanwhile.
//!
//! The split is done before the frame allocator takes over, so that its tables come from early memory in one
//! piece, like those of the map, and most are linked in runs. It is also done before the other CPUs check
//! their translations, so that they check the final map.

#![allow(
    unsafe_code,
    reason = "the kernel's tables while only the boot CPU runs"
)]

use super::map::{LinearMap, NoTableMemory, Request, extend_arena};
use super::walker::Tree;
use crate::cpu::parking;
use crate::mm::selfcheck::{self, Fault, Looked};
use granule::arch::bbm_policy::Decision;
use granule::linear::LeafStats;
use granule::table::{Leaves, TableError};
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::parameters::SelfCheck;
use thiserror::Error;

/// Why the map could not be split. The tables are unchanged, but the plan of the map is not.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum Failure {
    #[error("{0}; arm64.bbm=0 makes it of pages from the start")]
    NoTableMemory(#[from] NoTableMemory),
    #[error("{0}")]
    Table(#[from] TableError),
    /// The result differs from the plan.
    #[error("{0}")]
    SelfCheck(#[from] Fault),
}

/// Whether a map built for `request` must be split to pages, given the trust `all` in all CPUs.
pub(crate) fn is_needed(request: &Request<'_>, all: &Decision) -> bool {
    request.parameters.rodata.changes_pages()
        && request.bbm_policy.splits_blocks()
        && !all.splits_blocks()
}

/// Splits every leaf larger than a page. Every other CPU is parked meanwhile. Updates `map` and `looked` to
/// describe the new map.
#[inline(never)]
pub(crate) fn split(
    request: &Request<'_>,
    tables: &mut Tree<'_>,
    memory: &mut Memory,
    map: &mut LinearMap,
    seed: u64,
    looked: &mut Looked,
) -> Result<(), Failure> {
    // The pieces are changed in place: a second list takes a quarter of the boot's stack. A failure ends the
    // boot, so the old list is not needed.
    for piece in &mut map.pieces {
        piece.leaves = Leaves::PAGES;
    }
    let pieces = map.pieces.as_slice();
    let stats = LeafStats::new(&request.geometry, pieces);
    let added = stats.tables.saturating_sub(map.stats.tables);
    extend_arena(tables, memory, added, |arena, start, end| {
        // SAFETY: the early allocator gave this memory to nobody else, and gives out RAM that the linear map, through
        // which the arena and the tables reach memory, covers.
        unsafe { arena.extend_mapped(start, end) };
    })?;
    // SAFETY: the boot CPU can do what it is trusted with, and no other CPU uses the tables meanwhile.
    unsafe { tables.set_bbm(request.bbm_policy.level) };
    let (Some(lowest), Some(highest)) = (pieces.first(), pieces.last()) else {
        return Ok(());
    };
    // Holes between the pieces are skipped.
    let window = (highest.start.0 + highest.bytes).wrapping_sub(lowest.start.0);
    // The TLBI at the end of the split removes every block from this CPU's TLB. The other CPUs return with an
    // empty TLB.
    let added =
        parking::with_others_parked(|| tables.limit_leaves(lowest.start, window, Leaves::PAGES))?;
    map.split_to_pages = Some(added as u64);
    map.stats = stats;

    // The walk's counts describe the old tables and are replaced. The count of the CPU's translations
    // continues.
    *looked = Looked {
        patterns: looked.patterns,
        translations: looked.translations,
        ..Looked::default()
    };
    let extent = selfcheck::extent(request.parameters, map);
    if extent == SelfCheck::Off {
        return Ok(());
    }
    selfcheck::walk(tables, map, &request.placement, extent, looked)?;
    selfcheck::translations(map, &request.placement, seed, looked)?;
    Ok(())
}
