//! Mapping one range to frames that are scattered in memory, in one call.
//!
//! The frames become pieces of a map as the pass reaches them: consecutive frames are one piece, so
//! they get blocks and contiguous groups where alignment allows. How a piece is mapped is decided
//! in [`plan`](super::plan), and written in [`map`](super::map).

use super::piece::Leaves;
use super::plan::{Cursor, Part, Plan};
use super::{PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Page, PageSize};
use crate::arch::{Attributes, Geometry, PhysicalAddress, VirtualAddress};

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
    const fn pop(&mut self) -> Option<(u64, u64)> {
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
    frames: Frames<'a>,
    /// The offset of the first of them.
    at: u64,
    leaves: Leaves,
    /// The encoded attributes.
    bits: u64,
}

impl FramesLeft<'_> {
    /// The next run of frames, to map.
    pub(super) fn take(&mut self, geometry: &Geometry) -> Option<Part> {
        let (first, bytes) = self.frames.pop_run(geometry.page_size())?;
        let (from, to) = (self.at, self.at + bytes);
        self.at = to;
        let distance = first.wrapping_sub(from);
        let plan = Plan::with_bits(geometry, distance, self.leaves, self.bits);
        Some(Part { from, to, plan })
    }
}

impl<P: Page, E: TableEnvironment> PageTables<P, E> {
    /// Maps the pages from `start` on to `frames`, one after the other, all or none. Every table is
    /// written once, and one pair of barriers serves all frames. Consecutive frames get the largest
    /// leaves that `leaves` and their alignment allow.
    ///
    /// ```
    /// use granule::arch::{Attributes, Page4K, Permissions, PhysicalAddress, VirtualAddress};
    /// use granule::table::{Frames, Leaves, PageTables, TableEnvironment, TableError};
    ///
    /// fn buffer<E: TableEnvironment>(
    ///     tables: &mut PageTables<Page4K, E>,
    ///     start: VirtualAddress,
    /// ) -> Result<(), TableError> {
    ///     let frames = [0x8004_0000, 0x8001_3000, 0x9000_0000].map(PhysicalAddress);
    ///     let attributes = Attributes::normal(Permissions::READ_WRITE);
    ///     tables.map_frames(start, Frames::Single(&frames), attributes, Leaves::LARGEST)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`map`](Self::map). Nothing is mapped then.
    pub fn map_frames(
        &mut self,
        start: VirtualAddress,
        frames: Frames<'_>,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        let cursor = self.over_frames(start, frames, attributes, leaves)?;
        let mapped = self.map_cursor(cursor);
        self.publish();
        mapped
    }

    /// Checks the frames, and returns a cursor over them.
    pub(super) fn over_frames<'a>(
        &self,
        start: VirtualAddress,
        frames: Frames<'a>,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Result<Cursor<'a, P>, TableError> {
        let mut pages: u64 = 0;
        let mut rest = frames;
        while let Some((first, count)) = rest.pop() {
            pages = pages.saturating_add(count);
            self.check_output(
                PhysicalAddress(first),
                count.saturating_mul(P::SIZE.bytes()),
            )?;
        }
        // A product that is cut off is still larger than every address space.
        let bytes = pages.saturating_mul(P::SIZE.bytes()) & !(P::SIZE.bytes() - 1);
        let (at, _) = self.offsets(start, bytes)?;
        let left = FramesLeft {
            frames,
            at,
            leaves,
            bits: attributes.encode(&self.geometry),
        };
        Ok(Cursor::over_frames(left, self.geometry))
    }
}
