//! The environment of the kernel's tables: how they are reached, where their pages come from, and how
//! barriers and TLBIs are issued, counted and recorded. One type serves every caller.

#![allow(unsafe_code, reason = "tables through the linear map and the image")]

use super::hook::Hooked;
use super::phys_to_virt::KernelPhysToVirt;
use super::table_allocator::KernelTableAllocator;
#[cfg(feature = "test-image")]
use crate::trace::bring_up;
use crate::trace::recorder::Recorder;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{PageSize, PhysicalAddress};
use granule::linear::Arena;
use granule::table::{
    FreedTable, Maintenance, PhysToVirt, Reservation, TableEnvironment, TableRun,
};
use granule::{forward, hw};
use granule_trace::recorder::{Counted, Counters, Traced};

/// Where the TLB is invalidated before an operation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// On all CPUs.
    Now,
    /// On all CPUs, but not for leaves: see [`PageTables`](granule::table::PageTables::set_deferred_tlbi).
    /// The caller invalidates those ([`flush`](super::walker::flush)) before it relies on the
    /// change. `mm::kernel_tables` treats this as [`Now`](Self::Now) where large leaves may not be split live.
    Later,
    /// All of this CPU's TLB, and no other CPU's.
    #[cfg(feature = "test-image")]
    ThisCpu,
    /// On no CPU.
    #[cfg(feature = "test-image")]
    NoCpu,
}

/// A source of table pages. The methods are those of [`TableEnvironment`].
///
/// # Safety
///
/// Nothing else uses a page from when it is allocated until it is freed.
pub(crate) unsafe trait TableSource {
    fn reserve(&mut self, tables: usize) -> Reservation;
    fn allocate_run(&mut self, most: usize) -> Option<TableRun>;
    fn free(&mut self, table: FreedTable);
}

/// An environment without hooks, counters and recorder.
pub(crate) struct PlainEnvironment<M, S> {
    pub(crate) memory: M,
    pub(crate) source: S,
    pub(crate) capabilities: TlbCapabilities,
}

/// The plain environment of the kernel's tables.
pub(crate) type BareEnvironment<'a> = PlainEnvironment<KernelPhysToVirt, KernelTableAllocator<'a>>;

// SAFETY: `memory` reaches the image and the linear map, or the linear map, in which all tables lie; `source` answers
// for its pages. Every instruction is issued.
unsafe impl<M: PhysToVirt, S: TableSource> TableEnvironment for PlainEnvironment<M, S> {
    #[inline(always)]
    fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        self.memory.pointer(table)
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.allocate_run(1).map(|run| run.first)
    }

    fn free(&mut self, table: FreedTable) {
        self.source.free(table);
    }

    #[inline(always)]
    fn invalidate(&mut self, instruction: Maintenance) {
        hw::issue(instruction);
    }

    #[inline(always)]
    fn capabilities(&self) -> TlbCapabilities {
        self.capabilities
    }

    fn reserve(&mut self, tables: usize) -> Reservation {
        self.source.reserve(tables)
    }

    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        self.source.allocate_run(most)
    }
}

/// The environment of the kernel's tables.
pub(crate) struct KernelEnvironment<'a> {
    inner: Traced<Counted<'a, Hooked<'a>>, Recorder>,
    flush: Flush,
}

impl<'a> KernelEnvironment<'a> {
    /// The environment of tables with this page size.
    pub(crate) fn new(
        page_size: PageSize,
        capabilities: TlbCapabilities,
        memory: KernelPhysToVirt,
        counters: &'a Counters,
        allocator: KernelTableAllocator<'a>,
        flush: Flush,
    ) -> Self {
        let bare = BareEnvironment {
            memory,
            source: allocator,
            capabilities,
        };
        let counted = Counted::new(Hooked(bare), counters);
        Self {
            inner: Traced::new(counted, Recorder::new(page_size.bytes())),
            flush,
        }
    }

    /// Where the TLB is invalidated.
    pub(super) const fn flush(&self) -> Flush {
        self.flush
    }

    pub(super) const fn set_flush(&mut self, flush: Flush) {
        self.flush = flush;
    }

    /// Gives back pages that were reserved and not used.
    pub(super) fn release_reserved(&mut self) {
        let Hooked(bare) = self.inner.inner_mut().inner_mut();
        bare.source.release_reserved();
    }

    /// The boot's arena, if the tables come from it: then all do, and always the same one.
    pub(super) const fn arena(&mut self) -> Option<&mut Arena<KernelPhysToVirt>> {
        let Hooked(bare) = self.inner.inner_mut().inner_mut();
        bare.source.arena()
    }

    /// The environment that invalidates on all CPUs, for a caller that has checked that nothing is recorded.
    pub(super) const fn unrecorded(&mut self) -> &mut Counted<'a, Hooked<'a>> {
        self.inner.inner_mut()
    }
}

// SAFETY: each call goes to `inner`, which keeps the promises. A self-test that leaves instructions out answers
// for that.
unsafe impl TableEnvironment for KernelEnvironment<'_> {
    forward!(self.inner: reach allocate free capabilities pages reserve allocate_run allocate_aligned);
    forward!(self.inner: load find_unlike store exchange fill update update_alike);

    #[inline(always)]
    fn invalidate(&mut self, instruction: Maintenance) {
        match self.flush {
            Flush::Now | Flush::Later => self.inner.invalidate(instruction),
            #[cfg(feature = "test-image")]
            Flush::ThisCpu if matches!(instruction, Maintenance::Tlbi(..)) => {
                bring_up::tlbi_vmalle1_local();
            }
            #[cfg(feature = "test-image")]
            Flush::ThisCpu | Flush::NoCpu => {}
        }
    }
}
