//! Blocks on the host: the allocator's, as many as a test lets there be, counted by thread.

use super::SMALLEST_FRAME;
use core::ptr::NonNull;
use std::alloc::{Layout, LayoutError, alloc, dealloc};
use std::cell::Cell;

std::thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// This thread's next `allocations` succeed, and no more after them.
pub(crate) fn run_out_after(allocations: usize) {
    LEFT.set(allocations);
}

/// Blocks that this thread allocated and has not given back.
pub(crate) fn held() -> usize {
    HELD.get()
}

fn layout(bytes: usize) -> Result<Layout, LayoutError> {
    Layout::from_size_align(bytes.max(1), SMALLEST_FRAME)
}

/// Memory for so many bytes, with anything in them.
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let left = LEFT.get();
    if left == 0 {
        return None;
    }
    if left != usize::MAX {
        LEFT.set(left - 1);
    }
    let layout = layout(bytes).ok()?;
    // SAFETY: a layout is of one byte or more.
    let start = NonNull::new(unsafe { alloc(layout) })?;
    HELD.set(HELD.get() + 1);
    Some(start)
}

/// Gives back what [`allocate`] gave for so many bytes.
///
/// # Safety
///
/// It did, and nobody uses the memory any more.
pub(super) unsafe fn free(start: NonNull<u8>, bytes: usize) {
    HELD.set(HELD.get().wrapping_sub(1));
    if let Ok(layout) = layout(bytes) {
        // SAFETY: allocated with this layout, says the caller.
        unsafe { dealloc(start.as_ptr(), layout) };
    }
}
