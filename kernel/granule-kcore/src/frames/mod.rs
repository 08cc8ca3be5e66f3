//! The page allocator: a buddy allocator of physical page frames. It takes over from the early
//! allocator (memblock) once the linear map exists.
//!
//! [`Frames`] manages a few spans of frame numbers (`span`). Each frame has page metadata
//! ([`metadata`]) of 12 bytes in RAM that the caller picks; the metadata is initialised on first
//! use. A single frame may have several owners. [`tables`] hands frames to page tables, and
//! [`subdivide`] makes smaller pieces of frames. A frame is a number here: nothing touches its memory.
//!
//! A [`Frames`] is for one CPU at a time: code that shares one takes a lock around it.

mod error;
pub mod metadata;
mod owners;
mod span;
pub mod spans;
pub mod subdivide;
pub mod tables;
#[cfg(test)]
mod tests;

pub use error::FrameError;

use core::fmt;
use granule::arch::{PageSize, PhysicalAddress};
use metadata::{PageMetadata, Word, metadata_words};
use span::{Block, Span};

/// Log2 of the bytes of the largest block: 16 GiB, the largest leaf without the 52-bit formats (16
/// contiguous blocks of 1 GiB with 4K pages, 32 of 512 MiB with 64K). Larger blocks would have no use;
/// smaller ones would have more heads, and so more metadata to write for free memory.
const MAX_BLOCK_SHIFT: u32 = 34;

/// The most bits of a physical address.
const PHYSICAL_BITS: u32 = 52;

/// The most spans. Nearby banks can share a span, because the metadata of a hole is never touched.
pub const MOST_SPANS: usize = 128;

/// The largest order of a block with this page size: 22, 20 or 18.
pub const fn max_order(page_size: PageSize) -> u32 {
    MAX_BLOCK_SHIFT - page_size.shift()
}

/// The number of a page frame: its physical address, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u64);

impl Frame {
    /// The frame that `address` lies in.
    pub const fn containing(address: PhysicalAddress, page_size: PageSize) -> Self {
        Self(address.0 >> page_size.shift())
    }

    /// The frame's first address.
    pub const fn address(self, page_size: PageSize) -> PhysicalAddress {
        PhysicalAddress(self.0 << page_size.shift())
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {:#x}", self.0)
    }
}

/// The frames of RAM: free, allocated, and how many of each.
pub struct Frames<'m> {
    page_size: PageSize,
    /// Ascending; the first `span_count` are used.
    spans: [Span<'m>; MOST_SPANS],
    span_count: usize,
    total: u64,
    allocated: u64,
    reserved: u64,
    refused: u64,
}

impl<'m> Frames<'m> {
    /// An allocator without frames.
    pub const fn new(page_size: PageSize) -> Self {
        Self {
            page_size,
            spans: [const { Span::EMPTY }; MOST_SPANS],
            span_count: 0,
            total: 0,
            allocated: 0,
            reserved: 0,
            refused: 0,
        }
    }

    /// Sets the page size of an allocator that has no span yet.
    pub fn begin(&mut self, page_size: PageSize) {
        if self.span_count == 0 {
            self.page_size = page_size;
        }
    }

    /// Adds a span for the `count` frames from `first`, with their metadata in `memory`. That memory
    /// must have [`metadata_bytes`](metadata::metadata_bytes)`(count)` bytes and may hold anything.
    /// The frames are not given in yet. Blocks do not cross from one span into the next. Errors: the span is
    /// empty, has `2^32 - 1` frames or more, reaches beyond the 52 bits of physical addresses, overlaps another
    /// span, or exceeds the number of spans; or `memory` is too small.
    pub fn add_span(
        &mut self,
        first: Frame,
        count: u64,
        memory: &'m mut [Word],
    ) -> Result<(), FrameError> {
        let limit = 1u64 << (PHYSICAL_BITS - self.page_size.shift());
        let bad = FrameError::BadSpan(first, count);
        let frames = u32::try_from(count).map_err(|_| bad)?;
        if frames == 0 || frames == u32::MAX {
            return Err(bad);
        }
        match first.0.checked_add(count) {
            Some(end) if end <= limit => {}
            _ => return Err(bad),
        }
        // The new span's place in the ascending order. It must not overlap its neighbours there.
        let place = self.spans().partition_point(|span| span.first() < first.0);
        let before = place
            .checked_sub(1)
            .and_then(|before| self.spans().get(before));
        let before = before.filter(|span| span.end() > first.0);
        let after = self.spans().get(place);
        let after = after.filter(|span| span.first() < first.0 + count);
        if let Some(other) = before.or(after) {
            let other = Frame(other.first());
            return Err(FrameError::SpansOverlap(first, other));
        }
        if self.span_count == MOST_SPANS {
            return Err(FrameError::TooManySpans(first));
        }
        let given = memory.len() as u64;
        let span = Span::new(first.0, frames, max_order(self.page_size), memory).ok_or(
            FrameError::MetadataTooSmall {
                needed: metadata_words(count),
                given,
            },
        )?;
        // Rotates an unused slot to `place`, where it is overwritten.
        if let Some(tail) = self.spans.get_mut(place..=self.span_count) {
            tail.rotate_right(1);
            if let Some(slot) = tail.first_mut() {
                *slot = span;
            }
        }
        self.span_count += 1;
        Ok(())
    }

    /// Gives in the `count` frames from `start`, which become free. They may cover several adjacent
    /// spans. Errors: a frame is in no span, or was given in before. Nothing has changed then.
    pub fn add_range(&mut self, start: Frame, count: u64) -> Result<(), FrameError> {
        let outside = FrameError::OutsideSpans(start);
        start.0.checked_add(count).ok_or(outside)?;
        self.each_part(start, count, |span, offset, part| {
            let given = span.first_given(offset, part);
            given.map_or(Ok(()), |given| {
                Err(FrameError::AlreadyGiven(Frame(span.number(given))))
            })
        })?;
        self.each_part(start, count, |span, offset, part| {
            span.add(offset, part);
            Ok(())
        })?;
        self.total += count;
        Ok(())
    }

    /// Takes the `count` frames from `start` out, all at once: they are not managed until they are
    /// [given in](Self::add_range) again. Errors: a frame is allocated, was never given in or is in no span, or
    /// the [reserved](Self::reserve) frames need some of these. Nothing has changed then.
    pub fn take_out(&mut self, start: Frame, count: u64) -> Result<(), FrameError> {
        let outside = FrameError::OutsideSpans(start);
        start.0.checked_add(count).ok_or(outside)?;
        self.each_part(start, count, |span, offset, part| {
            let used = span.first_not_free(offset, part);
            used.map_or(Ok(()), |(used, allocated)| {
                let frame = Frame(span.number(used));
                Err(FrameError::InUse { frame, allocated })
            })
        })?;
        let unreserved = self.unreserved();
        if count > unreserved {
            return Err(FrameError::SetAside { count, unreserved });
        }
        self.each_part(start, count, |span, offset, part| {
            span.remove(offset, part);
            Ok(())
        })?;
        self.total -= count;
        Ok(())
    }

    /// Calls `what` with each span's part of the `count` frames from `first`, up to the first error.
    fn each_part(
        &mut self,
        first: Frame,
        count: u64,
        mut what: impl FnMut(&mut Span<'m>, u32, u32) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let end = first.0.saturating_add(count);
        let mut at = first.0;
        while at < end {
            let (span, offset) = self.span_of_mut(Frame(at))?;
            let part = (span.end().min(end) - at) as u32;
            at += u64::from(part);
            what(span, offset, part)?;
        }
        Ok(())
    }

    /// Whether all of the `count` frames from `start` are in spans; `None` if only some are.
    pub fn have_room_for(&self, start: Frame, count: u64) -> Option<bool> {
        let end = start.0.saturating_add(count);
        let inside: u64 = self
            .spans()
            .iter()
            .map(|span| {
                let (from, to) = (span.first().max(start.0), span.end().min(end));
                to.saturating_sub(from)
            })
            .sum();
        match inside {
            0 => Some(false),
            _ if inside == count => Some(true),
            _ => None,
        }
    }

    /// Whether `frame` was given in.
    pub fn is_given(&self, frame: Frame) -> bool {
        self.block_at(frame).is_some()
    }

    /// Whether `frame` is free.
    pub fn is_free(&self, frame: Frame) -> bool {
        self.block_at(frame).is_some_and(|block| block.free)
    }

    fn block_at(&self, frame: Frame) -> Option<Block> {
        let (span, offset) = self.span_of(frame).ok()?;
        span.block_of(offset)
    }

    /// Calls `what` with the first frame and the order of each free block.
    pub fn each_free(&self, mut what: impl FnMut(Frame, u32)) {
        for span in self.spans() {
            span.each_free(&mut |number, order| what(Frame(number), order));
        }
    }

    /// Allocates a block of `2^order` frames, whose first number is a multiple of `2^order`. `None` if
    /// there is no such block, or if it is needed for [reserved](Self::reserve) frames. Its memory may
    /// hold anything.
    pub fn allocate(&mut self, order: u32) -> Option<Frame> {
        if order > max_order(self.page_size) || self.unreserved() < 1 << order {
            return None;
        }
        let frame = self.take(order)?;
        self.allocated += 1 << order;
        Some(frame)
    }

    /// As [`allocate`](Self::allocate), as single frames: each may be shared and released by itself. What
    /// is done to all of them together takes as long as for one frame, as long as it was never done to a part.
    pub fn allocate_singles(&mut self, order: u32) -> Option<Frame> {
        let frame = self.allocate(order)?;
        if let Ok((span, offset)) = self.span_of_mut(frame) {
            span.make_run(offset, order);
        }
        Some(frame)
    }

    /// Allocates the single frame `frame`; false if it is not free, or is needed for
    /// [reserved](Self::reserve) frames. Its memory may hold anything.
    #[must_use]
    pub fn allocate_exact(&mut self, frame: Frame) -> bool {
        if self.unreserved() == 0 {
            return false;
        }
        let taken = self
            .span_of_mut(frame)
            .is_ok_and(|(span, offset)| span.take_exactly(offset));
        self.allocated += u64::from(taken);
        taken
    }

    /// Allocates a single frame: number `index` of an aligned group of `2^order` free frames, if there
    /// is such a group. The rest of the group stays free, so that the caller can get the next frame
    /// with [`allocate_exact`](Self::allocate_exact), unless another CPU is faster.
    pub fn allocate_in_group(&mut self, order: u32, index: u64) -> Option<Frame> {
        if order > max_order(self.page_size) || index >> order != 0 || self.unreserved() == 0 {
            return None;
        }
        let (place, from) = self.best_fit(order)?;
        let span = self.spans.get_mut(place)?;
        let offset = span.first_free(from)?.checked_add(index as u32)?;
        let taken = span.take_exactly(offset);
        self.allocated += u64::from(taken);
        taken.then_some(Frame(span.number(offset)))
    }

    /// Frees a block of `2^order` frames that [`allocate`](Self::allocate) returned. Errors: no block of that
    /// order is allocated at `frame`. Nothing has changed then, except that the [refusal](Self::refused) is
    /// counted.
    pub fn free(&mut self, frame: Frame, order: u32) -> Result<(), FrameError> {
        let freed = self.try_free(frame, order);
        if freed.is_err() {
            self.refused = self.refused.saturating_add(1);
        }
        freed
    }

    fn try_free(&mut self, frame: Frame, order: u32) -> Result<(), FrameError> {
        let most = max_order(self.page_size);
        if order > most {
            return Err(FrameError::OrderTooLarge { order, most });
        }
        let (span, offset) = self.span_of_mut(frame)?;
        if span.entry(offset) != (PageMetadata::Allocated { order }) {
            return Err(why_not_freed(span, offset, order));
        }
        span.give(offset, order);
        self.allocated -= 1 << order;
        Ok(())
    }

    /// Reserves `count` frames for [`take_reserved`](Self::take_reserved): other allocations leave
    /// that many frames free. Returns false, and changes nothing, if there are not enough.
    #[must_use]
    pub fn reserve(&mut self, count: u64) -> bool {
        let enough = count <= self.unreserved();
        if enough {
            self.reserved += count;
        }
        enough
    }

    /// Releases the reservation of `count` frames.
    pub fn unreserve(&mut self, count: u64) {
        self.reserved = self.reserved.saturating_sub(count);
    }

    /// Allocates one run of between one and `most` frames out of the [reserved](Self::reserve) ones,
    /// each to be freed by itself (order 0). Returns the first frame and the count. `None` only if no
    /// frame is reserved or `most` is 0, because any free block yields single frames.
    pub fn take_reserved(&mut self, most: u64) -> Option<(Frame, u64)> {
        let wanted = most.min(self.reserved).checked_ilog2()?;
        let wanted = wanted.min(max_order(self.page_size));
        let order = (0..=wanted)
            .rev()
            .find(|order| self.best_fit(*order).is_some())?;
        let frame = self.take(order)?;
        if order > 0
            && let Ok((span, offset)) = self.span_of_mut(frame)
        {
            span.split(offset, order);
        }
        let count = 1 << order;
        self.allocated += count;
        self.reserved -= count;
        Some((frame, count))
    }

    /// The page size of the frames.
    pub const fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Frames that were given in.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Frames that are allocated now.
    pub const fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Frames that are free now, reserved ones included.
    pub const fn free_frames(&self) -> u64 {
        self.total - self.allocated
    }

    /// Free frames that are reserved.
    pub const fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Refused calls of [`free`](Self::free): any other number than 0 is a bug of the kernel.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Frames whose metadata was initialised so far.
    pub fn touched(&self) -> u64 {
        self.spans().iter().map(Span::touched).sum()
    }

    const fn unreserved(&self) -> u64 {
        self.free_frames() - self.reserved
    }

    fn spans(&self) -> &[Span<'m>] {
        self.spans.get(..self.span_count).unwrap_or(&[])
    }

    /// The span that `frame` is in, and the frame's offset there.
    fn span_of(&self, frame: Frame) -> Result<(&Span<'m>, u32), FrameError> {
        let (index, offset) = self.locate(frame)?;
        let span = self.spans.get(index);
        Ok((span.ok_or(FrameError::OutsideSpans(frame))?, offset))
    }

    /// As [`span_of`](Self::span_of), mutably.
    fn span_of_mut(&mut self, frame: Frame) -> Result<(&mut Span<'m>, u32), FrameError> {
        let (index, offset) = self.locate(frame)?;
        let span = self.spans.get_mut(index);
        Ok((span.ok_or(FrameError::OutsideSpans(frame))?, offset))
    }

    /// The index of the span that `frame` is in, and the frame's offset there.
    fn locate(&self, frame: Frame) -> Result<(usize, u32), FrameError> {
        let spans = self.spans();
        let after = spans.partition_point(|span| span.first() <= frame.0);
        let index = after.wrapping_sub(1);
        spans
            .get(index)
            .and_then(|span| span.offset(frame.0))
            .map(|offset| (index, offset))
            .ok_or(FrameError::OutsideSpans(frame))
    }

    /// The span with the smallest free block of at least `order`, and that block's order.
    fn best_fit(&self, order: u32) -> Option<(usize, u32)> {
        let mut best: Option<(usize, u32)> = None;
        for (index, span) in self.spans().iter().enumerate() {
            match span.best_fit(order) {
                Some(found) if found == order => return Some((index, found)),
                Some(found) if best.is_none_or(|(_, best)| found < best) => {
                    best = Some((index, found));
                }
                _ => {}
            }
        }
        best
    }

    /// Marks a block of `order` allocated; the caller updates the counters.
    fn take(&mut self, order: u32) -> Option<Frame> {
        let (index, from) = self.best_fit(order)?;
        let span = self.spans.get_mut(index)?;
        let offset = span.take(order, from)?;
        Some(Frame(span.number(offset)))
    }
}

impl fmt::Debug for Frames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("page_size", &self.page_size)
            .field("spans", &self.span_count)
            .field("total", &self.total)
            .field("allocated", &self.allocated)
            .field("reserved", &self.reserved)
            .finish_non_exhaustive()
    }
}

/// The reason why the block of `order` at `offset` cannot be freed.
#[cold]
fn why_not_freed(span: &Span<'_>, offset: u32, order: u32) -> FrameError {
    let frame = Frame(span.number(offset));
    if frame.0 & ((1 << order) - 1) != 0 {
        return FrameError::Misaligned(frame, order);
    }
    if span.record(offset).is_some() {
        return FrameError::Subdivided(frame);
    }
    match span.block_of(offset) {
        None => FrameError::NotGiven(frame),
        Some(Block { free: true, .. }) => FrameError::AlreadyFree(frame),
        Some(Block {
            offset: head,
            order: allocated,
            ..
        }) => FrameError::OtherBlock {
            frame,
            order,
            head: Frame(span.number(head)),
            allocated,
        },
    }
}
