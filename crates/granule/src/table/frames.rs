//! Frames that are scattered in memory, for mapping one range to them in one call.
//!
//! The frames become pieces of a map as the pass reaches them: consecutive frames are one piece, so
//! they get blocks and contiguous groups where alignment allows. How a piece is mapped is decided
//! in `plan`, and written in `map`.

use super::piece::Leaves;
use crate::arch::PhysicalAddress;
use crate::arch::page_size::PageSize;

/// Frames of one page that follow each other in physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// The first frame, a multiple of the page size.
    pub first: PhysicalAddress,
    /// The number of frames.
    pub count: u64,
}

/// The frames of a range, in the order of its addresses.
///
/// Slices, because a map looks at the frames twice and must find the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "code outside makes the values")]
pub enum Frames<'a> {
    /// One frame for each page.
    Single(&'a [PhysicalAddress]),
    /// Runs of frames.
    Runs(&'a [FrameRun]),
}

impl Frames<'_> {
    /// Takes the first element, as its first address and its number of frames.
    pub(super) const fn pop(&mut self) -> Option<(u64, u64)> {
        match self {
            Self::Single(frames) => match frames.split_first() {
                Some((first, rest)) => {
                    *frames = rest;
                    Some((first.0, 1))
                }
                None => None,
            },
            Self::Runs(runs) => match runs.split_first() {
                Some((run, rest)) => {
                    *runs = rest;
                    Some((run.first.0, run.count))
                }
                None => None,
            },
        }
    }

    /// Takes the longest run of consecutive frames: its first address and its bytes.
    fn pop_run(&mut self, size: PageSize) -> Option<(u64, u64)> {
        let (first, count) = self.pop()?;
        let mut bytes = count << size.shift();
        loop {
            let mut rest = *self;
            match rest.pop() {
                Some((next, count)) if next == first + bytes || count == 0 => {
                    bytes += count << size.shift();
                    *self = rest;
                }
                _ => return Some((first, bytes)),
            }
        }
    }
}

/// Frames that a pass over them has not reached yet. They were checked.
#[derive(Clone, Copy)]
pub(super) struct FramesLeft<'a> {
    pub(super) frames: Frames<'a>,
    /// The offset of the first of them.
    pub(super) at: u64,
    pub(super) leaves: Leaves,
    /// The encoded attributes.
    pub(super) bits: u64,
}

impl FramesLeft<'_> {
    /// The next run of frames: its first offset and the one behind it, and its first address.
    pub(super) fn take(&mut self, size: PageSize) -> Option<(u64, u64, u64)> {
        let (first, bytes) = self.frames.pop_run(size)?;
        let (from, to) = (self.at, self.at + bytes);
        self.at = to;
        Some((from, to, first))
    }
}
