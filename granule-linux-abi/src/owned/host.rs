//! Frames of tests: blocks of the host's allocator, counted by thread, as many as a test allows.

use super::{Frames, SMALLEST_FRAME};
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

/// The frames of tests.
#[derive(Debug)]
pub(crate) struct HostFrames;

/// Values in such frames.
pub(crate) type Array<T> = super::Array<T, HostFrames>;
/// A value in such frames.
pub(crate) type Boxed<T> = super::Boxed<T, HostFrames>;

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
        // SAFETY: a layout is of one byte or more.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        HELD.set(HELD.get() + 1);
        Some(start)
    }

    unsafe fn free(start: NonNull<u8>, bytes: usize) {
        HELD.set(HELD.get().wrapping_sub(1));
        if let Ok(layout) = layout(bytes) {
            // SAFETY: allocated with this layout, says the caller.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}
