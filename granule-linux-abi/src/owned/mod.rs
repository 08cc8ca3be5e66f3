//! Values in whole blocks of frames, allocated when they are needed and freed when they are dropped.
//! The kernel keeps all that belongs to processes this way, so its count of frames after the last
//! process shows every value that was forgotten.
//!
//! [`Array`] is several values, [`Boxed`] is one. The frames come from the kernel's page allocator, by
//! [`Frames`]; tests count them and let them run out.

mod array;
mod boxed;
#[cfg(test)]
pub(crate) mod host;

pub use array::Array;
pub use boxed::Boxed;

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// The smallest frame there is. Every block is aligned to that at least, and no value here needs more.
pub const SMALLEST_FRAME: usize = granule::arch::PageSize::MIN.bytes() as usize;

/// Where blocks come from: an allocator without a value, since a kernel has one page allocator.
///
/// # Safety
///
/// [`allocate`](Self::allocate) gives memory that is readable, writable, aligned to
/// [`SMALLEST_FRAME`], nobody else's, and stays so until it is given to [`free`](Self::free).
pub unsafe trait Frames: fmt::Debug {
    /// Memory for so many bytes with any content; `None` if there is none.
    fn allocate(bytes: usize) -> Option<NonNull<u8>>;

    /// Frees what [`allocate`](Self::allocate) gave for so many bytes.
    ///
    /// # Safety
    ///
    /// `allocate` gave it for so many bytes, and nobody uses the memory any more.
    unsafe fn free(start: NonNull<u8>, bytes: usize);
}

/// A block of memory that is nobody else's.
struct Block<F: Frames> {
    start: NonNull<u8>,
    bytes: usize,
    frames: PhantomData<fn() -> F>,
}

// SAFETY: a block owns its memory alone, wherever the block is.
unsafe impl<F: Frames> Send for Block<F> {}
// SAFETY: a shared block gives away its address only.
unsafe impl<F: Frames> Sync for Block<F> {}

impl<F: Frames> Block<F> {
    /// Memory for so many bytes with any content.
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
    /// A block with this start and of so many bytes must have been forgotten, once for each call of
    /// this, and nobody may use its memory any more.
    const unsafe fn forgotten(start: NonNull<u8>, bytes: usize) -> Self {
        Self {
            start,
            bytes,
            frames: PhantomData,
        }
    }

    /// Its first byte, aligned to [`SMALLEST_FRAME`].
    const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl<F: Frames> Drop for Block<F> {
    fn drop(&mut self) {
        // SAFETY: it was allocated for so many bytes, and a block's owner has it alone.
        unsafe { F::free(self.start, self.bytes) };
    }
}
