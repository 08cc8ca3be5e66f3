//! Trees that CPUs walk.
//!
//! [`PageTables`] is a tree that no CPU walks: nothing that happens to it can harm anybody.
//! [`Live`] is a tree whose root may be in a TTBR. Reading stays safe. Every change goes through
//! [`Live::changes`], where the caller vouches for it. How a change is made is not decided here.

#![allow(unsafe_code, reason = "CPUs walk the tables, on the caller's word")]

use super::stage::{Stage, Stage2};
use super::{Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::PhysicalAddress;
use crate::arch::page_size::PageChoice;
use crate::arch::registers::Ttbr;
use crate::arch::stage2::Vttbr;
use core::ops::Deref;

/// A tree of tables that CPUs may walk: [`PageTables`] after
/// [`make_live`](PageTables::make_live).
///
/// It dereferences to the tree, for queries and visits. Only this type gives the value for a TTBR,
/// so tables cannot be used by a CPU and still be changed without barriers and TLBIs:
///
/// ```compile_fail,E0599
/// use granule::arch::Page4K;
/// use granule::table::{PageTables, TableEnvironment};
///
/// fn forgot_to_make_live<E: TableEnvironment>(tables: &PageTables<Page4K, E>) -> u64 {
///     tables.ttbr(0).bits()
/// }
/// ```
///
/// A change is safe code's to make only while no CPU walks the tables:
///
/// ```compile_fail,E0596
/// use granule::arch::{Page4K, VirtualAddress};
/// use granule::table::{Live, PageTables, TableEnvironment, TableError};
///
/// fn unmap<E: TableEnvironment>(tables: &mut Live<PageTables<Page4K, E>>) -> Result<(), TableError> {
///     tables.unmap(VirtualAddress(0x1000), 0x1000)
/// }
/// ```
///
/// ```compile_fail,E0133
/// use granule::arch::{Page4K, VirtualAddress};
/// use granule::table::{Live, PageTables, TableEnvironment, TableError};
///
/// fn unmap<E: TableEnvironment>(tables: &mut Live<PageTables<Page4K, E>>) -> Result<(), TableError> {
///     tables.changes().unmap(VirtualAddress(0x1000), 0x1000)
/// }
/// ```
///
/// The address of the root is for readers of the tables; it makes no value for a TTBR:
///
/// ```compile_fail,E0133
/// use granule::arch::Page4K;
/// use granule::arch::registers::Ttbr;
/// use granule::table::{PageTables, TableEnvironment};
///
/// fn forgot_to_make_live<E: TableEnvironment>(tables: &PageTables<Page4K, E>) -> u64 {
///     Ttbr::from_root(tables.geometry(), tables.root_table(), 0).bits()
/// }
/// ```
#[derive(Debug)]
pub struct Live<T>(pub(super) T);

impl<T> Deref for Live<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Live<T> {
    /// The tree, to change it. Each change ends with the barriers and TLBIs that it needs before
    /// its method returns.
    ///
    /// ```
    /// use granule::arch::{Page16K, VirtualAddress};
    /// use granule::table::{Live, PageTables, TableEnvironment, TableError};
    ///
    /// /// Unmaps the page below a stack.
    /// ///
    /// /// # Safety
    /// ///
    /// /// Nothing may use the page at `guard`.
    /// unsafe fn guard_page<E: TableEnvironment>(
    ///     tables: &mut Live<PageTables<Page16K, E>>,
    ///     guard: VirtualAddress,
    /// ) -> Result<(), TableError> {
    ///     // SAFETY: the caller promises that nothing uses the page.
    ///     unsafe { tables.changes() }.unmap(guard, 0x4000)
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// The caller vouches for every change that is made with the returned reference:
    ///
    /// - Memory that code, stacks, data or devices in use are reached through stays mapped, to the
    ///   same output, with the accesses that its users make.
    /// - A new mapping makes no memory writable or executable behind the back of its owner, and
    ///   gives no memory a second memory type (mismatched aliases).
    /// - The tree is not moved out of the reference, for example by [`core::mem::swap`].
    pub const unsafe fn changes(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Makes all earlier stores visible to walkers. From here on CPUs may walk the tables, and each
    /// change issues the barriers and TLBIs that it needs.
    ///
    /// If the tables were written with the MMU or the data cache off, the caller also cleans or
    /// invalidates their lines before the first walk, because a walker may read through the cache.
    ///
    /// # Safety
    ///
    /// Until [`retire`](Live::retire):
    ///
    /// - the environment [issues](TableEnvironment::invalidate) every instruction, and it takes effect on
    ///   each CPU that walks the tables. One that issues none, as that of a [`FreeList`](super::FreeList) by
    ///   itself, suits only tables that are not walked in spite of the call.
    /// - A CPU that walks the tables has the TCR, MAIR and VTCR of the tables' geometry.
    /// - At stage 2, a CPU that changes the tables has the VMID of the guest in VTTBR_EL2, and not
    ///   both HCR_EL2.E2H and TGE set: the TLBIs concern the guest of these registers.
    /// - The memory of the tables is used for nothing else.
    #[must_use = "only the live tree gives the value for TTBR"]
    pub unsafe fn make_live(mut self) -> Live<Self> {
        self.go_live();
        Live(self)
    }

    /// Whether CPUs may walk the tables.
    pub(crate) fn is_live(&self) -> bool {
        self.liveness == Liveness::Live
    }

    /// As [`make_live`](Self::make_live), for code of this crate that holds the tree.
    pub(crate) fn go_live(&mut self) {
        self.liveness = Liveness::Live;
        self.pending.made_valid();
        self.publish();
    }
}

impl<P: PageChoice, E: TableEnvironment> Live<PageTables<P, E>> {
    /// The value for TTBR0 or TTBR1 that makes CPUs walk this tree of stage 1, with `asid`, which a regime
    /// without ASIDs ignores. If another tree had the ASID before,
    /// [`invalidate_all`](Self::invalidate_all) comes first.
    #[must_use]
    pub const fn ttbr(&self, asid: u16) -> Ttbr {
        // SAFETY: the tree in the private field of `Live` is live, so its changes issue barriers and
        // TLBIs; its fields `geometry` and `root` are private and belong together.
        unsafe { Ttbr::from_root(&self.0.geometry, self.0.root, asid) }
    }
}

impl<P: PageChoice, E: TableEnvironment> Live<PageTables<P, E, Stage2>> {
    /// The value for VTTBR_EL2 that makes CPUs run the guest `vmid` on this tree. If another tree
    /// had the VMID before, [`invalidate_all`](Self::invalidate_all) comes first, with this value in
    /// VTTBR_EL2.
    #[must_use]
    pub const fn vttbr(&self, vmid: u16) -> Vttbr {
        Vttbr::of_shape(&self.0.geometry, self.0.root, vmid)
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> Live<PageTables<P, E, S>> {
    /// Takes over the live tree below `root`.
    ///
    /// # Errors
    ///
    /// Those of [`PageTables::from_root`].
    ///
    /// # Safety
    ///
    /// As for [`PageTables::from_root`] and [`PageTables::make_live`].
    pub unsafe fn from_root(
        root: PhysicalAddress,
        geometry: S::Geometry,
        environment: E,
    ) -> Result<Self, TableError> {
        // SAFETY: the caller keeps the conditions of `PageTables::from_root`, but for CPUs that
        // walk the tree. For those the tree is made live before anything changes it.
        let mut tables = unsafe { PageTables::from_root(root, geometry, environment)? };
        tables.liveness = Liveness::Live;
        Ok(Self(tables))
    }

    /// Removes all entries of the tree from the TLBs of every CPU: those of its ASID if it
    /// [has one](PageTables::set_asid), at stage 2 those of both stages of the VMID in VTTBR_EL2, else
    /// those of the whole regime.
    ///
    /// An ASID or VMID that another tree had needs it before its first use, and
    /// [`retire`](Self::retire) needs it after the last.
    pub fn invalidate_all(&mut self) {
        self.0.issue_all();
    }

    /// The address of the root table, and the environment. The tables stay as they are, and live;
    /// [`from_root`](Self::from_root) takes them over again.
    pub fn into_parts(self) -> (PhysicalAddress, E) {
        self.0.into_parts()
    }

    /// Takes the tree back from the CPUs.
    ///
    /// # Safety
    ///
    /// No TTBR of any CPU holds the root any more, and no TLB holds an entry of the tree: after the
    /// root left the last TTBR came [`invalidate_all`](Self::invalidate_all).
    #[must_use = "a tree that is not kept or destroyed is lost"]
    pub unsafe fn retire(mut self) -> PageTables<P, E, S> {
        self.0.liveness = Liveness::Private;
        self.0
    }
}
