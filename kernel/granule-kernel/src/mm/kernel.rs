//! The facts about the kernel's tables: root, geometry and the CPUs' capabilities. They are set once, at the
//! end of the boot, and read without a lock from then on. This file does not open or change a table.

use super::error::LinearError;
use core::ops::Range;
use core::ptr::NonNull;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Geometry, PhysicalAddress, VirtualAddress};
use granule::linear::Placement;
use granule::table::Leaves;

/// The constant facts about the kernel's tables.
pub(crate) struct Kernel {
    pub(crate) root: PhysicalAddress,
    pub(crate) geometry: Geometry,
    /// Capabilities that all CPUs share.
    pub(crate) capabilities: TlbCapabilities,
    pub(crate) placement: Placement,
    /// BBM level that all CPUs support: how far a leaf's size may change in place.
    pub(crate) bbm: BbmLevel,
    /// Largest leaves allowed in the linear map.
    pub(crate) leaves: Leaves,
    /// Bytes of the largest leaf that the geometry has.
    pub(crate) largest: u64,
    /// Physical addresses of the image. Parts of its static storage that the boot no longer needs belong to
    /// the page allocator: see [`is_image`](Self::is_image).
    pub(crate) image: Range<u64>,
    /// Whether the linear map's alias of memory changes with the memory's own permissions.
    pub(crate) changes_aliases: bool,
    /// Whether free pages are invalid.
    pub(crate) debug_pagealloc: bool,
}

static KERNEL: spin::Once<Kernel> = spin::Once::new();

/// Sets the facts. Only the first call has an effect.
pub(super) fn set(kernel: impl FnOnce() -> Kernel) {
    KERNEL.call_once(kernel);
}

/// The facts about the kernel's tables; `None` during the boot.
pub(crate) fn kernel() -> Option<&'static Kernel> {
    KERNEL.get()
}

/// A pointer to `address` in the linear map, if it is RAM that the map reaches.
pub(crate) fn pointer(address: PhysicalAddress) -> Option<NonNull<u8>> {
    let address = kernel()?.placement.virtual_address(address)?;
    NonNull::new(core::ptr::with_exposed_provenance_mut(address.0 as usize))
}

impl Kernel {
    /// The page size in bytes.
    pub(crate) fn page(&self) -> u64 {
        self.geometry.page_size().bytes()
    }

    /// The size of `pages` pages from `start` in bytes, if they are whole pages of the linear map.
    pub(super) fn bytes_in(&self, start: VirtualAddress, pages: u64) -> Result<u64, LinearError> {
        let page = self.page();
        let bytes = pages.saturating_mul(page);
        let outside = LinearError::Outside {
            start: start.0,
            bytes,
        };
        let inside = |address: u64| {
            let address = VirtualAddress(address);
            self.placement.physical_address(address).is_some()
        };
        let last = start.0.checked_add(bytes.max(1) - 1).ok_or(outside)?;
        if start.0.is_multiple_of(page) && inside(start.0) && inside(last) {
            Ok(bytes)
        } else {
            Err(outside)
        }
    }
}
