//! The environment of the examples' page tables.

use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{CpuFeatures, PageSize, PhysicalAddress};
use granule::table::{FreeList, Maintenance, Offset, TableEnvironment};
use granule::{forward, hw};

/// Tables that are mapped to their own address, with pages from a pool.
#[derive(Debug)]
pub struct Identity {
    pool: FreeList<Offset>,
    capabilities: TlbCapabilities,
}

impl Identity {
    /// The tables of `cpu`, with the pages between two addresses.
    ///
    /// # Safety
    ///
    /// Nothing else uses the memory between them. It is mapped to its own address, or the MMU is off.
    pub unsafe fn new(cpu: &CpuFeatures, size: PageSize, start: u64, end: u64) -> Self {
        // SAFETY: the caller keeps the rules.
        let pool = unsafe {
            let mut pool = FreeList::new(Offset::new(0), size);
            pool.add(PhysicalAddress(start), PhysicalAddress(end));
            pool
        };
        let capabilities = TlbCapabilities::of(cpu);
        Self { pool, capabilities }
    }
}

// SAFETY: the caller of `new` answers for the pages, which the list alone gives out, and every instruction is
// issued.
unsafe impl TableEnvironment for Identity {
    forward!(self.pool: reach allocate free pages reserve allocate_run allocate_aligned);

    #[inline(always)]
    fn invalidate(&mut self, instruction: Maintenance) {
        hw::issue(instruction);
    }

    #[inline(always)]
    fn capabilities(&self) -> TlbCapabilities {
        self.capabilities
    }
}
