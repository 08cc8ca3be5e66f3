//! The tables for leaving this kernel: builds them for the page size chosen at boot, owns and frees them. The
//! tables are separate from the kernel's own. The caller names the ranges to map.

#![allow(unsafe_code, reason = "tables that are freed once, by their owner")]

use super::kernel_tables::{self, Kernel};
use super::phys_to_virt::KernelPhysToVirt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, Range};
use granule::arch::PhysicalAddress;
use granule::linear::Arena;
use granule_kexec::{Needs, Transition, TransitionError};
use granule_trace::recorder::Counters;

/// Tables for leaving, freed on drop.
pub(crate) struct TransitionTables {
    /// Taken out by `drop` alone.
    transition: ManuallyDrop<Transition>,
    count: u64,
    kernel: &'static Kernel,
}

/// Builds tables that are never freed, of whole pages of `range`.
///
/// # Safety
///
/// The linear map shows the range, and nothing else uses it.
pub(crate) unsafe fn build_in(
    kernel: &Kernel,
    needs: &Needs<'_>,
    range: Range<u64>,
) -> Result<Transition, TransitionError> {
    let counters = Counters::new();
    let (start, end) = (PhysicalAddress(range.start), PhysicalAddress(range.end));
    // SAFETY: the caller answers for the range, and the distance is the linear map's.
    let mut arena = unsafe {
        let memory = KernelPhysToVirt::linear(kernel.placement.distance());
        Arena::new(memory, start, end, kernel.geometry.page_size())
    };
    granule_kexec::build(
        kernel_tables::apart_in(kernel, &counters, &mut arena),
        needs,
    )
}

impl TransitionTables {
    /// Builds the tables. See [`granule_kexec::build`].
    pub(crate) fn build(
        kernel: &'static Kernel,
        needs: &Needs<'_>,
    ) -> Result<Self, TransitionError> {
        let counters = Counters::new();
        let environment = kernel_tables::apart(kernel, &counters);
        let transition = granule_kexec::build(environment, needs)?;
        Ok(Self {
            transition: ManuallyDrop::new(transition),
            count: counters.get().tables,
            kernel,
        })
    }

    /// The number of pages of the tables.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }
}

impl Deref for TransitionTables {
    type Target = Transition;

    fn deref(&self) -> &Transition {
        &self.transition
    }
}

impl Drop for TransitionTables {
    fn drop(&mut self) {
        // SAFETY: the private field is taken out here alone, and the value is not used again.
        let transition = unsafe { ManuallyDrop::take(&mut self.transition) };
        let counters = Counters::new();
        let environment = kernel_tables::apart(self.kernel, &counters);
        // SAFETY: the tables came from the page allocator, as the environment's do, which reaches all of its
        // pages. No CPU walks them: only `relocate::leave` loads their roots, and it does not return.
        unsafe { granule_kexec::free(environment, transition) };
    }
}
