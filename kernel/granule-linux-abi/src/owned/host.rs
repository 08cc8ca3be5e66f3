//! Frames for tests: blocks of the host's allocator, counted and limited for each thread.

use super::{Frames, SMALLEST_FRAME};
use core::ptr::NonNull;
use std::alloc::{Layout, LayoutError, alloc, dealloc};
use std::cell::Cell;

std::thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Lets this thread's next `allocations` allocations succeed, and no more.
pub(crate) fn run_out_after(allocations: usize) {
    LEFT.set(allocations);
}

/// Blocks that this thread has allocated and not freed.
pub(crate) fn held() -> usize {
    HELD.get()
}

fn layout(bytes: usize) -> Result<Layout, LayoutError> {
    Layout::from_size_align(bytes.max(1), SMALLEST_FRAME)
}

/// Frames for tests, from the host's allocator.
#[derive(Debug)]
pub(crate) struct HostFrames;

/// Several values in frames for tests.
pub(crate) type Array<T> = super::Array<T, HostFrames>;
/// One value in frames for tests.
pub(crate) type Boxed<T> = super::Boxed<T, HostFrames>;

/// Blocks of values in frames for tests.
pub(crate) type Chain<T> = super::Chain<T, HostFrames>;

// SAFETY: the host's allocator gives aligned memory to one owner.
unsafe impl Frames for HostFrames {
    fn allocate(bytes: usize) -> Option<NonNull<u8>> {
        let left = LEFT.get();
        if left == 0 {
            return None;
        }
        if left != usize::MAX {
            LEFT.set(left - 1);
        }
        let layout = layout(bytes).ok()?;
        // SAFETY: the layout has at least one byte.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        HELD.set(HELD.get() + 1);
        Some(start)
    }

    unsafe fn free(start: NonNull<u8>, bytes: usize) {
        HELD.set(HELD.get().wrapping_sub(1));
        if let Ok(layout) = layout(bytes) {
            // SAFETY: the caller guarantees that the block was allocated with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}
