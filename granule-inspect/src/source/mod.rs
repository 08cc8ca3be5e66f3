//! Where the bytes of physical memory come from. This module reads no page tables.

use granule::arch::PhysicalAddress;
use std::ops::Range;

/// Physical memory that can be read and not changed.
pub trait Memory {
    /// Fills `buffer` with the bytes from `address` on.
    ///
    /// # Errors
    ///
    /// If any of these bytes is not in the source, or cannot be had; `buffer` may then hold
    /// anything.
    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError>;

    /// The physical ranges that the source has, in ascending order, which do not overlap.
    fn ranges(&self) -> Vec<Range<u64>>;
}

/// Why memory cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The source does not have these bytes: they were left out of a dump, or no RAM is there.
    #[error("no memory at {0:#x}")]
    Absent(PhysicalAddress),
    /// The source should have these bytes, but they are damaged.
    #[error("the memory at {address:#x} cannot be read: {why}")]
    Damaged {
        /// The first of them.
        address: PhysicalAddress,
        /// The damage, in one line.
        why: String,
    },
}
