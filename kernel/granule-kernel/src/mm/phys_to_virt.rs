//! Turns physical addresses of tables into pointers, with the MMU on. Tables in the image are accessed
//! through the image's mapping, all others through the linear map.

#![allow(
    unsafe_code,
    reason = "tables as pointers, through the linear map and the image"
)]

use granule::arch::PhysicalAddress;
use granule::table::PhysToVirt;

/// The boot's way to tables. It must not be used after `free_initmem::free`: the image's mapping then no
/// longer covers the unused part of the static pool, and new tables may lie there. From there on all tables
/// are accessed through the linear map ([`linear`](Self::linear)).
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelPhysToVirt {
    image_start: u64,
    image_bytes: u64,
    image_distance: u64,
    linear_distance: u64,
}

impl KernelPhysToVirt {
    /// For an image at physical address `image_start`, mapped at that plus `image_distance`, and a linear map
    /// at `linear_distance`.
    ///
    /// # Safety
    ///
    /// The image must be mapped there. A table outside the image must not be given to the walker before the
    /// linear map covers it.
    pub(crate) const unsafe fn new(
        image_start: u64,
        image_bytes: u64,
        image_distance: u64,
        linear_distance: u64,
    ) -> Self {
        Self {
            image_start,
            image_bytes,
            image_distance,
            linear_distance,
        }
    }

    /// Accesses all tables through the linear map at `distance`, once the boot is done.
    ///
    /// # Safety
    ///
    /// As for [`Offset::new`](granule::table::Offset::new).
    pub(crate) const unsafe fn linear(distance: u64) -> Self {
        Self {
            image_start: 0,
            image_bytes: 0,
            image_distance: 0,
            linear_distance: distance,
        }
    }
}

// SAFETY: the caller of `new` answers for both mappings; tables are whole pages of them.
unsafe impl PhysToVirt for KernelPhysToVirt {
    #[inline(always)]
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        let inside = table.0.wrapping_sub(self.image_start) < self.image_bytes;
        let distance = if inside {
            self.image_distance
        } else {
            self.linear_distance
        };
        core::ptr::with_exposed_provenance_mut(table.0.wrapping_add(distance) as usize)
    }
}
