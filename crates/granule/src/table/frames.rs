//! Frames that are scattered in memory, for mapping one range to them in one call.
//!
//! The frames become parts of a map as the pass reaches them: consecutive frames are one part, so
//! they get blocks and contiguous groups where alignment allows. How a part is mapped is decided
//! in `plan`, and written in `map`.

use super::piece::Leaves;
use super::plan::{Part, Parts, Plan};
use super::stage::Stage;
use super::{PageTables, TableEnvironment, TableError};
use crate::arch::page_size::PageChoice;
use crate::arch::{Geometry, PhysicalAddress};

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
    /// Takes the first element.
    fn pop(&mut self) -> Option<FrameRun> {
        match self {
            Self::Single(frames) => {
                let (&first, rest) = frames.split_first()?;
                *frames = rest;
                Some(FrameRun { first, count: 1 })
            }
            Self::Runs(runs) => {
                let (run, rest) = runs.split_first()?;
                *runs = rest;
                Some(*run)
            }
        }
    }
}

/// The parts of a map to checked frames that a pass has not reached yet. Consecutive frames are one
/// part.
#[derive(Clone, Copy)]
pub(super) struct FrameParts<'a> {
    frames: Frames<'a>,
    /// The offset of the first of them.
    at: u64,
    leaves: Leaves,
    /// The encoded attributes.
    bits: u64,
}

impl FrameParts<'_> {
    /// Takes the next part.
    pub(super) fn take(&mut self, geometry: &Geometry) -> Option<Part> {
        let shift = geometry.page_size().shift();
        let FrameRun { first, count } = self.frames.pop()?;
        let from = self.at;
        let mut bytes = count << shift;
        loop {
            let mut rest = self.frames;
            match rest.pop() {
                Some(next) if next.count == 0 || next.first.0 == first.0 + bytes => {
                    bytes += next.count << shift;
                    self.frames = rest;
                }
                _ => break,
            }
        }
        self.at = from + bytes;
        let distance = first.0.wrapping_sub(from);
        Some(Part {
            from,
            to: self.at,
            plan: Plan::with_bits(geometry, distance, self.leaves, self.bits),
        })
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
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
        start: S::Input,
        frames: Frames<'_>,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        let mut pages: u64 = 0;
        let mut rest = frames;
        while let Some(run) = rest.pop() {
            pages = pages.saturating_add(run.count);
            self.check_output(run.first, run.count.saturating_mul(self.size().bytes()))?;
        }
        // A product that is cut off is still larger than every address space.
        let bytes = pages.saturating_mul(self.size().bytes()) & !(self.size().bytes() - 1);
        let (at, _) = self.offsets(start, bytes)?;
        let mapped = self.map_parts(Parts::Frames(FrameParts {
            frames,
            at,
            leaves,
            bits: S::encode(&attributes, &self.geometry),
        }));
        self.publish();
        mapped
    }
}
