//! The metadata of subdivided frames in [`Frames`]: the mark, and the place of the record. While a
//! frame has the mark, nothing shares, releases or frees it as a whole. A frame of records has the
//! mark too, without a record.

use super::RecordAt;
use super::records::NONE;
use crate::frames::{Frame, Frames};

impl Frames<'_> {
    /// Marks a single frame with one owner as subdivided, or with [`NONE`] as a frame of records. A
    /// frame that is none stays as it is.
    pub(super) fn mark_subdivided(&mut self, frame: Frame, at: RecordAt) {
        if let Ok((index, offset)) = self.locate(frame)
            && let Some(span) = self.spans.get_mut(index)
        {
            span.subdivide(offset, at.0);
        }
    }

    /// Whether a frame is subdivided.
    pub fn is_subdivided(&self, frame: Frame) -> bool {
        self.record_of(frame).is_some()
    }

    /// The record of a frame; `None` unless it is subdivided.
    pub(super) fn record_of(&self, frame: Frame) -> Option<RecordAt> {
        let (index, offset) = self.locate(frame).ok()?;
        let at = self.spans.get(index)?.record(offset)?;
        (at != NONE).then_some(RecordAt(at))
    }

    /// The owners, beside the first, of a single frame that is not subdivided.
    pub(super) fn further_owners(&self, frame: Frame) -> Option<u32> {
        let (index, offset) = self.locate(frame).ok()?;
        self.spans.get(index)?.further_owners(offset)
    }

    /// Makes the marked ones of `count` frames single frames with one owner again.
    pub(super) fn unite(&mut self, first: Frame, count: u64) {
        for number in first.0..first.0 + count {
            if let Ok((index, offset)) = self.locate(Frame(number))
                && let Some(span) = self.spans.get_mut(index)
                && span.record(offset).is_some()
            {
                span.split(offset, 0);
            }
        }
    }
}
