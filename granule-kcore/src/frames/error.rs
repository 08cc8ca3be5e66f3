//! Why the frame allocator refused something, in words.

use super::{Frame, MOST_SPANS};
use core::fmt;

/// Why a call was refused. Nothing has changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A span is empty, has too many frames, or reaches beyond physical addresses.
    BadSpan {
        /// The first frame of the refused span.
        first: Frame,
        /// Frames that were asked for.
        count: u64,
    },
    /// A span has frames that another one has.
    SpansOverlap {
        /// The first frame of the refused span.
        first: Frame,
        /// The first frame of the other span.
        other: Frame,
    },
    /// There is no room for one more span.
    TooManySpans {
        /// The first frame of the refused span.
        first: Frame,
    },
    /// The memory for a span's metadata is too small; both in words of 4 bytes.
    MetadataTooSmall {
        /// Words that are needed.
        needed: u64,
        /// Words that there are.
        given: u64,
    },
    /// A frame is in no span.
    OutsideSpans {
        /// The frame in question.
        frame: Frame,
    },
    /// A frame is given in a second time.
    AlreadyGiven {
        /// The frame in question.
        frame: Frame,
    },
    /// A frame to be taken out is allocated, or never was given in.
    InUse {
        /// The frame in question.
        frame: Frame,
        /// Whether the frame is allocated; otherwise it was never given in.
        allocated: bool,
    },
    /// So many frames cannot be taken out: the free ones are set aside.
    SetAside {
        /// Frames that were asked for.
        count: u64,
        /// Free frames that are not set aside.
        unreserved: u64,
    },
    /// No block is so large.
    OrderTooLarge {
        /// The order that was named.
        order: u32,
        /// The largest order there is.
        most: u32,
    },
    /// No block of that order begins at a frame with such a number.
    Misaligned {
        /// The frame in question.
        frame: Frame,
        /// The order that was named.
        order: u32,
    },
    /// A frame has as many owners as can be counted.
    TooManyOwners {
        /// The frame in question.
        frame: Frame,
    },
    /// The frame to free was never given in.
    NotGiven {
        /// The frame in question.
        frame: Frame,
    },
    /// The frame to free is free.
    AlreadyFree {
        /// The frame in question.
        frame: Frame,
    },
    /// The frame to free is allocated, but as (part of) another block.
    OtherBlock {
        /// The frame in question.
        frame: Frame,
        /// The order that was named.
        order: u32,
        /// The first frame of the block that is allocated.
        head: Frame,
        /// The order of that block.
        allocated: u32,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BadSpan { first, count } => write!(
                f,
                "the span of {count} frames from {first} cannot be managed: a span has 1 to 2^32 - 2 frames below 2^52 bytes; split or cut it"
            ),
            Self::SpansOverlap { first, other } => write!(
                f,
                "the span from {first} meets the one from {other}; add each frame's span once"
            ),
            Self::TooManySpans { first } => write!(
                f,
                "the span from {first} is one too many, there can be {MOST_SPANS}; join banks, holes included"
            ),
            Self::MetadataTooSmall { needed, given } => write!(
                f,
                "a span's metadata needs {needed} words of 4 bytes, but was given {given}"
            ),
            Self::OutsideSpans { frame } => {
                write!(f, "{frame} is in no span; add its bank first")
            }
            Self::AlreadyGiven { frame } => {
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
            Self::Misaligned { frame, order } => write!(
                f,
                "no block of order {order} begins at {frame}, which is not a multiple of 2^{order}"
            ),
            Self::TooManyOwners { frame } => {
                write!(f, "{frame} has as many owners as can be counted")
            }
            Self::NotGiven { frame } => {
                write!(f, "{frame} was freed, but never given to the allocator")
            }
            Self::AlreadyFree { frame } => write!(f, "{frame} was freed twice"),
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
