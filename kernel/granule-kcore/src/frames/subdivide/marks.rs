//! The metadata of subdivided frames in [`Frames`]: the mark, and the place of the record. While a
//! frame has the mark, nothing shares, releases or frees it as a whole. A frame of records has the
//! mark too, without a record.

use super::RecordAt;
use super::piece_records::NONE;
use crate::frames::{Frame, Frames};

impl Frames<'_> {
    /// Marks a single frame with one owner as subdivided, or with [`NONE`] as a frame of records.
    pub(super) fn mark_subdivided(&mut self, frame: Frame, at: RecordAt) {
        if let Ok((span, offset)) = self.span_of_mut(frame) {
            span.subdivide(offset, at.0);
        }
    }

    /// Whether a frame is subdivided.
    pub fn is_subdivided(&self, frame: Frame) -> bool {
        self.record_of(frame).is_some()
    }

    /// The record of a frame; `None` unless it is subdivided.
    pub(super) fn record_of(&self, frame: Frame) -> Option<RecordAt> {
        let (span, offset) = self.span_of(frame).ok()?;
        let at = span.record(offset)?;
        (at != NONE).then_some(RecordAt(at))
    }

    /// Makes the marked ones of `count` frames single frames with one owner again.
    pub(super) fn unite(&mut self, first: Frame, count: u64) {
        for number in first.0..first.0 + count {
            if let Ok((span, offset)) = self.span_of_mut(Frame(number))
                && span.record(offset).is_some()
            {
                span.split(offset, 0);
            }
        }
    }
}
