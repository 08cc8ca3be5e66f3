//! The errors of the frame allocator, and their text.

use super::{Frame, MOST_SPANS};
use thiserror::Error;

/// Why a call was refused. A refusal changes nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// A span of so many frames is empty, too long, or reaches beyond physical addresses.
    #[error(
        "the span of {1} frames from {0} cannot be managed: a span has 1 to 2^32 - 2 frames below 2^52 bytes; split or cut it"
    )]
    BadSpan(Frame, u64),
    /// A span overlaps the one that begins with the second frame.
    #[error("the span from {0} meets the one from {1}; add each frame's span once")]
    SpansOverlap(Frame, Frame),
    /// The limit on the number of spans is reached.
    #[error(
        "the span from {0} is one too many, there can be {MOST_SPANS}; join banks, holes included"
    )]
    TooManySpans(Frame),
    /// The memory for a span's metadata is too small.
    #[error("a span's metadata needs {needed} words of 4 bytes, but was given {given}")]
    MetadataTooSmall {
        /// Words of 4 bytes that are needed.
        needed: u64,
        /// Words of 4 bytes that are there.
        given: u64,
    },
    /// A frame is in no span.
    #[error("{0} is in no span; add its bank first")]
    OutsideSpans(Frame),
    /// A frame is given in twice.
    #[error("{0} was given in before; give in each frame once")]
    AlreadyGiven(Frame),
    /// A frame to take out is allocated, or was never given in.
    #[error("{frame} {}", in_use(*.allocated))]
    InUse {
        /// The frame in question.
        frame: Frame,
        /// Whether the frame is allocated; otherwise it was never given in.
        allocated: bool,
    },
    /// Too few frames are unreserved to take so many out.
    #[error("{count} frames cannot be taken out: {unreserved} of the free ones are not set aside")]
    SetAside {
        /// Number of frames requested.
        count: u64,
        /// Free frames that are not reserved.
        unreserved: u64,
    },
    /// The order exceeds the largest block.
    #[error("there are no blocks of order {order}, only up to {most}")]
    OrderTooLarge {
        /// The order requested.
        order: u32,
        /// The largest order there is.
        most: u32,
    },
    /// The frame's number is not a multiple of the size of a block of this order.
    #[error("no block of order {1} begins at {0}, which is not a multiple of 2^{1}")]
    Misaligned(Frame, u32),
    /// A frame already has the most owners.
    #[error("{0} has as many owners as can be counted")]
    TooManyOwners(Frame),
    /// The frame to free was never given in.
    #[error("{0} was freed, but never given to the allocator")]
    NotGiven(Frame),
    /// The frame to free is free.
    #[error("{0} was freed twice")]
    AlreadyFree(Frame),
    /// The frame to free is subdivided: its pieces are freed.
    #[error("{0} was used as a whole, but is subdivided: its pieces are used one by one")]
    Subdivided(Frame),
    /// The frame to free is allocated, but as another block or part of one.
    #[error(
        "{frame} was freed as a block of order {order}, but is in the block of order {allocated} allocated at {head}"
    )]
    OtherBlock {
        /// The frame in question.
        frame: Frame,
        /// The order requested.
        order: u32,
        /// The first frame of the allocated block.
        head: Frame,
        /// The order of that block.
        allocated: u32,
    },
}

const fn in_use(allocated: bool) -> &'static str {
    if allocated {
        "is allocated; free it first"
    } else {
        "is not the allocator's: the boot keeps something there"
    }
}
