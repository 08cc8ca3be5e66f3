//! Values in whole blocks of frames, allocated on demand and freed on drop. The kernel keeps all state
//! of processes in such values, so its frame count after the last process shows every leak.
//!
//! [`Array`] is several values, [`Boxed`] is one, [`Chain`] is values in blocks that are added one by one. The frames
//! come from the kernel's page allocator through [`Frames`]; tests count them and let them run out.
//!
//! Memory is whole frames, or pieces of frames once a program has another page size than the kernel.

#![allow(unsafe_code, reason = "values in frames of their own")]

mod array;
mod boxed;
mod chain;
#[cfg(test)]
pub(crate) mod host;

pub use array::Array;
pub use boxed::Boxed;
pub use chain::Chain;

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// The smallest frame size. Every block is aligned to at least this, and no value here needs more.
pub const SMALLEST_FRAME: usize = granule::arch::PageSize::MIN.bytes() as usize;

/// The source of blocks. The trait has no `self`, since a kernel has one page allocator.
///
/// # Safety
///
/// [`allocate`](Self::allocate) must return memory that is readable, writable, aligned to
/// [`SMALLEST_FRAME`] and exclusively the caller's until it is passed to [`free`](Self::free).
pub unsafe trait Frames: fmt::Debug {
    /// Memory for `bytes` bytes with any content; `None` if memory is exhausted.
    fn allocate(bytes: usize) -> Option<NonNull<u8>>;

    /// Frees memory from [`allocate`](Self::allocate).
    ///
    /// # Safety
    ///
    /// `allocate` returned `start` for the same `bytes`, and nothing uses the memory any more.
    unsafe fn free(start: NonNull<u8>, bytes: usize);
}

/// An exclusively owned block of memory.
struct Block<F: Frames> {
    start: NonNull<u8>,
    bytes: usize,
    frames: PhantomData<fn() -> F>,
}

// SAFETY: a block owns its memory exclusively, on any thread.
unsafe impl<F: Frames> Send for Block<F> {}
// SAFETY: a shared block reveals only its address.
unsafe impl<F: Frames> Sync for Block<F> {}

impl<F: Frames> Block<F> {
    /// Allocates memory for `bytes` bytes with any content.
    fn allocate(bytes: usize) -> Option<Self> {
        let start = F::allocate(bytes)?;
        Some(Self {
            start,
            bytes,
            frames: PhantomData,
        })
    }

    /// # Safety
    ///
    /// A block with this start and size must have been forgotten, once for each call of this, and
    /// nothing may use its memory any more.
    const unsafe fn forgotten(start: NonNull<u8>, bytes: usize) -> Self {
        Self {
            start,
            bytes,
            frames: PhantomData,
        }
    }

    /// The first byte, aligned to [`SMALLEST_FRAME`].
    const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl<F: Frames> Drop for Block<F> {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with this size, and it has one owner.
        unsafe { F::free(self.start, self.bytes) };
    }
}
