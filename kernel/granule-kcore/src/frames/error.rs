//! The errors of the frame allocator, and their text.

use super::{Frame, MOST_SPANS};
use thiserror::Error;

/// Why a call was refused. A refusal changes nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum FrameError {
    #[error(
        "the span of {1} frames from {0} cannot be managed: a span has 1 to 2^32 - 2 frames below 2^52 bytes; split or cut it"
    )]
    BadSpan(Frame, u64),
    #[error("the span from {0} meets the one from {1}; add each frame's span once")]
    SpansOverlap(Frame, Frame),
    #[error(
        "the span from {0} is one too many, there can be {MOST_SPANS}; join banks, holes included"
    )]
    TooManySpans(Frame),
    #[error("a span's metadata needs {needed} words of 4 bytes, but was given {given}")]
    MetadataTooSmall { needed: u64, given: u64 },
    #[error("{0} is in no span; add its bank first")]
    OutsideSpans(Frame),
    #[error("{0} was given in before; give in each frame once")]
    AlreadyGiven(Frame),
    #[error("{frame} {}", in_use(*.allocated))]
    InUse { frame: Frame, allocated: bool },
    #[error("{count} frames cannot be taken out: {unreserved} of the free ones are not set aside")]
    SetAside { count: u64, unreserved: u64 },
    #[error("there are no blocks of order {order}, only up to {most}")]
    OrderTooLarge { order: u32, most: u32 },
    #[error("no block of order {1} begins at {0}, which is not a multiple of 2^{1}")]
    Misaligned(Frame, u32),
    #[error("{0} has as many owners as can be counted")]
    TooManyOwners(Frame),
    #[error("{0} was freed, but never given to the allocator")]
    NotGiven(Frame),
    #[error("{0} was freed twice")]
    AlreadyFree(Frame),
    #[error("{0} was used as a whole, but is subdivided: its pieces are used one by one")]
    Subdivided(Frame),
    #[error(
        "{frame} was freed as a block of order {order}, but is in the block of order {allocated} allocated at {head}"
    )]
    OtherBlock {
        frame: Frame,
        order: u32,
        head: Frame,
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
