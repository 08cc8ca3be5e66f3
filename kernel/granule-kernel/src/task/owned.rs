//! Values of the kernel for user space, in frames of the page allocator that the linear map covers, or in pieces
//! of frames where a frame is large.
//!
//! Memory is allocated on demand and freed when the value is dropped, so the frame count after the last
//! process shows a leaked value. The handling of an exception must not depend on such a value.

#![allow(unsafe_code, reason = "frames as memory for values")]

use crate::mm::kernel_tables::{self, Kernel, pointer};
use crate::mm::{pages, sized};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use granule::arch::{PageSize, VirtualAddress};
use granule_kcore::frames::Frame;
use granule_linux_abi::owned::{self, Frames};

/// Whether small values are in pieces of frames from here on. A boot whose programs have the kernel's page size
/// has no subdivided frame, and keeps it so.
static SMALL_IN_PIECES: AtomicBool = AtomicBool::new(false);

/// Puts small values in pieces of frames from here on, because there are such pieces anyway.
pub(super) fn use_pieces() {
    SMALL_IN_PIECES.store(true, Ordering::Relaxed);
}

/// The order of the smallest block for `bytes` bytes; `None` if no order is large enough.
fn order_of(kernel: &Kernel, bytes: usize) -> Option<u32> {
    let pages = (bytes.max(1) as u64).div_ceil(kernel.page());
    Some(pages.checked_next_power_of_two()?.trailing_zeros())
}

/// The number of smallest pages that a value takes, if it may be in a piece of a frame.
fn pieces_of(kernel: &Kernel, bytes: usize) -> Option<u64> {
    let small = bytes as u64 <= kernel.page() / 2;
    if !small || !SMALL_IN_PIECES.load(Ordering::Relaxed) {
        return None;
    }
    let pages = (bytes.max(1) as u64).div_ceil(PageSize::MIN.bytes());
    Some(pages.next_power_of_two()).filter(|_| kernel.geometry.page_size() > PageSize::MIN)
}

/// Returns the bytes of the smallest block, of which a value takes one at least.
pub(super) fn smallest_block() -> usize {
    let page = kernel_tables::kernel().map_or(PageSize::MIN.bytes(), Kernel::page);
    let in_pieces = SMALL_IN_PIECES.load(Ordering::Relaxed);
    (if in_pieces {
        PageSize::MIN.bytes()
    } else {
        page
    }) as usize
}

/// Several values in their own frames.
pub(crate) type Array<T> = owned::Array<T, PageFrames>;
pub(crate) type Boxed<T> = owned::Boxed<T, PageFrames>;

/// Values in frames, or pieces of frames, that are added one by one.
pub(crate) type Chain<T> = owned::Chain<T, PageFrames>;

/// The page allocator's frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageFrames;

// SAFETY: the page allocator gives a block of frames, aligned to its size, to one owner, and `sized` a run of
// pieces of a frame. The linear map maps both readable and writable while they are allocated.
unsafe impl Frames for PageFrames {
    fn allocate(bytes: usize) -> Option<NonNull<u8>> {
        let kernel = kernel_tables::kernel()?;
        if let Some(count) = pieces_of(kernel, bytes) {
            return pointer(sized::allocate_run(PageSize::MIN, count)?);
        }
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
        if let (Some(physical), Some(count)) = (physical, pieces_of(kernel, bytes))
            && sized::is_in_piece(physical)
        {
            sized::release(PageSize::MIN, physical, count);
        } else if let (Some(physical), Some(order)) = (physical, order_of(kernel, bytes)) {
            let frame = Frame::containing(physical, kernel.geometry.page_size());
            // The frame statistics count a refused free.
            let _ = pages::free(frame, order);
        }
    }
}
