//! The host's memory for the arena.

#![allow(unsafe_code, reason = "memory for the arena")]

use anyhow::{Context, Result};
use granule_bench::arena::Arena;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The alignment with which the host can map the arena with its huge pages.
const HOST_HUGE_PAGE: usize = 2 << 20;

/// Held by the arena that exists.
static ONE: Mutex<()> = Mutex::new(());

/// An arena in memory of its own.
pub(crate) struct HostArena {
    arena: Arena,
    start: NonNull<u8>,
    layout: Layout,
    _one: MutexGuard<'static, ()>,
}

impl HostArena {
    /// An arena of so many bytes, or a few more.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = usize::try_from(bytes).context("the arena is too large")?;
        let bytes = bytes.max(1).next_multiple_of(HOST_HUGE_PAGE);
        let layout = Layout::from_size_align(bytes, HOST_HUGE_PAGE)?;
        // SAFETY: the layout is not empty.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        // Kernels reach their tables through the linear map's large leaves; with 4K pages the
        // host's TLB misses would be in every time and make the ratios look smaller. Advice that
        // the host does not take changes nothing else.
        // SAFETY: the range is the allocation just made, and the advice leaves its contents.
        let _ = unsafe {
            rustix::mm::madvise(
                start.as_ptr().cast(),
                bytes,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
        // SAFETY: the allocation is ours until it is dropped, and the lock is held until then too.
        let arena = unsafe { Arena::new(start, bytes) };
        Ok(Self {
            arena,
            start,
            layout,
            _one: one,
        })
    }
}

impl Deref for HostArena {
    type Target = Arena;

    fn deref(&self) -> &Arena {
        &self.arena
    }
}

impl Drop for HostArena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; the subjects' trees are dead with the
        // rounds that borrowed the arena.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
