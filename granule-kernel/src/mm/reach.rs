//! Physical addresses of tables as pointers, with the MMU on: those in the image through the
//! image's mapping, all others through the linear map.

use granule::arch::PhysicalAddress;
use granule::table::Reach;

/// How this kernel reaches tables while it boots. Not after the leftovers of the boot are dropped:
/// the unused part of the static pool is then in no mapping of the image any more, and tables may
/// come from it; from there on all tables are reached through the linear map ([`linear`](Self::linear)).
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelReach {
    image_start: u64,
    image_bytes: u64,
    image_distance: u64,
    linear_distance: u64,
}

impl KernelReach {
    /// For an image at physical `image_start`, seen at that plus `image_distance`, and a linear
    /// map at `linear_distance`.
    ///
    /// # Safety
    ///
    /// The image must be mapped there, and a table outside it handed to the walker only once the
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

    /// All through the linear map at `distance`, once the boot is done.
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

// SAFETY: the caller of `new` vouched for both mappings; tables are whole pages of them.
unsafe impl Reach for KernelReach {
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
