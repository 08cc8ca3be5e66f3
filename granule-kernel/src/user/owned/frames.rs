//! Blocks of the page allocator's frames, where the linear map shows them.

use crate::mm::live::{self, Kernel, pointer};
use crate::mm::pages;
use core::ptr::NonNull;
use granule::arch::VirtualAddress;
use granule_kcore::frames::Frame;

/// The order of the block of frames that holds so many bytes; `None` if there is none so large.
fn order_of(kernel: &Kernel, bytes: usize) -> Option<u32> {
    let pages = (bytes.max(1) as u64).div_ceil(kernel.page());
    Some(pages.checked_next_power_of_two()?.trailing_zeros())
}

/// Frames for so many bytes, with anything in them.
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let kernel = live::kernel()?;
    let order = order_of(kernel, bytes)?;
    let frame = pages::allocate(order)?;
    let start = pointer(frame.address(kernel.geometry.page_size()));
    if start.is_none() {
        // The frames count what they refuse.
        let _ = pages::free(frame, order);
    }
    start
}

/// Gives back what [`allocate`] gave for so many bytes.
///
/// # Safety
///
/// It did, and nobody uses the memory any more.
pub(super) unsafe fn free(start: NonNull<u8>, bytes: usize) {
    let Some(kernel) = live::kernel() else {
        return;
    };
    let address = VirtualAddress(start.as_ptr().expose_provenance() as u64);
    let physical = kernel.placement.physical_address(address);
    if let (Some(physical), Some(order)) = (physical, order_of(kernel, bytes)) {
        let frame = Frame::containing(physical, kernel.geometry.page_size());
        // The frames count what they refuse.
        let _ = pages::free(frame, order);
    }
}
