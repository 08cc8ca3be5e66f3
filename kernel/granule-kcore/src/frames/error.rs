//! The errors of the frame allocator, and their text.

use super::{Frame, MOST_SPANS};
use core::fmt;

/// Why a call was refused. A refusal changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A span of so many frames is empty, too long, or reaches beyond physical addresses.
    BadSpan(Frame, u64),
    /// A span overlaps the one that begins with the second frame.
    SpansOverlap(Frame, Frame),
    /// The limit on the number of spans is reached.
    TooManySpans(Frame),
    /// The memory for a span's metadata is too small.
    MetadataTooSmall {
        /// Words of 4 bytes that are needed.
        needed: u64,
        /// Words of 4 bytes that are there.
        given: u64,
    },
    /// A frame is in no span.
    OutsideSpans(Frame),
    /// A frame is given in twice.
    AlreadyGiven(Frame),
    /// A frame to take out is allocated, or was never given in.
    InUse {
        /// The frame in question.
        frame: Frame,
        /// Whether the frame is allocated; otherwise it was never given in.
        allocated: bool,
    },
    /// Too few frames are unreserved to take so many out.
    SetAside {
        /// Number of frames requested.
        count: u64,
        /// Free frames that are not reserved.
        unreserved: u64,
    },
    /// The order exceeds the largest block.
    OrderTooLarge {
        /// The order requested.
        order: u32,
        /// The largest order there is.
        most: u32,
    },
    /// The frame's number is not a multiple of the size of a block of this order.
    Misaligned(Frame, u32),
    /// A frame already has the most owners.
    TooManyOwners(Frame),
    /// The frame to free was never given in.
    NotGiven(Frame),
    /// The frame to free is free.
    AlreadyFree(Frame),
    /// The frame to free is subdivided: its pieces are freed.
    Subdivided(Frame),
    /// The frame to free is allocated, but as another block or part of one.
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

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BadSpan(first, count) => write!(
                f,
                "the span of {count} frames from {first} cannot be managed: a span has 1 to 2^32 - \
                 2 frames below 2^52 bytes; split or cut it"
            ),
            Self::SpansOverlap(first, other) => write!(
                f,
                "the span from {first} meets the one from {other}; add each frame's span once"
            ),
            Self::TooManySpans(first) => write!(
                f,
                "the span from {first} is one too many, there can be {MOST_SPANS}; join banks, holes included"
            ),
            Self::MetadataTooSmall { needed, given } => write!(
                f,
                "a span's metadata needs {needed} words of 4 bytes, but was given {given}"
            ),
            Self::OutsideSpans(frame) => {
                write!(f, "{frame} is in no span; add its bank first")
            }
            Self::AlreadyGiven(frame) => {
                write!(f, "{frame} was given in before; give in each frame once")
            }
            Self::InUse { frame, allocated } => {
                let why = if allocated {
                    "is allocated; free it first"
                } else {
                    "is not the allocator's: the boot keeps something there"
                };
                write!(f, "{frame} {why}")
            }
            Self::SetAside { count, unreserved } => write!(
                f,
                "{count} frames cannot be taken out: {unreserved} of the free ones are not set aside"
            ),
            Self::OrderTooLarge { order, most } => {
                write!(f, "there are no blocks of order {order}, only up to {most}")
            }
            Self::Misaligned(frame, order) => write!(
                f,
                "no block of order {order} begins at {frame}, which is not a multiple of 2^{order}"
            ),
            Self::TooManyOwners(frame) => {
                write!(f, "{frame} has as many owners as can be counted")
            }
            Self::NotGiven(frame) => {
                write!(f, "{frame} was freed, but never given to the allocator")
            }
            Self::AlreadyFree(frame) => write!(f, "{frame} was freed twice"),
            Self::Subdivided(frame) => write!(
                f,
                "{frame} was used as a whole, but is subdivided: its pieces are used one by one"
            ),
            Self::OtherBlock {
                frame,
                order,
                head,
                allocated,
            } => write!(
                f,
                "{frame} was freed as a block of order {order}, but is in the block of order {allocated} allocated at {head}"
            ),
        }
    }
}

impl core::error::Error for FrameError {}
