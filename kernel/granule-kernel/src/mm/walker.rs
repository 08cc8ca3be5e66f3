//! Instantiates the library's walker once for each page size, and selects the instance by a page
//! size known at run time.
//!
//! Code that works on tables once the MMU is on describes their environment ([`KernelEnvironment`]), opens them
//! ([`open`]) and uses [`Tree`], which has no page size. So the code for each page size is compiled for one
//! kind of environment, and its callers are compiled once. Hot loops see the page size as a constant; every
//! operation costs one indirect call. Few other places in the kernel name a type of page size: the strategies
//! of the linear map ([`super::map`]), whose loops run over entries, [`super::transition`], the spaces of
//! programs, and the code that runs with the MMU off, which must not call indirectly.

#![allow(
    unsafe_code,
    reason = "hands on what callers promise, for each page size"
)]

use super::environment::{Flush, KernelEnvironment};
use super::phys_to_virt::KernelPhysToVirt;
use crate::trace::recorder::Recorder;
use core::ops::{ControlFlow, Deref, DerefMut};
use granule::arch::Page;
#[cfg(page_4k)]
use granule::arch::Page4K;
#[cfg(page_16k)]
use granule::arch::Page16K;
#[cfg(page_64k)]
use granule::arch::Page64K;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::{Invalidation, TlbiScope};
use granule::arch::{Attributes, Geometry, Kind, PageSize, PhysicalAddress, VirtualAddress};
use granule::linear::{self, Arena};
use granule::table::{
    self, Entry, Holes, Leaves, Live, Mapping, Merged, PageTables, PermissionChange, Piece,
    Reservation, TableEnvironment, TableError, Visit,
};
#[cfg(feature = "test-image")]
use granule::{arch::Descriptor, table::Visibility};
use granule_kcore::sizes;
use granule_trace::recorder::Sink;

type Walker<'a, P> = PageTables<P, KernelEnvironment<'a>>;

/// The closure that [`Tree`] calls for each entry of a visit.
type Visitor<'a> = dyn FnMut(&Entry) -> ControlFlow<(), Visit> + 'a;

/// The result of most operations.
type Done = Result<(), TableError>;

/// Operations on tables of any page size: those of [`PageTables`] of the same name, and few more.
pub(crate) trait Tree {
    fn geometry(&self) -> &Geometry;
    fn set_bbm(&mut self, level: BbmLevel);
    fn defer_tlbi(&mut self);
    /// See [`PageTables::protect`]; holes are refused.
    fn protect(&mut self, start: VirtualAddress, bytes: u64, change: PermissionChange) -> Done;
    fn set_invalid(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    fn set_valid(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    fn map_pieces(&mut self, pieces: &[Piece]) -> Done;
    /// See [`linear::create`].
    fn make_direct(&mut self, pieces: &[Piece]) -> Done;
    fn unmap(&mut self, start: VirtualAddress, bytes: u64) -> Done;
    fn merge(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Merged, TableError>;
    fn limit_leaves(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<usize, TableError>;
    fn query(&self, address: VirtualAddress) -> Option<Mapping>;
    /// `visit` of the trait object, with a visitor that keeps its own result.
    fn visit_range(
        &self,
        start: VirtualAddress,
        bytes: u64,
        visit: &mut Visitor<'_>,
    ) -> Result<ControlFlow<()>, TableError>;
    /// `visit_runs` of the trait object, with a visitor that keeps its own result.
    fn visit_whole_in_runs(&self, visit: &mut Visitor<'_>) -> ControlFlow<()>;
    /// Reserves pages for this many tables, for several operations that must all succeed.
    fn reserve(&mut self, tables: usize) -> bool;
    /// The boot's arena, if the tables come from it.
    fn arena(&mut self) -> Option<&mut Arena<KernelPhysToVirt>>;
    /// Invalidates the TLB for a range in which leaves of any size were changed with
    /// [`Flush::Later`].
    fn flush(&mut self, start: VirtualAddress, bytes: u64);
    /// Records for the trace that a range is used as the tables map it from here on.
    fn assume_visible(&mut self, start: VirtualAddress, bytes: u64);
    /// Replaces an entry that a visit showed with `descriptor`, and invalidates the TLB for it.
    ///
    /// # Safety
    ///
    /// The caller answers for the new mapping.
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

    /// See [`PageTables::visit`].
    pub(crate) fn visit<B>(
        &self,
        start: VirtualAddress,
        bytes: u64,
        visit: impl FnMut(&Entry) -> ControlFlow<B, Visit>,
    ) -> Result<ControlFlow<B>, TableError> {
        keep(visit, |visit| self.visit_range(start, bytes, visit))
    }

    /// See [`PageTables::visit_all`].
    pub(crate) fn visit_all<B>(
        &self,
        visit: impl FnMut(&Entry) -> ControlFlow<B, Visit>,
    ) -> ControlFlow<B> {
        let geometry = *self.geometry();
        let visited = self.visit(geometry.base(), geometry.span(), visit);
        // The range is the geometry's own.
        visited.unwrap_or(ControlFlow::Continue(()))
    }

    /// The number of leaves, and whether none of them is writable and executable.
    pub(crate) fn leaves(&self) -> (u64, bool) {
        let (mut leaves, mut sound) = (0, true);
        let geometry = *self.geometry();
        let _ = self.visit_all::<()>(|found| {
            if found.kind == Kind::Leaf {
                leaves += 1;
                let permissions = Attributes::decode(found.descriptor, &geometry).permissions;
                sound &= !permissions.writable_and_executable();
            }
            ControlFlow::Continue(Visit::Descend)
        });
        (leaves, sound)
    }

    /// See [`PageTables::visit_runs`].
    pub(crate) fn visit_runs<B>(
        &self,
        visit: impl FnMut(&Entry) -> ControlFlow<B, Visit>,
    ) -> ControlFlow<B> {
        let visited = keep(visit, |visit| Ok(self.visit_whole_in_runs(visit)));
        // The closure returns no error.
        visited.unwrap_or(ControlFlow::Continue(()))
    }
}

/// Visits with `visit`, and keeps the value with which it ends the visit.
#[inline(always)]
fn keep<B>(
    mut visit: impl FnMut(&Entry) -> ControlFlow<B, Visit>,
    through: impl FnOnce(&mut Visitor<'_>) -> Result<ControlFlow<()>, TableError>,
) -> Result<ControlFlow<B>, TableError> {
    let mut end = None;
    let _ = through(&mut |entry| match visit(entry) {
        ControlFlow::Continue(next) => ControlFlow::Continue(next),
        ControlFlow::Break(value) => {
            end = Some(value);
            ControlFlow::Break(())
        }
    })?;
    Ok(end.map_or(ControlFlow::Continue(()), ControlFlow::Break))
}

impl<P: Page> Tree for Walker<'_, P> {
    fn geometry(&self) -> &Geometry {
        self.geometry()
    }
    fn set_bbm(&mut self, level: BbmLevel) {
        // SAFETY: the caller of `open` vouches for the changes and their level.
        unsafe { self.set_bbm(level) };
    }
    fn defer_tlbi(&mut self) {
        // SAFETY: the caller of `open` vouches for the changes, and so for the TLBIs.
        unsafe { self.defer_tlbi() };
    }
    fn protect(&mut self, start: VirtualAddress, bytes: u64, change: PermissionChange) -> Done {
        self.protect(start, bytes, change, Holes::Refuse)
    }
    // The caller records what is relied on: pages that were invalid before may have TLBIs to come.
    fn set_invalid(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.set_invalid(start, bytes)
    }
    fn set_valid(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.set_valid(start, bytes)
    }
    fn map_pieces(&mut self, pieces: &[Piece]) -> Done {
        self.map_pieces(pieces)
    }
    fn make_direct(&mut self, pieces: &[Piece]) -> Done {
        // SAFETY: as the caller of `open` vouches. These pieces are the map in which the arena's RAM is found.
        unsafe { linear::create(self, pieces, KernelEnvironment::arena) }
    }
    fn unmap(&mut self, start: VirtualAddress, bytes: u64) -> Done {
        self.unmap(start, bytes)?;
        // The range is relied on as empty from here on, as its owner made it empty for that, unless its TLBIs come later
        // or are left out by a self-test.
        if self.environment().flush() == Flush::Now {
            Tree::assume_visible(self, start, bytes);
        }
        Ok(())
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
    fn visit_range(
        &self,
        start: VirtualAddress,
        bytes: u64,
        visit: &mut Visitor<'_>,
    ) -> Result<ControlFlow<()>, TableError> {
        self.visit(start, bytes, visit)
    }
    fn visit_whole_in_runs(&self, visit: &mut Visitor<'_>) -> ControlFlow<()> {
        self.visit_runs(visit)
    }
    fn reserve(&mut self, tables: usize) -> bool {
        // SAFETY: a reservation changes no table.
        unsafe { self.environment_mut() }.reserve(tables) == Reservation::Granted
    }
    fn arena(&mut self) -> Option<&mut Arena<KernelPhysToVirt>> {
        // SAFETY: the callers only extend the arena and read its state.
        unsafe { self.environment_mut() }.arena()
    }
    fn flush(&mut self, start: VirtualAddress, bytes: u64) {
        let geometry = *self.geometry();
        // SAFETY: barriers and TLBIs change no table.
        let environment = unsafe { self.environment_mut() };
        flush(environment, &geometry, start, bytes, P::SIZE.bytes());
    }
    fn assume_visible(&mut self, start: VirtualAddress, bytes: u64) {
        Recorder::new(P::SIZE.bytes()).assume_visible(start, bytes);
    }
    #[cfg(feature = "test-image")]
    unsafe fn overwrite(&mut self, entry: &Entry, descriptor: Descriptor) {
        let (start, bytes) = (entry.start, entry.bytes);
        let geometry = *self.geometry();
        // SAFETY: the entry belongs to the tables, which nothing else changes; the caller answers
        // for the mapping.
        let environment = unsafe {
            let environment = self.environment_mut();
            environment.store(entry.table, entry.index, descriptor, Visibility::Live);
            environment
        };
        flush(environment, &geometry, start, bytes, bytes);
    }
}

/// Invalidates the TLB for the leaves of a range, none of which is smaller than `stride`.
#[inline(never)]
fn flush(
    environment: &mut KernelEnvironment<'_>,
    geometry: &Geometry,
    start: VirtualAddress,
    bytes: u64,
    stride: u64,
) {
    let what = Invalidation {
        start,
        bytes,
        stride,
        scope: TlbiScope::LastLevel,
        asid: None,
        level: None,
    };
    let can = environment.capabilities();
    table::invalidate(&what, geometry, can, |instruction| {
        environment.invalidate(instruction)
    });
}

/// Opened tables of the page size chosen at boot.
pub(crate) enum Opened<'a> {
    #[cfg(page_4k)]
    K4(Live<Walker<'a, Page4K>>),
    #[cfg(page_16k)]
    K16(Live<Walker<'a, Page16K>>),
    #[cfg(page_64k)]
    K64(Live<Walker<'a, Page64K>>),
}

/// Opens the live tables of `geometry` below `root`.
///
/// # Errors
///
/// When this build has no code for the page size of the geometry.
///
/// # Safety
///
/// As for [`Live::from_root`], and as for [`Live::changes`] for every change of the opened tables.
pub(crate) unsafe fn open(
    root: PhysicalAddress,
    geometry: Geometry,
    environment: KernelEnvironment<'_>,
) -> Result<Opened<'_>, TableError> {
    // SAFETY: the caller keeps the rules of `from_root`, which each arm calls.
    unsafe {
        match geometry.page_size() {
            #[cfg(page_4k)]
            PageSize::K4 => Ok(Opened::K4(Live::from_root(root, geometry, environment)?)),
            #[cfg(page_16k)]
            PageSize::K16 => Ok(Opened::K16(Live::from_root(root, geometry, environment)?)),
            #[cfg(page_64k)]
            PageSize::K64 => Ok(Opened::K64(Live::from_root(root, geometry, environment)?)),
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
            Self::K4(tables) => &**tables,
            #[cfg(page_16k)]
            Self::K16(tables) => &**tables,
            #[cfg(page_64k)]
            Self::K64(tables) => &**tables,
        }
    }
}

impl DerefMut for Opened<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: the caller of `open` vouches for every change of the tables.
        unsafe {
            match self {
                #[cfg(page_4k)]
                Self::K4(tables) => tables.changes(),
                #[cfg(page_16k)]
                Self::K16(tables) => tables.changes(),
                #[cfg(page_64k)]
                Self::K64(tables) => tables.changes(),
            }
        }
    }
}
