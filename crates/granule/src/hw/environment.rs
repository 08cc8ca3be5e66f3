//! The environment of tables that a kernel needs when it starts.

#![allow(
    unsafe_code,
    reason = "the promises of a list of pages and of this machine"
)]

use super::tlb::issue;
use crate::arch::CpuFeatures;
use crate::arch::tlbi::TlbCapabilities;
use crate::forward;
use crate::table::{FreeList, Maintenance, PhysToVirt, TableEnvironment};

/// Returns the environment of tables of this machine, with pages from a list, for CPUs that are all like `cpu`
/// ([`TlbCapabilities::of`]). A kernel whose CPUs differ in features or errata, that has an allocator of its own,
/// or that keeps tables in a static implements [`TableEnvironment`].
pub fn environment<R: PhysToVirt>(
    pages: FreeList<R>,
    cpu: &CpuFeatures,
) -> impl TableEnvironment + use<R> {
    Environment {
        pages,
        capabilities: TlbCapabilities::of(cpu),
    }
}

struct Environment<R> {
    pages: FreeList<R>,
    capabilities: TlbCapabilities,
}

// SAFETY: `pages`, which nothing else reaches, keeps the promises about pages. Every instruction is issued.
unsafe impl<R: PhysToVirt> TableEnvironment for Environment<R> {
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
