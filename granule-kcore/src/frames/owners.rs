//! Frames that have several owners, each allocated by itself: one more, one less, and free without
//! any.

use super::metadata::PageMetadata;
use super::span::Span;
use super::{Frame, FrameError, Frames, why_not_freed};

impl<'m> Frames<'m> {
    /// One owner more for each of `count` frames from `first`, which must be allocated each by
    /// itself (order 0).
    ///
    /// # Errors
    ///
    /// When one of them is not, or has as many owners as can be counted. Nothing has changed then,
    /// but that it was [refused](Self::refused) is counted.
    pub fn share(&mut self, first: Frame, count: u64) -> Result<(), FrameError> {
        let mut done = 0;
        let shared = self.each_piece(first, count, |span, offset, piece| {
            span.share(offset, piece).map_err(|at| {
                let frame = Frame(span.number(at));
                if span.entry(at) == (PageMetadata::Allocated { order: 0 }) {
                    FrameError::TooManyOwners { frame }
                } else {
                    why_not_freed(span, at, 0)
                }
            })?;
            done += u64::from(piece);
            Ok(())
        });
        if shared.is_err() {
            // Just shared, so none of them is refused, nor becomes free.
            let _ = self.release(first, done, |_, _| ());
        }
        shared
    }

    /// One owner less for each of `count` frames from `first`, which must be allocated each by
    /// itself (order 0); those without any become free, and `freed` is told of each run of them.
    ///
    /// # Errors
    ///
    /// When one of them is not: those before it are released, and that it was
    /// [refused](Self::refused) is counted.
    pub fn release(
        &mut self,
        first: Frame,
        count: u64,
        mut freed: impl FnMut(Frame, u64),
    ) -> Result<(), FrameError> {
        let mut gone = 0;
        let released = self.each_piece(first, count, |span, offset, piece| {
            let start = span.first();
            let released = span.release(offset, piece, |at, count| {
                gone += u64::from(count);
                freed(Frame(start + u64::from(at)), u64::from(count));
            });
            released.map_err(|at| why_not_freed(span, at, 0))
        });
        self.allocated -= gone;
        released
    }

    /// Whether `first`, allocated by itself, has more than one owner, and of how many among `count`
    /// frames from it on the same holds; fewer where it would take longer to tell.
    pub fn sharing(&self, first: Frame, count: u32) -> (bool, u32) {
        self.locate(first)
            .ok()
            .and_then(|(index, offset)| self.spans.get(index)?.sharing(offset, count))
            .unwrap_or((false, 1))
    }

    /// Calls `what` with each span's piece of `count` frames from `first`; what it refuses is
    /// counted.
    fn each_piece(
        &mut self,
        first: Frame,
        count: u64,
        mut what: impl FnMut(&mut Span<'m>, u32, u32) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let end = first.0.saturating_add(count);
        let mut at = first.0;
        let mut result = Ok(());
        while at < end && result.is_ok() {
            let frame = Frame(at);
            result = self.locate(frame).and_then(|(index, offset)| {
                let outside = FrameError::OutsideSpans { frame };
                let span = self.spans.get_mut(index).ok_or(outside)?;
                let piece = (span.end().min(end) - at) as u32;
                at += u64::from(piece);
                what(span, offset, piece)
            });
        }
        if result.is_err() {
            self.refused = self.refused.saturating_add(1);
        }
        result
    }
}
