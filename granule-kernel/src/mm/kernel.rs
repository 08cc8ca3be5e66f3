//! What the kernel's tables are: root, shape, what the CPUs can do with them. Set once, at the end of the
//! boot, and read without a lock from then on. Nothing here opens or changes a table.

use super::error::LinearError;
use core::ops::Range;
use core::ptr::NonNull;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Geometry, PhysicalAddress, VirtualAddress};
use granule::linear::Placement;
use granule::table::Leaves;

/// What the kernel's tables are, for good.
pub(crate) struct Kernel {
    pub(crate) root: PhysicalAddress,
    pub(crate) geometry: Geometry,
    /// Of all CPUs together.
    pub(crate) capabilities: TlbCapabilities,
    pub(crate) placement: Placement,
    /// How far sizes may change in place, on all CPUs.
    pub(crate) bbm: BbmLevel,
    /// How large the linear map's leaves may be.
    pub(crate) leaves: Leaves,
    /// Physical addresses of the image. Parts of its static storage that the boot needs no more
    /// are with the page allocator: see [`is_image`](Self::is_image).
    pub(crate) image: Range<u64>,
    /// Whether free pages are invalid.
    pub(crate) debug_pagealloc: bool,
}

static KERNEL: spin::Once<Kernel> = spin::Once::new();

/// Sets it; the first call counts.
pub(super) fn set(kernel: impl FnOnce() -> Kernel) {
    KERNEL.call_once(kernel);
}

/// The tables, once they change here.
pub(crate) fn kernel() -> Option<&'static Kernel> {
    KERNEL.get()
}

/// Where the linear map shows `address`, if it is RAM that it reaches.
pub(crate) fn pointer(address: PhysicalAddress) -> Option<NonNull<u8>> {
    let address = kernel()?.placement.virtual_address(address)?;
    NonNull::new(core::ptr::with_exposed_provenance_mut(address.0 as usize))
}

impl Kernel {
    /// The bytes of a page.
    pub(crate) fn page(&self) -> u64 {
        self.geometry.page_size().bytes()
    }

    /// The bytes of `pages` pages from `start`, if they are whole pages of the linear map.
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
