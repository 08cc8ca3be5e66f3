//! Builds the linear map: chooses the regions and the strategy, and counts the cost.
//!
//! Counting begins before the first instruction that plans the map and ends when this CPU can use all of it.
//! Nothing is undone on failure, because the boot ends there.
//!
//! With `rodata=on|full` the permission of any page may change later. The map then has the largest leaves if
//! the CPUs can split them live (`init::bbm_policy`), and pages if they cannot. The alias of the image's text
//! and constants is read-only. A published strategy has instances of its own for each page size, because its
//! loops are over entries.
//!
//! Stores (zeroing included), tables, TLBIs, DSBs and ISBs are counted by wrappers round the library's three
//! environment (`granule_trace::recorder::Counted`), instructions by the PMU (`arch::counter`). The record has the value of
//! SCTLR at the beginning.

#![allow(
    unsafe_code,
    reason = "the kernel's tables while only the boot CPU runs"
)]

use super::early_tables::EarlyTables;
use super::environment::{Flush, KernelEnvironment};
use super::fixmap::{Fixmap, FixmapPlace};
use super::phys_to_virt::KernelPhysToVirt;
use super::table_allocator::KernelTableAllocator;
use super::walker::{self, Opened, Tree};
use crate::arch::counter::InstructionCounter;
use crate::arch::{cpu, image};
use crate::trace::recorder::Recorder;
use arrayvec::ArrayVec;
use core::ops::Range;
use granule::arch::Page;
use granule::arch::bbm_policy::Decision;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Attributes, Dispatch, Geometry, Permissions, PhysicalAddress, VirtualAddress};
use granule::linear::fixmap::{self, FixmapSlots};
use granule::linear::{Arena, LeafStats, Placement, Strategy};
use granule::table::{Leaves, Piece, TableError};
use granule_boot::memblock::{self, Direction};
use granule_kcore::counter_wrap::Lost;
use granule_kcore::devicetree::memory::{MOST_RANGES, Memory};
use granule_kcore::parameters::Parameters;
use granule_kcore::sizes;
use granule_trace::recorder::{Counters, Counts, TracedFixmap};
use thiserror::Error;

/// Most pieces of a linear map: banks, the holes between them, and the two edges of the image's protected
/// part.
pub(crate) const MOST_PIECES: usize = 2 * MOST_RANGES + 2;

/// The pieces of the linear map, ascending.
pub(crate) type Pieces = ArrayVec<Piece, MOST_PIECES>;

/// Why the linear map could not be built.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum MapError {
    #[error("RAM is in more than {MOST_PIECES} pieces to be mapped")]
    TooManyPieces,
    #[error("{0}: RAM is too small, or in too many pieces")]
    NoTableMemory(#[from] NoTableMemory),
    #[error("the linear map cannot be made: {0}")]
    Table(#[from] TableError),
}

/// There is no memory for tables in one piece.
#[derive(Clone, Copy, Debug, Error)]
#[error(
    "no free range of RAM holds the tables of the linear map, {pages} tables of {page_bytes} bytes ({error})"
)]
pub(crate) struct NoTableMemory {
    pages: u64,
    page_bytes: u64,
    error: memblock::Error,
}

/// Takes memory for `tables` tables that the arena lacks from early memory, in one piece, because consecutive tables
/// are linked in runs, and gives it to the arena by `extend`, with its bounds.
pub(super) fn extend_arena(
    tables: &mut Tree<'_>,
    memory: &mut Memory,
    needed: u64,
    extend: impl FnOnce(&mut Arena<KernelPhysToVirt>, PhysicalAddress, PhysicalAddress),
) -> Result<(), NoTableMemory> {
    let page_bytes = tables.geometry().page_size().bytes();
    let Some(arena) = walker::arena(tables) else {
        return Ok(());
    };
    let pages = needed.saturating_sub(arena.available());
    if pages > 0 {
        let bytes = pages * page_bytes;
        let start = memory
            .allocate(bytes, page_bytes, 0..u64::MAX, Direction::TopDown)
            .map_err(|error| NoTableMemory {
                pages,
                page_bytes,
                error,
            })?;
        extend(
            arena,
            PhysicalAddress(start),
            PhysicalAddress(start + bytes),
        );
    }
    Ok(())
}

/// Lists the regions of `memory` that the map covers. With `rodata`, the alias of the image's text and
/// constants is read-only.
fn plan(request: &Request<'_>, memory: &Memory, pieces: &mut Pieces) -> Result<(), MapError> {
    let rodata = request.parameters.rodata;
    let constants = request.image_start..request.image_start + image::constants_end();
    let leaves = request.leaves();
    let mut push = |start: u64, end: u64, permissions: Permissions| {
        if start >= end {
            return Ok(());
        }
        let piece = Piece {
            start: VirtualAddress(start.wrapping_add(request.placement.distance())),
            output: PhysicalAddress(start),
            bytes: end - start,
            attributes: Attributes::normal(permissions),
            leaves,
        };
        pieces.try_push(piece).map_err(|_| MapError::TooManyPieces)
    };
    for ram in memory.mapped() {
        let (start, end) = (ram.start(), ram.end());
        if !rodata.protects_image() {
            push(start, end, Permissions::READ_WRITE)?;
            continue;
        }
        let cut = |at: u64| at.clamp(start, end);
        push(start, cut(constants.start), Permissions::READ_WRITE)?;
        push(cut(constants.start), cut(constants.end), Permissions::READ)?;
        push(cut(constants.end), end, Permissions::READ_WRITE)?;
    }
    Ok(())
}

/// Cuts a range that lies in one piece out of it, to be mapped in pages.
#[cold]
#[inline(never)]
fn in_pages(
    request: &Request<'_>,
    range: &Range<u64>,
    pieces: &mut Pieces,
) -> Result<(), MapError> {
    let holds = |piece: &Piece| {
        let end = piece.output.0 + piece.bytes;
        piece.output.0 <= range.start && range.end <= end
    };
    let Some(index) = pieces.iter().position(holds) else {
        return Ok(());
    };
    let whole = pieces.remove(index);
    let end = whole.output.0 + whole.bytes;
    let parts = [
        (range.end, end, whole.leaves),
        (range.start, range.end, Leaves::PAGES),
        (whole.output.0, range.start, whole.leaves),
    ];
    for (start, end, leaves) in parts.into_iter().filter(|(start, end, _)| start < end) {
        let piece = Piece {
            start: VirtualAddress(start.wrapping_add(request.placement.distance())),
            output: PhysicalAddress(start),
            bytes: end - start,
            leaves,
            ..whole
        };
        let placed = pieces.try_insert(index, piece);
        placed.map_err(|_| MapError::TooManyPieces)?;
    }
    Ok(())
}

/// The inputs of building the map.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) capabilities: TlbCapabilities,
    pub(crate) root: PhysicalAddress,
    pub(crate) phys_to_virt: KernelPhysToVirt,
    pub(crate) placement: Placement,
    pub(crate) image_start: u64,
    pub(crate) pool: (PhysicalAddress, PhysicalAddress),
    /// The BBM level up to which the boot CPU is trusted to split live blocks. A map whose pages
    /// must be able to change has blocks only if this CPU may split them.
    pub(crate) bbm_policy: Decision,
    /// Who needs the map in pages, whatever the CPUs can split.
    pub(crate) pages_for: Option<&'static str>,
    pub(crate) parameters: &'a Parameters<'a>,
    /// Physical addresses that are mapped in pages, whatever the rest is.
    pub(crate) guard: Option<Range<u64>>,
    pub(crate) counter: Option<&'a InstructionCounter>,
}

impl Request<'_> {
    /// Largest leaves allowed in the linear map.
    pub(crate) const fn leaves(&self) -> Leaves {
        let split_never =
            self.parameters.rodata.changes_pages() && !self.bbm_policy.splits_blocks();
        if split_never || self.pages_for.is_some() {
            Leaves::PAGES
        } else {
            Leaves::LARGEST
        }
    }

    /// The environment of the kernel's tables during the boot.
    pub(crate) fn environment<'a>(
        &self,
        allocator: KernelTableAllocator<'a>,
        counters: &'a Counters,
        flush: Flush,
    ) -> KernelEnvironment<'a> {
        KernelEnvironment::new(
            self.geometry.page_size(),
            self.capabilities,
            self.phys_to_virt,
            counters,
            allocator,
            flush,
        )
    }

    /// Opens the kernel's tables during the boot.
    pub(crate) fn open<'a>(
        &self,
        allocator: KernelTableAllocator<'a>,
        counters: &'a Counters,
    ) -> Result<Opened<'a>, TableError> {
        let environment = self.environment(allocator, counters, Flush::Now);
        // SAFETY: the root is in TTBR1, all tables below it lie in the static pool or came from early memory,
        // and only the boot CPU changes them, through one opened tree at a time.
        unsafe { walker::open(self.root, self.geometry, environment) }
    }
}

/// The linear map that was built, and its cost.
#[derive(Debug)]
pub(crate) struct LinearMap {
    pub(crate) pieces: Pieces,
    pub(crate) stats: LeafStats,
    pub(crate) counts: Counts,
    /// Instructions that were counted; `None` if counting was not requested.
    pub(crate) instructions: Option<Result<u64, Lost>>,
    pub(crate) time_us: u64,
    /// SCTLR at the start of counting: M and C are set.
    pub(crate) sctlr: u64,
    /// Number of tables added when all blocks were split for a CPU that does not allow live splits; `None` if
    /// that did not happen.
    pub(crate) split_to_pages: Option<u64>,
}

impl LinearMap {
    /// The number of tables that the map has now.
    pub(crate) fn tables(&self) -> u64 {
        self.counts.tables + self.split_to_pages.unwrap_or(0)
    }
}

/// Builds the linear map of the regions in `memory`, with tables from `arena` if the strategy is `direct`.
/// The kernel's tables stay open.
#[inline(never)]
pub(crate) fn map_mem<'c>(
    request: &Request<'_>,
    memory: &mut Memory,
    counters: &'c Counters,
    arena: &'c mut Arena<KernelPhysToVirt>,
) -> Result<(LinearMap, Opened<'c>), MapError> {
    let mut tables = request.open(KernelTableAllocator::Arena(arena), counters)?;
    let fixmap = match request.parameters.strategy {
        None => None,
        Some(strategy) => {
            let constants = PhysicalAddress(request.image_start);
            Some((strategy, FixmapPlace::find(&mut tables, constants)?))
        }
    };
    // Setting up the fixmap is not part of the linear map's cost, so counting begins here.
    let setup = counters.get();
    let sctlr = cpu::sctlr_el1();
    let before = cpu::counter_now();
    let mut pieces = Pieces::new();
    let mut work = || create(request, memory, counters, &mut tables, fixmap, &mut pieces);
    let (made, instructions) = match request.counter {
        Some(counter) => {
            let (made, instructions) = counter.measure(&mut work);
            (made, Some(instructions))
        }
        None => (work(), None),
    };
    let ticks = cpu::counter_now().wrapping_sub(before);
    let stats = made?;
    for piece in &pieces {
        walker::assume_visible(&tables, piece.start, piece.bytes);
    }
    let time_us = cpu::microseconds(ticks);
    let map = LinearMap {
        pieces,
        stats,
        counts: counters.get().since(&setup),
        instructions,
        time_us,
        sctlr,
        split_to_pages: None,
    };
    Ok((map, tables))
}

fn create(
    request: &Request<'_>,
    memory: &mut Memory,
    counters: &Counters,
    tables: &mut Tree<'_>,
    fixmap: Option<(Strategy, FixmapPlace)>,
    pieces: &mut Pieces,
) -> Result<LeafStats, MapError> {
    plan(request, memory, pieces)?;
    if let Some(guard) = &request.guard {
        in_pages(request, guard, pieces)?;
    }
    let Some((strategy, place)) = fixmap else {
        let stats = LeafStats::new(&request.geometry, pieces);
        extend_arena(tables, memory, stats.tables, |arena, start, end| {
            // SAFETY: the early allocator gave this memory to nobody else. It is RAM, so the map that begins covers
            // it.
            unsafe { arena.extend(start, end) };
        })?;
        walker::make_direct(tables, pieces)?;
        return Ok(stats);
    };
    let size = request.geometry.page_size();
    let sink = Recorder::new(size.bytes());
    let early = KernelTableAllocator::Early(EarlyTables::new(memory, size.bytes()));
    let environment = request.environment(early, counters, Flush::Now);
    let mut slots = {
        let geometry = request.geometry;
        TracedFixmap::new(
            Fixmap::new(place, counters, geometry, environment, sink),
            sink,
        )
    };
    let made = sizes::dispatch(
        size,
        Stepwise {
            request,
            strategy,
            slots: &mut slots,
            pieces,
        },
    );
    made.map_err(MapError::Table)
}

/// A map built by one of the published strategies.
struct Stepwise<'a, 'r, W> {
    request: &'a Request<'r>,
    strategy: Strategy,
    slots: &'a mut W,
    pieces: &'a [Piece],
}

impl<W: FixmapSlots> Dispatch for Stepwise<'_, '_, W> {
    type Output = Result<LeafStats, TableError>;

    fn run<P: Page>(self) -> Self::Output {
        let barriers = self.request.parameters.barriers;
        let (root, pieces) = (self.request.root, self.pieces);
        // SAFETY: the root is in TTBR1, and only the boot CPU changes its tables. The slots are new.
        unsafe { fixmap::create::<P, _>(self.slots, root, pieces, self.strategy, barriers) }
    }
}
