//! Reference counts of single frames: adding owners, removing owners, and freeing frames without any.

use super::metadata::PageMetadata;
use super::span::Span;
use super::{Frame, FrameError, Frames, why_not_freed};

impl<'m> Frames<'m> {
    /// Adds an owner to each of `count` frames from `first`, which must all be allocated as single
    /// frames (order 0). Errors: one of them is not, or already has the most owners. Nothing has changed then,
    /// except that the [refusal](Self::refused) is counted.
    pub fn share(&mut self, first: Frame, count: u64) -> Result<(), FrameError> {
        let mut done = 0;
        let shared = self.each_counted(first, count, |span, offset, piece| {
            span.share(offset, piece).map_err(|at| {
                let frame = Frame(span.number(at));
                if span.entry(at) == (PageMetadata::Allocated { order: 0 }) {
                    FrameError::TooManyOwners(frame)
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
    /// of them. Errors: one of them is not allocated so. The frames before it are released, and the
    /// [refusal](Self::refused) is counted.
    pub fn release(
        &mut self,
        first: Frame,
        count: u64,
        mut freed: impl FnMut(Frame, u64),
    ) -> Result<(), FrameError> {
        let mut gone = 0;
        let released = self.each_counted(first, count, |span, offset, piece| {
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
        self.span_of_mut(frame)
            .is_ok_and(|(span, offset)| span.leave(offset))
    }

    /// Whether the single frame `frame` has more than one owner.
    pub fn is_shared(&self, frame: Frame) -> bool {
        self.further_owners(frame).is_some_and(|owners| owners > 0)
    }

    /// Whether the single frame `first` has more than one owner, and for how many of the `count`
    /// frames from `first` on the answer is the same. The count may be too low where an exact one
    /// would take longer.
    pub fn sharing(&self, first: Frame, count: u32) -> (bool, u32) {
        let sharing = self.span_of(first).ok();
        let sharing = sharing.and_then(|(span, offset)| span.sharing(offset, count));
        sharing.unwrap_or((false, 1))
    }

    /// The owners, beside the first, of a single frame that is not subdivided.
    pub(super) fn further_owners(&self, frame: Frame) -> Option<u32> {
        let (span, offset) = self.span_of(frame).ok()?;
        span.further_owners(offset)
    }

    /// Calls `what` with each span's part of the `count` frames from `first`; a refusal is counted.
    fn each_counted(
        &mut self,
        first: Frame,
        count: u64,
        what: impl FnMut(&mut Span<'m>, u32, u32) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let result = self.each_part(first, count, what);
        self.refused = self.refused.saturating_add(u64::from(result.is_err()));
        result
    }
}
