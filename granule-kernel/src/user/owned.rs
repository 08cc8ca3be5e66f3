//! Values in the page allocator's frames, which the linear map shows: what the kernel keeps for user space.
//!
//! The frames are allocated when they are needed and freed when a value is dropped, so the count of frames
//! after the last process shows a value that was forgotten. An exception must not need such a value before
//! it is handled.

use crate::mm::live::{self, Kernel, pointer};
use crate::mm::pages;
use core::ptr::NonNull;
use granule::arch::VirtualAddress;
use granule_kcore::frames::Frame;
use granule_linux_abi::owned::{self, Frames};

/// The order of the block of frames that holds so many bytes; `None` if there is none so large.
fn order_of(kernel: &Kernel, bytes: usize) -> Option<u32> {
    let pages = (bytes.max(1) as u64).div_ceil(kernel.page());
    Some(pages.checked_next_power_of_two()?.trailing_zeros())
}

/// Several values in frames of their own.
pub(crate) type Array<T> = owned::Array<T, PageFrames>;
/// One value in frames of its own.
pub(crate) type Boxed<T> = owned::Boxed<T, PageFrames>;

/// The page allocator's frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageFrames;

// SAFETY: the page allocator gives a block of frames to one owner, aligned to its size; the linear map shows
// it readable and writable for as long as it is allocated.
unsafe impl Frames for PageFrames {
    fn allocate(bytes: usize) -> Option<NonNull<u8>> {
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

    unsafe fn free(start: NonNull<u8>, bytes: usize) {
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
}
