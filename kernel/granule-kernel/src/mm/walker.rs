//! The kernel's tables, as the library's tree of any page size.
//!
//! Code that works on tables once the MMU is on describes their environment ([`KernelEnvironment`]), opens them
//! ([`open`]) and uses [`Tree`], whose type has no page size, so the code and its callers are compiled once. Its
//! loops over entries add a step that they know before they begin. Few places in the kernel name a type of
//! page size: the strategies of the linear map ([`super::map`]), and the spaces of programs that have the
//! kernel's page size.

#![allow(unsafe_code, reason = "hands on what the caller of `open` promises")]

use super::environment::{Flush, KernelEnvironment};
use super::phys_to_virt::KernelPhysToVirt;
use crate::trace::recorder::Recorder;
use core::ops::{ControlFlow, Deref, DerefMut};
use granule::arch::tlbi::{Invalidation, TlbiScope};
use granule::arch::{Attributes, Geometry, Kind, PhysicalAddress, VirtualAddress};
use granule::linear::{self, Arena};
use granule::table::{
    self, AnyPageTables, Live, Piece, Reservation, TableEnvironment, TableError, Visit,
};
#[cfg(feature = "test-image")]
use granule::{
    arch::Descriptor,
    table::{Entry, Visibility},
};
use granule_trace::recorder::Sink;

/// Tables in the kernel's environment.
pub(crate) type Tree<'a> = AnyPageTables<KernelEnvironment<'a>>;

/// Live tables that may be changed.
pub(crate) struct Opened<'a>(Live<Tree<'a>>);

/// Opens the live tables of `geometry` below `root`. Errors: those of [`Live::from_root`], which a geometry of the
/// kernel does not cause.
///
/// # Safety
///
/// As for [`Live::from_root`], and as for [`Live::changes`] and the unsafe methods of [`AnyPageTables`] for
/// every change of the opened tables.
pub(crate) unsafe fn open(
    root: PhysicalAddress,
    geometry: Geometry,
    environment: KernelEnvironment<'_>,
) -> Result<Opened<'_>, TableError> {
    // SAFETY: the caller keeps the rules.
    Ok(Opened(unsafe {
        Live::from_root(root, geometry, environment)?
    }))
}

impl Opened<'_> {
    /// Sets where the next changes invalidate the TLB.
    ///
    /// # Safety
    ///
    /// With [`Flush::Later`] the caller makes the TLBIs: see [`AnyPageTables::set_deferred_tlbi`].
    pub(super) unsafe fn set_flush(&mut self, flush: Flush) {
        environment(self).set_flush(flush);
        // SAFETY: the caller makes the TLBIs.
        unsafe { self.set_deferred_tlbi(flush == Flush::Later) };
    }

    /// Gives back pages that were reserved and not used.
    pub(super) fn release_reserved(&mut self) {
        environment(self).release_reserved();
    }
}

impl<'a> Deref for Opened<'a> {
    type Target = Tree<'a>;

    fn deref(&self) -> &Tree<'a> {
        &self.0
    }
}

impl<'a> DerefMut for Opened<'a> {
    fn deref_mut(&mut self) -> &mut Tree<'a> {
        // SAFETY: the caller of `open` vouches for every change of the tables.
        unsafe { self.0.changes() }
    }
}

/// The environment of tables, whose functions here store nothing but what a caller answers for.
fn environment<'t, 'a>(tree: &'t mut Tree<'a>) -> &'t mut KernelEnvironment<'a> {
    // SAFETY: this module leaves it in place.
    unsafe { tree.environment_mut() }
}

/// See [`linear::create`].
pub(crate) fn make_direct(tree: &mut Tree<'_>, pieces: &[Piece]) -> Result<(), TableError> {
    // SAFETY: as the caller of `open` vouches. These pieces are the map in which the arena's RAM is found.
    unsafe { linear::create(tree, pieces, KernelEnvironment::arena) }
}

/// Unmaps a range. It is relied on as empty from here on, as its owner made it empty for that, unless its TLBIs
/// come later or are left out by a self-test.
pub(crate) fn unmap(
    tree: &mut Tree<'_>,
    start: VirtualAddress,
    bytes: u64,
) -> Result<(), TableError> {
    tree.unmap(start, bytes)?;
    if environment(tree).flush() == Flush::Now {
        assume_visible(tree, start, bytes);
    }
    Ok(())
}

/// The number of leaves, and whether none of them is writable and executable.
pub(crate) fn leaves(tree: &Tree<'_>) -> (u64, bool) {
    let (mut leaves, mut sound) = (0, true);
    let _ = tree.visit_all::<()>(|found| {
        if found.kind == Kind::Leaf {
            leaves += 1;
            let permissions = Attributes::decode(found.descriptor, tree.geometry()).permissions;
            sound &= !permissions.writable_and_executable();
        }
        ControlFlow::Continue(Visit::Descend)
    });
    (leaves, sound)
}

/// Reserves pages for this many tables, for several operations that must all succeed.
pub(crate) fn reserve(tree: &mut Tree<'_>, tables: usize) -> bool {
    environment(tree).reserve(tables) == Reservation::Granted
}

/// The boot's arena, if the tables come from it.
pub(crate) fn arena<'t>(tree: &'t mut Tree<'_>) -> Option<&'t mut Arena<KernelPhysToVirt>> {
    environment(tree).arena()
}

/// Invalidates the TLB for a range in which leaves of any size were changed with [`Flush::Later`].
pub(crate) fn flush(tree: &mut Tree<'_>, start: VirtualAddress, bytes: u64) {
    let stride = tree.geometry().page_size().bytes();
    flush_leaves(tree, start, bytes, stride);
}

/// As [`flush`], for leaves none of which is smaller than `stride`.
#[inline(never)]
fn flush_leaves(tree: &mut Tree<'_>, start: VirtualAddress, bytes: u64, stride: u64) {
    let what = Invalidation {
        start,
        bytes,
        stride,
        scope: TlbiScope::LastLevel,
        asid: None,
        level: None,
    };
    let geometry = *tree.geometry();
    let environment = environment(tree);
    let can = environment.capabilities();
    table::invalidate(&what, &geometry, can, |instruction| {
        environment.invalidate(instruction)
    });
}

/// Records for the trace that a range is used as the tables map it from here on.
pub(crate) fn assume_visible(tree: &Tree<'_>, start: VirtualAddress, bytes: u64) {
    Recorder::new(tree.geometry().page_size().bytes()).assume_visible(start, bytes);
}

/// Replaces an entry that a visit showed with `descriptor`, and invalidates the TLB for it.
///
/// # Safety
///
/// The caller answers for the new mapping.
#[cfg(feature = "test-image")]
pub(crate) unsafe fn overwrite(tree: &mut Tree<'_>, entry: &Entry, descriptor: Descriptor) {
    // SAFETY: the entry belongs to the tables, which nothing else changes; the caller answers for the mapping.
    unsafe {
        let environment = environment(tree);
        environment.store(entry.table, entry.index, descriptor, Visibility::Live);
    }
    flush_leaves(tree, entry.start, entry.bytes, entry.bytes);
}
