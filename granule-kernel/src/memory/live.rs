//! The one place through which the kernel's tables change once it is up.
//!
//! What they are ([`Kernel`]) never changes again and is read without a lock; whoever changes
//! entries holds [`LIVE`]'s lock, has the tables opened for as long, and does there all that
//! belongs together. Only [`set_valid`] goes without, in pages that nothing else changes.
//!
//! Callers know no page size: which instance of the library's code opens the tables was chosen at
//! boot ([`begin`]), so the choice costs one indirect call an operation.

use super::map::Request;
use super::notes::Notes;
use super::pages::Pages;
use super::table_pages::TablePages;
use crate::exception::inject::Injecting;
use crate::frames::Frame;
use crate::frames::tables::Source;
use crate::image;
use crate::lock::Lock;
use crate::trace::recorder::Recorder;
use arrayvec::ArrayVec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::bbm::BbmLevel;
use granule::arch::hw::Hardware;
use granule::arch::page_size::Page;
use granule::arch::tlbi::{Invalidation, Reach, TlbCapabilities, TlbiOp};
use granule::arch::{Attributes, Geometry, PhysicalAddress, VirtualAddress};
use granule::linear::Placement;
use granule::table::{
    self, Counted, Counters, Counts, Entry, Environment, Holes, Leaves, Liveness, Maintenance,
    Mapping, Merged, Offset, PageTables, Parts, PermissionChange, Reached, Sink, TableError,
    Traced,
};

/// Pools of guard pages at most.
pub(crate) const MOST_POOLS: usize = 8;

/// What the kernel's tables are, for good.
pub(crate) struct Kernel {
    pub(crate) root: PhysicalAddress,
    pub(crate) geometry: Geometry,
    /// Of all CPUs together.
    pub(crate) capabilities: TlbCapabilities,
    pub(crate) placement: Placement,
    /// How far sizes may change in place, on all CPUs.
    pub(crate) bbm: BbmLevel,
    /// How large the linear map's leaves may be.
    pub(crate) leaves: Leaves,
    /// Physical addresses of the image. Parts of its static storage that the boot needs no more
    /// are with the page allocator: see [`is_image`](Self::is_image).
    pub(crate) image: Range<u64>,
    /// Whether free pages are invalid.
    pub(crate) debug_pagealloc: bool,
    open: Open,
    set_valid: SetValid,
}

/// Opens the tables for one piece of work.
type Open = fn(&Kernel, &Counters, Flush, &mut dyn FnMut(&mut dyn Tree));

/// See [`set_valid`].
type SetValid = fn(&Kernel, &Counters, VirtualAddress, u64, bool) -> Result<(), TableError>;

/// Whether the TLB is invalidated before an operation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// It is.
    Now,
    /// It is not: the caller does it ([`Tree::flush`]), before it relies on the change.
    Later,
}

/// What is known of the tables while they change; behind the lock.
pub(crate) struct Live {
    /// What may be merged again.
    pub(super) notes: Notes,
    /// Guard pages: what else nobody may change, nor merge.
    pub(super) pools: ArrayVec<Range<u64>, MOST_POOLS>,
    counters: Counters,
}

static KERNEL: spin::Once<Kernel> = spin::Once::new();

static LIVE: Lock<Live> = Lock::new(Live {
    notes: Notes::new(),
    pools: ArrayVec::new_const(),
    counters: Counters::new(),
});

/// Times that the lock was taken to change something.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Operations on the kernel's tables, of whatever page size.
pub(crate) trait Tree {
    /// See [`PageTables::protect`]; holes are refused.
    fn protect(&mut self, start: VirtualAddress, bytes: u64, change: PermissionChange) -> Done;
    /// See [`PageTables::hide`].
    fn hide(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    /// See [`PageTables::show`].
    fn show(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    /// See [`PageTables::map`].
    fn map(
        &mut self,
        start: VirtualAddress,
        output: PhysicalAddress,
        bytes: u64,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Done;
    /// See [`PageTables::unmap`].
    fn unmap(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    /// See [`PageTables::merge`].
    fn merge(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Merged, TableError>;
    /// See [`PageTables::query`].
    fn query(&self, address: VirtualAddress) -> Option<Mapping>;
    /// See [`PageTables::visit`].
    fn visit(
        &self,
        start: VirtualAddress,
        bytes: u64,
        visit: &mut dyn FnMut(&Entry) -> bool,
    ) -> Done;
    /// Sets pages for so many tables aside, for several operations that are all to succeed.
    fn reserve(&mut self, tables: usize) -> bool;
    /// Invalidates the TLB for a range in which leaves of any size were changed with
    /// [`Flush::Later`].
    fn flush(&mut self, start: VirtualAddress, bytes: u64);
    /// From here on a range is used as the tables say: for the trace.
    fn relied(&mut self, start: VirtualAddress, bytes: u64);
}

/// What most operations return.
pub(crate) type Done = Result<(), TableError>;

/// The tables, opened, and where it is recorded what happens to them.
struct Opened<P: Page, E> {
    tables: PageTables<P, E>,
    sink: Recorder,
}

impl<P: Page, E: Environment> Tree for Opened<P, E> {
    fn protect(&mut self, start: VirtualAddress, bytes: u64, change: PermissionChange) -> Done {
        self.tables.protect(start, bytes, change, Holes::Refuse)
    }
    fn hide(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.tables.hide(start, bytes)
    }
    fn show(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.tables.show(start, bytes)
    }
    fn map(
        &mut self,
        start: VirtualAddress,
        output: PhysicalAddress,
        bytes: u64,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Done {
        self.tables.map(start, output, bytes, attributes, leaves)
    }
    fn unmap(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.tables.unmap(start, bytes)
    }
    fn merge(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Merged, TableError> {
        self.tables.merge(start, bytes, leaves)
    }
    fn query(&self, address: VirtualAddress) -> Option<Mapping> {
        self.tables.query(address)
    }
    fn visit(
        &self,
        start: VirtualAddress,
        bytes: u64,
        visit: &mut dyn FnMut(&Entry) -> bool,
    ) -> Done {
        self.tables.visit(start, bytes, visit)
    }
    fn reserve(&mut self, tables: usize) -> bool {
        self.tables.environment().reserve(tables)
    }
    fn flush(&mut self, start: VirtualAddress, bytes: u64) {
        let what = Invalidation {
            start,
            bytes,
            stride: P::SIZE.bytes(),
            reach: Reach::LastLevel,
            asid: None,
            level: None,
        };
        table::invalidate(self.tables.environment(), &what);
    }
    fn relied(&mut self, start: VirtualAddress, bytes: u64) {
        self.sink.relied(start, bytes);
    }
}

/// Barriers and TLBIs, or only the barriers.
struct Deferrable<T> {
    inner: T,
    flush: Flush,
}

impl<T: Maintenance> Maintenance for Deferrable<T> {
    fn capabilities(&self) -> &TlbCapabilities {
        self.inner.capabilities()
    }
    fn dsb_ishst(&mut self) {
        self.inner.dsb_ishst();
    }
    fn dsb_ish(&mut self) {
        if self.flush == Flush::Now {
            self.inner.dsb_ish();
        }
    }
    fn isb(&mut self) {
        self.inner.isb();
    }
    fn tlbi(&mut self, op: TlbiOp) {
        if self.flush == Flush::Now {
            self.inner.tlbi(op);
        }
    }
}

/// From here on the tables change through this module only; `bbm` is the level to rely on.
pub(crate) fn begin<P: Page>(request: &Request<'_>) {
    KERNEL.call_once(|| Kernel {
        root: request.root,
        geometry: request.geometry,
        capabilities: request.capabilities,
        placement: request.placement,
        bbm: request.trust.level,
        leaves: request.leaves(),
        image: request.image_start..request.image_start + image::bytes(),
        debug_pagealloc: request.debug_pagealloc,
        open: open::<P>,
        set_valid: set_valid_in::<P>,
    });
}

/// The tables, once they change here.
pub(crate) fn kernel() -> Option<&'static Kernel> {
    KERNEL.get()
}

/// How tables are reached, and told of.
type TableMemory<'c> = Traced<Counted<'c, Injecting<Reached<Offset>>>, Recorder>;
/// What is issued when they change.
type TableMaintenance<'c> = Deferrable<Traced<Counted<'c, Hardware>, Recorder>>;

impl Kernel {
    /// The bytes of a page.
    pub(crate) fn page(&self) -> u64 {
        self.geometry.page_size().bytes()
    }

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

    fn parts<'c>(
        &self,
        counters: &'c Counters,
        flush: Flush,
    ) -> (TableMemory<'c>, TableMaintenance<'c>) {
        let sink = Recorder::of_this_cpu(self.page());
        // SAFETY: every table lies in memory that the linear map shows writable: the image's
        // alias, which never changes (`permissions` refuses it), what the boot reserved, and
        // frames that are allocated.
        let reached = Reached(unsafe { Offset::new(self.placement.distance()) });
        let hardware = Counted::new(Hardware::new(self.capabilities), counters);
        let distance = self.placement.distance();
        let injecting = Injecting::new(reached, self.geometry, self.root, distance);
        (
            Traced::new(Counted::new(injecting, counters), sink),
            Deferrable {
                inner: Traced::new(hardware, sink),
                flush,
            },
        )
    }
}

fn open<P: Page>(
    kernel: &Kernel,
    counters: &Counters,
    flush: Flush,
    work: &mut dyn FnMut(&mut dyn Tree),
) {
    let (memory, maintenance) = kernel.parts(counters, flush);
    let sink = Recorder::of_this_cpu(kernel.page());
    // SAFETY: `Pages` has all frames that the boot did not keep, which the linear map shows.
    let pages = unsafe { TablePages::new(kernel) };
    let parts = Parts {
        memory,
        allocator: Traced::new(Counted::new(pages, counters), sink),
        maintenance,
    };
    // SAFETY: the tree that TTBR1 holds, in all CPUs. It is opened here only, under the lock; what
    // `set_valid` changes meanwhile are entries that nobody else does.
    let tables = unsafe {
        PageTables::<P, _>::from_root(kernel.root, kernel.geometry, Liveness::Live, parts)
    };
    // The geometry is of `P`: it was chosen with it.
    if let Ok(mut tables) = tables {
        tables.set_bbm(kernel.bbm);
        work(&mut Opened { tables, sink });
    }
}

/// Calls `work` with the kernel's tables, under the lock, counted as one taking of it. `work` runs
/// with interrupts masked and must not print. `None` before the tables are here.
pub(super) fn change<R>(
    flush: Flush,
    work: impl FnOnce(&'static Kernel, &mut Live, &mut dyn Tree) -> R,
) -> Option<R> {
    let kernel = kernel()?;
    TAKEN.fetch_add(1, Ordering::Relaxed);
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
pub(super) fn look<R>(
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
    let mut work = Some(work);
    let mut result = None;
    (kernel.open)(kernel, &counters, flush, &mut |tree| {
        if let Some(work) = work.take() {
            result = Some(work(kernel, live, tree));
        }
    });
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
    (kernel.set_valid)(kernel, &counters, start, bytes, valid)?;
    Ok(counters.get())
}

fn set_valid_in<P: Page>(
    kernel: &Kernel,
    counters: &Counters,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Done {
    let (memory, maintenance) = kernel.parts(counters, Flush::Now);
    let (root, geometry) = (kernel.root, kernel.geometry);
    // SAFETY: the tree that TTBR1 holds; for the pages the caller of `live::set_valid` vouched.
    unsafe {
        table::flip::set_valid::<P, _, _>(root, geometry, memory, maintenance, start, bytes, valid)
    }
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
pub(crate) fn counted() -> Taken {
    LIVE.with(|live| Taken {
        counts: live.counters.get(),
        locks: TAKEN.load(Ordering::Relaxed),
    })
}
