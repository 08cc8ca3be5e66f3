//! The kernel's one instance of the library's walker for each page size, and the way to it by a
//! page size that is a value.
//!
//! Whoever works on tables once the MMU is on says what they stand on ([`parts`]), opens them
//! ([`open`]) and goes on with [`Tree`], which knows no page size. So the code that is compiled for
//! each page size is compiled for one kind of environment, and what calls it is compiled once:
//! hot loops see a page size as a constant, all others cost one indirect call an operation. Nobody
//! else in the kernel names a type of page size but the strategies of the linear map
//! ([`super::map`]), whose loops are over entries, and the code that runs with the MMU off, which
//! may not call indirectly.

use super::hook::Hooked;
use super::reach::KernelReach;
use super::supply::Supply;
#[cfg(feature = "test-image")]
use crate::trace::bring_up;
use crate::trace::recorder::Recorder;
use core::ops::{Deref, DerefMut};
use granule::arch::bbm::BbmLevel;
use granule::arch::page_size::Page;
#[cfg(page_4k)]
use granule::arch::page_size::Page4K;
#[cfg(page_16k)]
use granule::arch::page_size::Page16K;
#[cfg(page_64k)]
use granule::arch::page_size::Page64K;
use granule::arch::tlbi::{Invalidation, Reach, TlbCapabilities, TlbiOp};
use granule::arch::{Attributes, Dispatch, Geometry, PageSize, PhysicalAddress, VirtualAddress};
use granule::hw::Hardware;
use granule::linear::{Arena, direct};
use granule::table::{
    self, Counted, Counters, Entry, Holes, Leaves, Liveness, Maintenance, Mapping, Merged,
    PageTables, Parts, PermissionChange, Piece, Reached, TableAllocator, TableError,
};
#[cfg(feature = "test-image")]
use granule::{
    arch::Descriptor,
    table::{TableMemory, Visibility},
};
use granule_kcore::sizes;
use granule_recorder::{Sink, Traced};

/// Whether, and where, the TLB is invalidated before an operation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// On all CPUs.
    Now,
    /// On all CPUs, but not for leaves ([`PageTables::defer_tlbi`]): for those the caller does it
    /// ([`Tree::flush`]), before it relies on the change. To `mm::live` the same as
    /// [`Now`](Self::Now) where large leaves may not be split live.
    Later,
    /// On this CPU only, and all of its TLB.
    #[cfg(feature = "test-image")]
    ThisCpu,
    /// On no CPU, ever.
    #[cfg(feature = "test-image")]
    Nobody,
}

impl Flush {
    /// Whether the barriers and TLBIs of an operation are those that the library chooses.
    const fn reaches_all(self) -> bool {
        matches!(self, Self::Now | Self::Later)
    }
}

/// Barriers and TLBIs, or less for a self-test.
pub(crate) struct Upkeep<T> {
    inner: T,
    flush: Flush,
}

impl<T: Maintenance> Upkeep<Traced<T, Recorder>> {
    /// All of it, on all CPUs, for who has seen that nothing is recorded.
    pub(super) const fn unrecorded(&mut self) -> &mut T {
        self.inner.inner()
    }
}

impl<T: Maintenance> Maintenance for Upkeep<T> {
    fn capabilities(&self) -> &TlbCapabilities {
        self.inner.capabilities()
    }
    fn dsb_ishst(&mut self) {
        if self.flush.reaches_all() {
            self.inner.dsb_ishst();
        }
    }
    fn dsb_ish(&mut self) {
        if self.flush.reaches_all() {
            self.inner.dsb_ish();
        }
    }
    fn isb(&mut self) {
        if self.flush.reaches_all() {
            self.inner.isb();
        }
    }
    fn tlbi(&mut self, op: TlbiOp) {
        match self.flush {
            Flush::Now | Flush::Later => self.inner.tlbi(op),
            #[cfg(feature = "test-image")]
            Flush::ThisCpu => bring_up::tlbi_vmalle1_local(),
            #[cfg(feature = "test-image")]
            Flush::Nobody => {}
        }
    }
}

/// What the kernel's tables stand on: one type, whoever opens them.
pub(crate) type KernelParts<'a> = Parts<
    Traced<Counted<'a, Hooked>, Recorder>,
    Traced<Counted<'a, Supply<'a>>, Recorder>,
    Upkeep<Traced<Counted<'a, Hardware>, Recorder>>,
>;

/// The tables of one page size.
type Walker<'a, P> = PageTables<P, KernelParts<'a>>;

/// What tables of `capabilities`' geometry stand on.
pub(crate) fn parts<'a>(
    capabilities: TlbCapabilities,
    reach: KernelReach,
    counters: &'a Counters,
    supply: Supply<'a>,
    flush: Flush,
) -> KernelParts<'a> {
    let geometry = capabilities.geometry;
    let sink = Recorder::of_this_cpu(geometry.page_size().bytes());
    let memory = Hooked(Reached(reach));
    let hardware = Traced::new(Counted::new(Hardware::new(capabilities), counters), sink);
    Parts {
        memory: Traced::new(Counted::new(memory, counters), sink),
        allocator: Traced::new(Counted::new(supply, counters), sink),
        maintenance: Upkeep {
            inner: hardware,
            flush,
        },
    }
}

/// What most operations return.
pub(crate) type Done = Result<(), TableError>;

/// Operations on tables, of whatever page size.
pub(crate) trait Tree {
    /// See [`PageTables::geometry`].
    fn geometry(&self) -> &Geometry;
    /// See [`PageTables::set_bbm`].
    fn set_bbm(&mut self, level: BbmLevel);
    /// See [`PageTables::defer_tlbi`].
    fn defer_tlbi(&mut self);
    /// See [`PageTables::protect`]; holes are refused.
    fn protect(&mut self, start: VirtualAddress, bytes: u64, change: PermissionChange) -> Done;
    /// See [`PageTables::hide`].
    fn hide(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    /// See [`PageTables::show`].
    fn show(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    /// See [`PageTables::map_pieces`].
    fn map_pieces(&mut self, pieces: &[Piece]) -> Done;
    /// See [`direct::create`].
    fn make_direct(&mut self, pieces: &[Piece]) -> Done;
    /// See [`PageTables::unmap`].
    fn unmap(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    /// See [`PageTables::merge`].
    fn merge(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Merged, TableError>;
    /// See [`PageTables::limit_leaves`].
    fn limit_leaves(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<usize, TableError>;
    /// See [`PageTables::query`].
    fn query(&self, address: VirtualAddress) -> Option<Mapping>;
    /// See [`PageTables::visit`].
    fn visit(
        &self,
        start: VirtualAddress,
        bytes: u64,
        visit: &mut dyn FnMut(&Entry) -> bool,
    ) -> Done;
    /// See [`PageTables::visit_all`].
    fn visit_all(&self, visit: &mut dyn FnMut(&Entry) -> bool);
    /// See [`PageTables::visit_runs`].
    fn visit_runs(&self, visit: &mut dyn FnMut(&Entry) -> bool);
    /// Sets pages for so many tables aside, for several operations that are all to succeed.
    fn reserve(&mut self, tables: usize) -> bool;
    /// The boot's arena, where tables come from it.
    fn arena(&mut self) -> Option<&mut Arena>;
    /// Invalidates the TLB for a range in which leaves of any size were changed with
    /// [`Flush::Later`].
    fn flush(&mut self, start: VirtualAddress, bytes: u64);
    /// From here on a range is used as the tables say: for the trace.
    fn relied(&mut self, start: VirtualAddress, bytes: u64);
    /// Puts `descriptor` in the place of an entry that was met by
    /// [`visit_all`](Self::visit_all), and invalidates the TLB for it.
    ///
    /// # Safety
    ///
    /// What is mapped then is the caller's to answer for.
    #[cfg(feature = "test-image")]
    unsafe fn overwrite(&mut self, entry: &Entry, descriptor: Descriptor);
}

impl dyn Tree + '_ {
    /// See [`PageTables::map`].
    pub(crate) fn map(
        &mut self,
        start: VirtualAddress,
        output: PhysicalAddress,
        bytes: u64,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Done {
        self.map_pieces(&[Piece {
            start,
            output,
            bytes,
            attributes,
            leaves,
        }])
    }
}

impl<P: Page> Tree for Walker<'_, P> {
    fn geometry(&self) -> &Geometry {
        self.geometry()
    }
    fn set_bbm(&mut self, level: BbmLevel) {
        self.set_bbm(level);
    }
    fn defer_tlbi(&mut self) {
        self.defer_tlbi();
    }
    fn protect(&mut self, start: VirtualAddress, bytes: u64, change: PermissionChange) -> Done {
        self.protect(start, bytes, change, Holes::Refuse)
    }
    fn hide(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.hide(start, bytes)
    }
    fn show(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.show(start, bytes)
    }
    fn map_pieces(&mut self, pieces: &[Piece]) -> Done {
        self.map_pieces(pieces)
    }
    fn make_direct(&mut self, pieces: &[Piece]) -> Done {
        direct::create(self, pieces)
    }
    fn unmap(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.unmap(start, bytes)
    }
    fn merge(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Merged, TableError> {
        self.merge(start, bytes, leaves)
    }
    fn limit_leaves(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<usize, TableError> {
        self.limit_leaves(start, bytes, leaves)
    }
    fn query(&self, address: VirtualAddress) -> Option<Mapping> {
        self.query(address)
    }
    fn visit(
        &self,
        start: VirtualAddress,
        bytes: u64,
        visit: &mut dyn FnMut(&Entry) -> bool,
    ) -> Done {
        self.visit(start, bytes, visit)
    }
    fn visit_all(&self, visit: &mut dyn FnMut(&Entry) -> bool) {
        self.visit_all(visit);
    }
    fn visit_runs(&self, visit: &mut dyn FnMut(&Entry) -> bool) {
        self.visit_runs(visit);
    }
    fn reserve(&mut self, tables: usize) -> bool {
        self.environment().reserve(tables)
    }
    fn arena(&mut self) -> Option<&mut Arena> {
        direct::HasArena::arena(self.environment())
    }
    fn flush(&mut self, start: VirtualAddress, bytes: u64) {
        flush(self.environment(), start, bytes, P::SIZE.bytes());
    }
    fn relied(&mut self, start: VirtualAddress, bytes: u64) {
        Recorder::of_this_cpu(P::SIZE.bytes()).relied(start, bytes);
    }
    #[cfg(feature = "test-image")]
    unsafe fn overwrite(&mut self, entry: &Entry, descriptor: Descriptor) {
        let (start, bytes) = (entry.start, entry.bytes);
        let environment = self.environment();
        // SAFETY: an entry of the tables, which nobody else changes; the rest is the caller's.
        unsafe { environment.store(entry.table, entry.index, descriptor, Visibility::Live) };
        flush(environment, start, bytes, bytes);
    }
}

/// Invalidates the TLB for the leaves of a range, of which none is smaller than `stride`.
#[inline(never)]
fn flush(parts: &mut KernelParts<'_>, start: VirtualAddress, bytes: u64, stride: u64) {
    let what = Invalidation {
        start,
        bytes,
        stride,
        reach: Reach::LastLevel,
        asid: None,
        level: None,
    };
    table::invalidate(parts, &what);
}

/// Tables of the page size that was chosen at boot.
pub(crate) enum Opened<'a> {
    #[cfg(page_4k)]
    K4(Walker<'a, Page4K>),
    #[cfg(page_16k)]
    K16(Walker<'a, Page16K>),
    #[cfg(page_64k)]
    K64(Walker<'a, Page64K>),
}

/// Opens the tables below `root`, which are live.
///
/// # Errors
///
/// When this build has no code for the page size of the geometry.
///
/// # Safety
///
/// As for [`PageTables::from_root`].
pub(crate) unsafe fn open(
    root: PhysicalAddress,
    parts: KernelParts<'_>,
) -> Result<Opened<'_>, TableError> {
    let geometry = parts.maintenance.capabilities().geometry;
    // SAFETY: the caller's promise, in each.
    unsafe {
        match geometry.page_size() {
            #[cfg(page_4k)]
            PageSize::K4 => Ok(Opened::K4(PageTables::from_root(
                root,
                geometry,
                Liveness::Live,
                parts,
            )?)),
            #[cfg(page_16k)]
            PageSize::K16 => Ok(Opened::K16(PageTables::from_root(
                root,
                geometry,
                Liveness::Live,
                parts,
            )?)),
            #[cfg(page_64k)]
            PageSize::K64 => Ok(Opened::K64(PageTables::from_root(
                root,
                geometry,
                Liveness::Live,
                parts,
            )?)),
            #[allow(
                unreachable_patterns,
                reason = "in a build for every size there is no other"
            )]
            page_size => Err(TableError::WrongPageSize {
                geometry: page_size,
                page: sizes::MAX,
            }),
        }
    }
}

impl<'a> Deref for Opened<'a> {
    type Target = dyn Tree + 'a;

    fn deref(&self) -> &Self::Target {
        match self {
            #[cfg(page_4k)]
            Self::K4(tables) => tables,
            #[cfg(page_16k)]
            Self::K16(tables) => tables,
            #[cfg(page_64k)]
            Self::K64(tables) => tables,
        }
    }
}

impl DerefMut for Opened<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            #[cfg(page_4k)]
            Self::K4(tables) => tables,
            #[cfg(page_16k)]
            Self::K16(tables) => tables,
            #[cfg(page_64k)]
            Self::K64(tables) => tables,
        }
    }
}

/// See [`table::flip::set_valid`].
///
/// # Safety
///
/// As for that.
pub(crate) unsafe fn set_valid(
    root: PhysicalAddress,
    parts: KernelParts<'_>,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Done {
    let size = parts.maintenance.capabilities().geometry.page_size();
    sizes::dispatch(
        size,
        Flip {
            root,
            parts,
            start,
            bytes,
            valid,
        },
    )
}

/// The arguments of [`set_valid`].
struct Flip<'a> {
    root: PhysicalAddress,
    parts: KernelParts<'a>,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
}

impl Dispatch for Flip<'_> {
    type Output = Done;

    fn run<P: Page>(self) -> Done {
        let Flip {
            root,
            parts,
            start,
            bytes,
            valid,
        } = self;
        let geometry = parts.maintenance.capabilities().geometry;
        // SAFETY: the promise to `set_valid`, which alone makes these.
        unsafe { table::flip::set_valid::<P, _>(root, geometry, parts, start, bytes, valid) }
    }
}
