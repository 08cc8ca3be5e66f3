//! Reference counts of single frames: adding owners, removing owners, and freeing frames without any.

use super::metadata::PageMetadata;
use super::span::Span;
use super::{Frame, FrameError, Frames, why_not_freed};

impl<'m> Frames<'m> {
    /// Adds an owner to each of `count` frames from `first`, which must all be allocated as single
    /// frames (order 0).
    ///
    /// # Errors
    ///
    /// One of them is not, or already has the most owners. Nothing has changed then, except that the
    /// [refusal](Self::refused) is counted.
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
            // These frames were just shared, so none is refused or becomes free.
            let _ = self.release(first, done, |_, _| ());
        }
        shared
    }

    /// Removes an owner from each of `count` frames from `first`, which must all be allocated as
    /// single frames (order 0). Frames without owners become free, and `freed` is called with each run
    /// of them.
    ///
    /// # Errors
    ///
    /// One of them is not allocated so. The frames before it are released, and the
    /// [refusal](Self::refused) is counted.
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

    /// Removes an owner of `frame` if it is a single frame with others, which then keep it: what a copy on
    /// write leaves behind, without the search for runs. Otherwise nothing has changed, and
    /// [`release`](Self::release) does it or returns the reason why not.
    #[must_use]
    pub fn leave(&mut self, frame: Frame) -> bool {
        self.locate(frame).is_ok_and(|(index, offset)| {
            let span = self.spans.get_mut(index);
            span.is_some_and(|span| span.leave(offset))
        })
    }

    /// Whether the single frame `frame` has more than one owner.
    pub fn is_shared(&self, frame: Frame) -> bool {
        let owners = self.locate(frame).ok().and_then(|(index, offset)| {
            let span = self.spans.get(index)?;
            span.further_owners(offset)
        });
        owners.is_some_and(|owners| owners > 0)
    }

    /// Whether the single frame `first` has more than one owner, and for how many of the `count`
    /// frames from `first` on the answer is the same. The count may be too low where an exact one
    /// would take longer.
    pub fn sharing(&self, first: Frame, count: u32) -> (bool, u32) {
        self.locate(first)
            .ok()
            .and_then(|(index, offset)| self.spans.get(index)?.sharing(offset, count))
            .unwrap_or((false, 1))
    }

    /// Calls `what` with each span's part of the `count` frames from `first`; a refusal is counted.
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
