//! The environment of tables that a kernel needs when it starts.

#![allow(unsafe_code, reason = "promises of a list of pages and the machine")]

use super::tlb::issue;
use crate::arch::tlbi::TlbCapabilities;
use crate::arch::{CpuFeatures, PageSize, PhysicalAddress};
use crate::forward;
use crate::table::{FreeList, Maintenance, Offset, TableEnvironment};
use core::ops::Range;

/// Returns the environment of tables of this machine, with a [`FreeList`] of the pages in `memory`, for CPUs that
/// are all like `cpu` ([`TlbCapabilities::of`]). A kernel whose CPUs differ in features or errata, that reaches
/// tables elsewhere, has an allocator of its own, or keeps tables in a static implements [`TableEnvironment`].
///
/// # Safety
///
/// Nothing else uses the memory. It is mapped to its own addresses, or the MMU is off.
pub unsafe fn environment(
    cpu: &CpuFeatures,
    size: PageSize,
    memory: Range<u64>,
) -> impl TableEnvironment + use<> {
    // SAFETY: the caller keeps the conditions.
    let pages = unsafe {
        let mut pages = FreeList::new(Offset::new(0), size);
        pages.add(PhysicalAddress(memory.start), PhysicalAddress(memory.end));
        pages
    };
    Environment {
        pages,
        capabilities: TlbCapabilities::of(cpu),
    }
}

struct Environment {
    pages: FreeList<Offset>,
    capabilities: TlbCapabilities,
}

// SAFETY: `pages`, which nothing else reaches, keeps the promises about pages. Every instruction is issued.
unsafe impl TableEnvironment for Environment {
    forward!(self.pages: reach allocate free pages reserve allocate_run allocate_aligned);

    #[inline(always)]
    fn invalidate(&mut self, instruction: Maintenance) {
        issue(instruction);
    }

    #[inline(always)]
    fn capabilities(&self) -> TlbCapabilities {
        self.capabilities
    }
}
