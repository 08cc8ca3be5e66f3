//! Values of the kernel for user space, in frames of the page allocator that the linear map covers.
//!
//! Frames are allocated on demand and freed when the value is dropped, so the frame count after the last
//! process shows a leaked value. The handling of an exception must not depend on such a value.

use crate::mm::kernel_tables::{self, Kernel, pointer};
use crate::mm::pages;
use core::ptr::NonNull;
use granule::arch::VirtualAddress;
use granule_kcore::frames::Frame;
use granule_linux_abi::owned::{self, Frames};

/// The order of the smallest block for `bytes` bytes; `None` if no order is large enough.
fn order_of(kernel: &Kernel, bytes: usize) -> Option<u32> {
    let pages = (bytes.max(1) as u64).div_ceil(kernel.page());
    Some(pages.checked_next_power_of_two()?.trailing_zeros())
}

/// Several values in their own frames.
pub(crate) type Array<T> = owned::Array<T, PageFrames>;
/// One value in its own frames.
pub(crate) type Boxed<T> = owned::Boxed<T, PageFrames>;

/// The page allocator's frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageFrames;

// SAFETY: the page allocator gives a block of frames, aligned to its size, to one owner. The linear map
// maps the block readable and writable while it is allocated.
unsafe impl Frames for PageFrames {
    fn allocate(bytes: usize) -> Option<NonNull<u8>> {
        let kernel = kernel_tables::kernel()?;
        let order = order_of(kernel, bytes)?;
        let frame = pages::allocate(order)?;
        let start = pointer(frame.address(kernel.geometry.page_size()));
        if start.is_none() {
            // The frame statistics count a refused free.
            let _ = pages::free(frame, order);
        }
        start
    }

    unsafe fn free(start: NonNull<u8>, bytes: usize) {
        let Some(kernel) = kernel_tables::kernel() else {
            return;
        };
        let address = VirtualAddress(start.as_ptr().expose_provenance() as u64);
        let physical = kernel.placement.physical_address(address);
        if let (Some(physical), Some(order)) = (physical, order_of(kernel, bytes)) {
            let frame = Frame::containing(physical, kernel.geometry.page_size());
            // The frame statistics count a refused free.
            let _ = pages::free(frame, order);
        }
    }
}
