//! The one place through which the kernel's tables change once it is up.
//!
//! What they are ([`Kernel`]) never changes again and is read without a lock; whoever changes
//! entries holds [`LIVE`]'s lock, has the tables opened for as long, and does there all that
//! belongs together. Only [`set_valid`] goes without, in pages that nothing else changes.
//!
//! Callers know no page size: [`walker`] does.

use super::kernel;
use super::map::Request;
use super::pages::Pages;
use super::reach::KernelReach;
use super::supply::Supply;
use super::table_pages::TablePages;
use super::walker::{self, KernelParts, Opened};
use crate::arch::image;
use crate::lock::Lock;
use arrayvec::ArrayVec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::VirtualAddress;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::TlbCapabilities;
use granule::table::{Counters, Counts, Leaves, TableError};
use granule_kcore::deferred_tlbi::DeferredTlbi;
use granule_kcore::frames::Frame;
use granule_kcore::frames::tables::Source;
use granule_kcore::merge_candidates::MergeCandidates;

pub(crate) use super::kernel::{Kernel, kernel, pointer};
pub(crate) use super::walker::{Done, Flush, Tree};

/// Pools of guard pages at most.
pub(crate) const MOST_POOLS: usize = 8;

/// What is known of the tables while they change; behind the lock.
pub(crate) struct Live {
    /// What may be merged again.
    pub(super) candidates: MergeCandidates,
    /// Guard pages: what else nobody may change, nor merge.
    pub(super) pools: ArrayVec<Range<u64>, MOST_POOLS>,
    /// Where a TLBI is still to come.
    pub(super) deferred: DeferredTlbi,
    counters: Counters,
}

static LIVE: Lock<Live> = Lock::new(Live {
    candidates: MergeCandidates::new(),
    pools: ArrayVec::new_const(),
    deferred: DeferredTlbi::nowhere(),
    counters: Counters::new(),
});

/// Times that the lock was taken to change something.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// From here on the tables change through this module only; `bbm` is the level to rely on.
pub(crate) fn begin(request: &Request<'_>) {
    kernel::set(|| Kernel {
        root: request.root,
        geometry: request.geometry,
        // Without level hints: where a leaf was split and its TLBI put off, the leaf of before may
        // still be cached, and an operation that names the level of the small ones would leave it
        // (RSQXYZ).
        capabilities: TlbCapabilities {
            level_hint: false,
            ..request.capabilities
        },
        placement: request.placement,
        bbm: request.trust.level,
        leaves: request.leaves(),
        image: request.image_start..request.image_start + image::bytes(),
        debug_pagealloc: request.parameters.debug_pagealloc,
    });
}

impl Live {
    /// From here on the caller's caller relies on what is in the tables for the range: makes the TLBIs
    /// that were put off there.
    pub(super) fn rely(&mut self, tree: &mut dyn Tree, start: VirtualAddress, bytes: u64) {
        if let Some((start, bytes)) = self.deferred.take_for(start.0, bytes) {
            tree.flush(VirtualAddress(start), bytes);
        }
        tree.relied(start, bytes);
    }
}

impl Kernel {
    /// Whether some of `bytes` bytes from physical `start` are the kernel image's, and not with the
    /// page allocator.
    pub(crate) fn is_image(&self, start: u64, bytes: u64) -> bool {
        let from = start.max(self.image.start) & !(self.page() - 1);
        let to = start.saturating_add(bytes).min(self.image.end);
        let size = self.geometry.page_size();
        let mut pages = (from..to).step_by(self.page() as usize);
        let own = |at| !Pages.with(|frames| frames.is_given(Frame(at >> size.shift())));
        pages.any(own)
    }

    /// Whether TLBIs may come later. Leaves that are invalid may be split on any CPU, as nothing of
    /// them is cached: so below level 2, where no entry may meet one of another size (RWHZWS), they must
    /// not be invalid and cached.
    pub(super) fn may_put_off(&self) -> bool {
        self.bbm >= BbmLevel::Level2 || self.leaves == Leaves::PAGES
    }

    fn parts<'a>(
        &'a self,
        counters: &'a Counters,
        supply: Supply<'a>,
        flush: Flush,
    ) -> KernelParts<'a> {
        // SAFETY: every table lies in memory that the linear map shows writable: the image's
        // alias, which never changes (`permissions` refuses it), what the boot reserved, and
        // frames that are allocated.
        let reach = unsafe { KernelReach::linear(self.placement.distance()) };
        walker::parts(self.capabilities, reach, counters, supply, flush)
    }

    /// The tables, with pages from the page allocator or from `supply`.
    ///
    /// # Safety
    ///
    /// Who has them is the only one who changes them, but for what `set_valid` changes.
    unsafe fn open<'a>(
        &'a self,
        counters: &'a Counters,
        flush: Flush,
        supply: Option<Supply<'a>>,
    ) -> Result<Opened<'a>, TableError> {
        let pages = || Supply::Pages(table_pages(self));
        let parts = self.parts(counters, supply.unwrap_or_else(pages), flush);
        // SAFETY: the tree that TTBR1 holds, in all CPUs; the rest is the caller's promise.
        let mut tables = unsafe { walker::open(self.root, parts)? };
        tables.set_bbm(self.bbm);
        if flush == Flush::Later {
            tables.defer_tlbi();
        }
        Ok(tables)
    }
}

/// Pages for tables, and for what no table is but is kept as they are.
pub(crate) fn table_pages(kernel: &Kernel) -> TablePages<'_> {
    // SAFETY: `Pages` has all frames that the boot did not keep, which the linear map shows.
    unsafe { TablePages::new(kernel) }
}

/// What tables stand on that are made apart from the kernel's, with pages from the page allocator.
pub(crate) fn apart<'a>(kernel: &'a Kernel, counters: &'a Counters) -> KernelParts<'a> {
    kernel.parts(counters, Supply::Pages(table_pages(kernel)), Flush::Now)
}

/// The kernel's tables without their lock, for a self-test that waits for other CPUs while it changes
/// what it alone uses.
#[cfg(feature = "test-image")]
pub(crate) fn open_unlocked<'a>(
    counters: &'a Counters,
    flush: Flush,
    supply: Option<Supply<'a>>,
) -> Result<Opened<'a>, TableError> {
    let none = TableError::OutOfTables { needed: 0 };
    // SAFETY: tests run when the boot is done, and nothing else then changes tables.
    unsafe { kernel().ok_or(none)?.open(counters, flush, supply) }
}

/// Calls `work` with the kernel's tables, under the lock, counted as one taking of it. `work` runs
/// with interrupts masked and must not print. `None` before the tables are here.
pub(crate) fn change<R>(
    flush: Flush,
    work: impl FnOnce(&'static Kernel, &mut Live, &mut dyn Tree) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    TAKEN.fetch_add(1, Ordering::Relaxed);
    let flush = if kernel.may_put_off() {
        flush
    } else {
        Flush::Now
    };
    LIVE.with(|live| run(kernel, live, flush, work))
}

/// As [`change`], if nobody else has the tables now.
pub(super) fn try_change<R>(
    work: impl FnOnce(&'static Kernel, &mut Live, &mut dyn Tree) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    LIVE.try_with(|live| {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        run(kernel, live, Flush::Now, work)
    })?
}

/// Calls `look` with the kernel's tables, under the lock, not counted.
pub(crate) fn look<R>(
    look: impl FnOnce(&'static Kernel, &mut Live, &mut dyn Tree) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    LIVE.with(|live| run(kernel, live, Flush::Now, look))
}

/// As [`look`], if nobody has the tables now.
pub(super) fn try_look<R>(
    look: impl FnOnce(&'static Kernel, &mut Live, &mut dyn Tree) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    LIVE.try_with(|live| run(kernel, live, Flush::Now, look))?
}

fn run<R>(
    kernel: &'static Kernel,
    live: &mut Live,
    flush: Flush,
    work: impl FnOnce(&'static Kernel, &mut Live, &mut dyn Tree) -> R,
) -> Option<R> {
    let counters = Counters::new();
    // SAFETY: here only, under the lock; what `set_valid` changes meanwhile are entries that
    // nobody else does. The geometry is of a page size that this build has: the boot has used it.
    let tables = unsafe { kernel.open(&counters, flush, None) };
    let result = tables
        .ok()
        .map(|mut tables| work(kernel, live, &mut *tables));
    let did = counters.get();
    live.counters.add(|all| {
        all.stores += did.stores;
        all.tables = all.tables.wrapping_add(did.tables);
        all.tlbi += did.tlbi;
        all.dsb += did.dsb;
        all.isb += did.isb;
    });
    result
}

/// Makes pages valid or not beside everyone else, without the lock and without memory, and gives
/// what it took, which [`counted`] does not have. The TLB is invalidated, once, when they become
/// invalid.
///
/// # Safety
///
/// The pages must have been split, and nobody else may change their entries or merge them, nor use
/// what is made invalid.
pub(super) unsafe fn set_valid(
    kernel: &Kernel,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Result<Counts, TableError> {
    let counters = Counters::new();
    let parts = kernel.parts(&counters, Supply::Nothing, Flush::Now);
    // SAFETY: the tree that TTBR1 holds; for the pages the caller vouched.
    unsafe { walker::set_valid(kernel.root, parts, start, bytes, valid)? };
    Ok(counters.get())
}

impl Live {
    /// Whether guard pages are among `bytes` bytes from `start`.
    pub(super) fn meets_pool(&self, start: u64, bytes: u64) -> bool {
        let last = start + (bytes - 1);
        self.pools
            .iter()
            .any(|pool| start < pool.end && pool.start <= last)
    }
}

/// What changing the tables took so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Stores, tables (less those given back), TLBIs and barriers.
    pub(crate) counts: Counts,
    /// Takings of the lock.
    pub(crate) locks: u64,
}

impl Taken {
    /// What came since `before`.
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

/// Calls `work` while nobody changes anything under the lock.
pub(crate) fn hold<R>(work: impl FnOnce() -> R) -> R {
    LIVE.with(|_| work())
}

/// What changing the tables took so far, by anyone.
// Once: tests ask all the time.
#[inline(never)]
pub(crate) fn counted() -> Taken {
    LIVE.with(|live| Taken {
        counts: live.counters.get(),
        locks: TAKEN.load(Ordering::Relaxed),
    })
}
