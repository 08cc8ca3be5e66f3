//! The limits of the segments of a next kernel.

/// The most segments of a next kernel, as in Linux.
pub const MOST_SEGMENTS: usize = 16;
