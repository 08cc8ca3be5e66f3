//! Every change of the kernel's live tables goes through this module.
//!
//! The constant facts ([`Kernel`]) are read without a lock. A change of entries takes [`STATE`]'s lock and
//! completes all its steps under it. The tables are opened once, by the first change, and stay in the lock: to
//! open them takes as many instructions as to change a page. Only [`set_valid`] works without the lock, on
//! pages that nothing else changes.
//!
//! Callers do not depend on the page size; [`walker`] resolves it.
//!
//! [`counted`] returns the cost of changes, including how often the lock was taken.

#![allow(unsafe_code, reason = "the kernel's tables, opened under their lock")]

use super::environment::KernelEnvironment;
use super::kernel;
use super::map::Request;
use super::pages::Pages;
use super::phys_to_virt::KernelPhysToVirt;
use super::table_allocator::KernelTableAllocator;
use super::table_pages::TablePages;
use super::walker::{self, Opened};
use crate::arch::image;
use crate::lock::Lock;
use crate::trace::recorder::Recorder;
use arrayvec::ArrayVec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{AnyPage, VirtualAddress};
use granule::linear::Arena;
use granule::table::{Leaves, TableError, lock_free};
use granule_kcore::deferred_tlbi::DeferredTlbi;
use granule_kcore::frames::Frame;
use granule_kcore::frames::tables::Source;
use granule_kcore::merge_candidates::MergeCandidates;
use granule_trace::recorder::{Counters, Counts, Sink};

pub(crate) use super::environment::Flush;
pub(crate) use super::kernel::{Kernel, kernel, pointer};
pub(crate) use super::walker::Tree;

/// The largest number of guard-page pools.
pub(crate) const MOST_POOLS: usize = 8;

/// The state beside the tables that the lock protects.
pub(crate) struct TableState {
    /// Ranges that may be merged again.
    pub(super) candidates: MergeCandidates,
    /// Ranges of guard pages. No other call may change or merge them.
    pub(super) pools: ArrayVec<Range<u64>, MOST_POOLS>,
    /// Ranges whose TLBI was deferred (`_noflush`).
    pub(super) deferred: DeferredTlbi,
}

/// The value under the lock.
struct Locked {
    state: TableState,
    /// `None` before the first change.
    tables: Option<Opened<'static>>,
}

static STATE: Lock<Locked> = Lock::new(Locked {
    state: TableState {
        candidates: MergeCandidates::new(),
        pools: ArrayVec::new_const(),
        deferred: DeferredTlbi::nowhere(),
    },
    tables: None,
});

/// Added to and read under the lock.
static COUNTERS: Counters = Counters::new();

/// The number of times that a change took the lock.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Starts changes through this module. `bbm` is the BBM level to rely on.
pub(crate) fn begin(request: &Request<'_>) {
    kernel::set(|| Kernel {
        root: request.root,
        geometry: request.geometry,
        // TLBIs carry no level hint: where a leaf was split with its TLBI deferred, the old, larger leaf may
        // still be cached, and a TLBI that names the level of the smaller leaves would not invalidate it
        // (RSQXYZ).
        capabilities: TlbCapabilities {
            level_hint: false,
            ..request.capabilities
        },
        placement: request.placement,
        bbm: request.bbm_policy.level,
        leaves: request.leaves(),
        largest: request
            .geometry
            .leaf_sizes()
            .next()
            .map_or(1, |size| size.bytes),
        image: request.image_start..request.image_start + image::bytes(),
        changes_aliases: request.parameters.rodata.changes_pages(),
        debug_pagealloc: request.parameters.debug_pagealloc,
    });
}

impl TableState {
    /// Makes the TLBIs that were deferred in the range, because the caller relies on the range's entries from
    /// here on.
    pub(super) fn flush_deferred(
        &mut self,
        tree: &mut Tree<'_>,
        start: VirtualAddress,
        bytes: u64,
    ) {
        if let Some((start, bytes)) = self.deferred.take_for(start.0, bytes) {
            walker::flush(tree, VirtualAddress(start), bytes);
        }
        walker::assume_visible(tree, start, bytes);
    }
}

impl Kernel {
    /// Whether some of `bytes` bytes from physical address `start` belong to the kernel image and not to the
    /// page allocator.
    pub(crate) fn is_image(&self, start: u64, bytes: u64) -> bool {
        let from = start.max(self.image.start) & !(self.page() - 1);
        let to = start.saturating_add(bytes).min(self.image.end);
        let size = self.geometry.page_size();
        let mut pages = (from..to).step_by(self.page() as usize);
        let own = |at| !Pages.with(|frames| frames.is_given(Frame(at >> size.shift())));
        pages.any(own)
    }

    /// Whether TLBIs may be deferred. An invalid leaf may be split on any CPU, as the TLB does not hold it. A
    /// deferred TLBI breaks that: the leaf is invalid and still cached. Below BBM level 2, where the TLB must
    /// not hold entries of two sizes for one address (RWHZWS), TLBIs may therefore be deferred only in a map
    /// of pages.
    pub(super) fn may_defer_tlbi(&self) -> bool {
        self.bbm >= BbmLevel::Level2 || self.leaves == Leaves::PAGES
    }

    fn environment<'a>(
        &'a self,
        counters: &'a Counters,
        allocator: KernelTableAllocator<'a>,
        flush: Flush,
    ) -> KernelEnvironment<'a> {
        // SAFETY: every table lies in memory that the linear map shows writable: the image's alias, which
        // never changes (`pageattr` refuses it), the boot's reservations, and allocated frames.
        let phys_to_virt = unsafe { KernelPhysToVirt::linear(self.placement.distance()) };
        KernelEnvironment::new(
            self.geometry.page_size(),
            self.capabilities,
            phys_to_virt,
            counters,
            allocator,
            flush,
        )
    }

    /// Opens the tables. New tables come from the page allocator or from `allocator`.
    ///
    /// # Safety
    ///
    /// While the caller has the tables open, nothing else may change them, except `set_valid`.
    unsafe fn open<'a>(
        &'a self,
        counters: &'a Counters,
        flush: Flush,
        allocator: Option<KernelTableAllocator<'a>>,
    ) -> Result<Opened<'a>, TableError> {
        let pages = || KernelTableAllocator::Pages(table_pages(self));
        let environment = self.environment(counters, allocator.unwrap_or_else(pages), flush);
        // SAFETY: the root is the tree in TTBR1 of all CPUs. The caller keeps every other change away. The level is
        // the policy's for all CPUs, and the caller makes the TLBIs that come later.
        unsafe {
            let mut tables = walker::open(self.root, self.geometry, environment)?;
            tables.set_bbm(self.bbm);
            tables.set_flush(flush);
            Ok(tables)
        }
    }
}

/// An allocator of table pages, also for pages that are not tables but are tracked like them.
pub(crate) fn table_pages(kernel: &Kernel) -> TablePages<'_> {
    // SAFETY: `Pages` has all frames that the boot did not keep, which the linear map shows.
    unsafe { TablePages::new(kernel) }
}

/// The environment of tables that are separate from the kernel's, with pages from the page allocator.
pub(crate) fn apart<'a>(kernel: &'a Kernel, counters: &'a Counters) -> KernelEnvironment<'a> {
    kernel.environment(
        counters,
        KernelTableAllocator::Pages(table_pages(kernel)),
        Flush::Now,
    )
}

/// The same with pages from an arena.
pub(crate) fn apart_in<'a>(
    kernel: &'a Kernel,
    counters: &'a Counters,
    arena: &'a mut Arena<KernelPhysToVirt>,
) -> KernelEnvironment<'a> {
    kernel.environment(counters, KernelTableAllocator::Arena(arena), Flush::Now)
}

/// Opens the kernel's tables without their lock, for a self-test that waits for other CPUs while it changes a
/// range that it alone uses.
#[cfg(feature = "test-image")]
pub(crate) fn open_unlocked<'a>(
    counters: &'a Counters,
    flush: Flush,
    allocator: Option<KernelTableAllocator<'a>>,
) -> Result<Opened<'a>, TableError> {
    let none = TableError::OutOfTables { needed: 0 };
    // SAFETY: tests run after the boot, when nothing else changes tables.
    unsafe { kernel().ok_or(none)?.open(counters, flush, allocator) }
}

/// Calls `work` with the kernel's tables, under the lock, and counts one taking of the lock. `work` runs with
/// interrupts masked and must not print. Returns `None` before the tables are ready.
pub(crate) fn change<R>(
    flush: Flush,
    work: impl FnOnce(&'static Kernel, &mut TableState, &mut Tree<'_>) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    TAKEN.fetch_add(1, Ordering::Relaxed);
    let flush = if kernel.may_defer_tlbi() {
        flush
    } else {
        Flush::Now
    };
    STATE.with(|locked| run(kernel, locked, flush, work))
}

/// As [`change`], but only if the lock is free now.
pub(super) fn try_change<R>(
    work: impl FnOnce(&'static Kernel, &mut TableState, &mut Tree<'_>) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    STATE.try_with(|locked| {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        run(kernel, locked, Flush::Now, work)
    })?
}

/// Calls `look` with the kernel's tables, under the lock, without counting.
pub(crate) fn look<R>(
    look: impl FnOnce(&'static Kernel, &mut TableState, &mut Tree<'_>) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    STATE.with(|locked| run(kernel, locked, Flush::Now, look))
}

/// As [`look`], but only if the lock is free now.
pub(super) fn try_look<R>(
    look: impl FnOnce(&'static Kernel, &mut TableState, &mut Tree<'_>) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    STATE.try_with(|locked| run(kernel, locked, Flush::Now, look))?
}

fn run<R>(
    kernel: &'static Kernel,
    locked: &mut Locked,
    flush: Flush,
    work: impl FnOnce(&'static Kernel, &mut TableState, &mut Tree<'_>) -> R,
) -> Option<R> {
    let Locked { state, tables } = locked;
    if tables.is_none() {
        // SAFETY: only this function opens the tables, and they stay under the lock. `set_valid` changes only
        // entries that nothing else changes. This build has code for the geometry's page size, as the boot has
        // used it.
        *tables = unsafe { kernel.open(&COUNTERS, Flush::Now, None) }.ok();
    }
    let tables = tables.as_mut()?;
    // SAFETY: `flush_deferred` makes the TLBIs that come later.
    unsafe { tables.set_flush(flush) };
    let result = work(kernel, state, &mut *tables);
    tables.release_reserved();
    Some(result)
}

/// Makes pages valid or invalid without the lock and without allocating memory. Returns the operations that
/// this took, which [`counted`] does not include. Invalidates the TLB once if the pages become invalid.
///
/// # Safety
///
/// The pages must have been split. Nothing else may change or merge their entries, or use a page that becomes
/// invalid.
pub(super) unsafe fn set_valid(
    kernel: &Kernel,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Result<Counts, TableError> {
    let counters = Counters::new();
    let environment = kernel.environment(&counters, KernelTableAllocator::Empty, Flush::Now);
    let (root, geometry) = (kernel.root, kernel.geometry);
    // SAFETY: the root is the tree in TTBR1. The caller keeps the rules for the pages.
    unsafe {
        lock_free::set_valid::<AnyPage, _>(root, geometry, environment, start, bytes, valid)?
    };
    // From here on the caller uses the pages, or relies on a fault.
    Recorder::new(kernel.page()).assume_visible(start, bytes);
    Ok(counters.get())
}

impl TableState {
    /// Whether the `bytes` bytes from `start` contain guard pages.
    pub(super) fn meets_pool(&self, start: u64, bytes: u64) -> bool {
        let last = start + (bytes - 1);
        self.pools
            .iter()
            .any(|pool| start < pool.end && pool.start <= last)
    }
}

/// The cost of all changes of the tables so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Stores, tables (allocated less freed), TLBIs and barriers.
    pub(crate) counts: Counts,
    /// The number of times that the lock was taken.
    pub(crate) locks: u64,
}

impl Taken {
    /// The numbers, by the keys of the records of tests and benchmarks.
    pub(crate) fn figures(&self) -> [(&'static str, u64); 6] {
        let counts = &self.counts;
        [
            // Merging frees tables, so the number is negative there.
            ("tables", (counts.tables as i64).unsigned_abs()),
            ("stores", counts.stores),
            ("tlbi", counts.tlbi),
            ("dsb", counts.dsb),
            ("isb", counts.isb),
            ("locks", self.locks),
        ]
    }

    pub(crate) fn since(self, before: Self) -> Self {
        let (now, then) = (self.counts, before.counts);
        Self {
            counts: Counts {
                stores: now.stores - then.stores,
                tables: now.tables.wrapping_sub(then.tables),
                tlbi: now.tlbi - then.tlbi,
                dsb: now.dsb - then.dsb,
                isb: now.isb - then.isb,
            },
            locks: self.locks - before.locks,
        }
    }
}

/// Calls `work` under the lock, so that nothing else changes the tables meanwhile.
pub(crate) fn hold<R>(work: impl FnOnce() -> R) -> R {
    STATE.with(|_| work())
}

/// Returns the cost of all changes of the tables so far, on all CPUs.
// Not inlined: tests call it everywhere.
#[inline(never)]
pub(crate) fn counted() -> Taken {
    STATE.with(|_| Taken {
        counts: COUNTERS.get(),
        locks: TAKEN.load(Ordering::Relaxed),
    })
}
