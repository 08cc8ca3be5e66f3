//! Memory that the kernel keeps for user space: values in whole blocks of frames, taken when they
//! are needed and given back when they are dropped. So the count of frames at the end sees each
//! one that was forgotten.
//!
//! [`Array`] is several values, [`Boxed`] is one. They lie in the linear map, so nothing that an
//! exception needs before it is dealt with may be in one.
//!
//! [`frames`] has the page allocator's blocks. On the host they are the allocator's (`host`),
//! each test can let them run out, and counts them.

mod array;
mod boxed;
#[cfg(target_os = "none")]
mod frames;
#[cfg(not(target_os = "none"))]
pub(crate) mod host;

pub(crate) use array::Array;
#[cfg_attr(
    not(target_os = "none"),
    allow(unused_imports, reason = "the host has no spaces and no tasks")
)]
pub(crate) use boxed::Boxed;

use core::ptr::NonNull;
#[cfg(target_os = "none")]
use frames::{allocate, free};
#[cfg(not(target_os = "none"))]
use host::{allocate, free};

/// The smallest frame there is. Blocks are aligned to that at least, and nothing here needs more.
const SMALLEST_FRAME: usize = granule::arch::PageSize::MIN.bytes() as usize;

/// A block of memory that is nobody else's, readable and writable for as long as it is there.
struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its memory alone, wherever it is.
unsafe impl Send for Block {}
// SAFETY: a shared block gives away its address only.
unsafe impl Sync for Block {}

impl Block {
    /// Memory for so many bytes, with anything in them.
    fn allocate(bytes: usize) -> Option<Self> {
        let start = allocate(bytes)?;
        Some(Self { start, bytes })
    }

    /// # Safety
    ///
    /// A block with this start and of so many bytes must have been forgotten, once for each call of
    /// this, and nobody use its memory any more.
    const unsafe fn forgotten(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// Its first byte, aligned to [`SMALLEST_FRAME`].
    const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was allocated for so many bytes, and who has a block has it alone.
        unsafe { free(self.start, self.bytes) };
    }
}
