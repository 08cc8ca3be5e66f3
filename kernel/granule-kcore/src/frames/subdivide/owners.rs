//! Owners of pieces: adds and removes them, and gives back frames without pieces. Needs no memory.
//!
//! A single frame that is not subdivided may be shared by the piece too, as the content of a file is:
//! its first owner, who allocated all of it, shares it with programs of every page size. Each piece that
//! is shared counts as one more owner of the frame.

use super::piece_records::RefusedAt;
use super::{Pieces, RecordAt, Store, UNIT_SHIFT};
use crate::frames::Frame;
use granule::arch::PhysicalAddress;
use thiserror::Error;

/// Why a call was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum PieceError {
    #[error("no piece of {} bytes is allocated at {:#x}", 1u64 << (UNIT_SHIFT + .order), .at.0)]
    NoPiece { at: PhysicalAddress, order: u32 },
    #[error("the piece at {at:#x} has as many owners as can be counted", at = .0.0)]
    TooManyOwners(PhysicalAddress),
}

/// The part of a run of pieces that is in one frame.
#[derive(Clone, Copy)]
struct Part {
    frame: Frame,
    /// Its first unit and the end.
    unit: u32,
    end: u32,
}

impl<S: Store> Pieces<S> {
    /// Adds an owner to each of `count` pieces from `first`. Errors: one of them is not allocated with this order,
    /// or has the most owners. Nothing has changed then, except that the refusal is
    /// [counted](super::Counted::refused).
    pub fn share(
        &mut self,
        first: PhysicalAddress,
        count: u64,
        order: u32,
    ) -> Result<(), PieceError> {
        let mut done = 0;
        let shared = self.each_part(first, count, order, |pieces, at, part| {
            match at {
                Some(at) => pieces.store.record(at).share(part.unit, part.end, order)?,
                None => pieces.share_whole(part, order)?,
            }
            done += u64::from(part.end - part.unit) >> order;
            Ok(())
        });
        if shared.is_err() {
            // These were just shared.
            let _ = self.each_part(first, done, order, |pieces, at, part| {
                match at {
                    Some(at) => pieces.store.record(at).unshare(part.unit, part.end, order),
                    None => pieces.release_whole(part, order)?,
                }
                Ok(())
            });
        }
        self.count(shared)
    }

    /// Removes an owner from each of `count` pieces from `first`. A piece without owners is free, and
    /// a frame without pieces goes back to the [`Frames`](crate::frames::Frames). Errors: one of them is not
    /// allocated with this order. The pieces before it are released, and the refusal is
    /// [counted](super::Counted::refused).
    pub fn release(
        &mut self,
        first: PhysicalAddress,
        count: u64,
        order: u32,
    ) -> Result<(), PieceError> {
        // Frames that follow each other go back together.
        let (mut start, mut gone) = (Frame(0), 0);
        let released = self.each_part(first, count, order, |pieces, at, part| {
            let Some(at) = at else {
                return pieces.release_whole(part, order);
            };
            let record = pieces.store.record(at);
            let before = record.free;
            let released = record.release(part.unit, part.end, order);
            let after = record.free;
            pieces.counted.free_units += u64::from((after & !before).count_ones());
            pieces.relist(at, before, after);
            if after == pieces.whole() {
                if start.0 + gone != part.frame.0 || gone == 0 {
                    pieces.give_back(start, gone);
                    (start, gone) = (part.frame, 0);
                }
                pieces.forget(at);
                gone += 1;
            }
            released
        });
        self.give_back(start, gone);
        self.count(released)
    }

    fn give_back(&mut self, first: Frame, count: u64) {
        if count > 0 {
            self.free_frames(first, count);
        }
    }

    /// Whether the piece of this order at `first` has more than one owner, and for how many of the
    /// `count` pieces from there on the answer is the same.
    pub fn sharing(&mut self, first: PhysicalAddress, count: u64, order: u32) -> (bool, u64) {
        let (mut answer, mut alike, mut ended) = (None, 0, false);
        let _ = self.each_part(first, count, order, |pieces, at, part| {
            let whole = match at {
                Some(_) => None,
                None => pieces
                    .store
                    .with(|frames| frames.further_owners(part.frame)),
            };
            for unit in (part.unit..part.end).step_by(1 << order) {
                let owners = match at {
                    Some(at) => pieces.store.record(at).further_owners(unit, order),
                    None => whole,
                };
                let shared = owners.is_some_and(|owners| owners > 0);
                if ended || owners.is_none() || *answer.get_or_insert(shared) != shared {
                    // Ends the walk; it is not a refusal.
                    ended = true;
                    return Err(RefusedAt::NoPiece(unit));
                }
                alike += 1;
            }
            Ok(())
        });
        (answer.unwrap_or(false), alike.max(1))
    }

    /// Adds an owner to a frame that is not subdivided, for each piece of a part of it; if that is
    /// refused, nothing has changed.
    fn share_whole(&mut self, part: Part, order: u32) -> Result<(), RefusedAt> {
        let count = (part.end - part.unit) >> order;
        self.store.with(|frames| {
            let owners = frames.further_owners(part.frame);
            let owners = owners.ok_or(RefusedAt::NoPiece(part.unit))?;
            let most = RefusedAt::TooManyOwners(part.unit);
            owners.checked_add(count).ok_or(most)?;
            for _ in 0..count {
                // Nothing of it was refused, as just seen.
                let _ = frames.share(part.frame, 1);
            }
            Ok(())
        })
    }

    /// Removes an owner from a frame that is not subdivided, for each piece of a part of it. If a piece
    /// is refused, those before it are released.
    fn release_whole(&mut self, part: Part, order: u32) -> Result<(), RefusedAt> {
        for unit in (part.unit..part.end).step_by(1 << order) {
            let owners = self.store.with(|frames| frames.further_owners(part.frame));
            let owners = owners.ok_or(RefusedAt::NoPiece(unit))?;
            if owners == 0 {
                self.free_frames(part.frame, 1);
            } else {
                // Nothing of it is refused, as just seen, or becomes free.
                let _ = self
                    .store
                    .with(|frames| frames.release(part.frame, 1, |_, _| ()));
            }
        }
        Ok(())
    }

    /// Calls `what` with each frame's part of the `count` pieces from `first`, to the first refusal. A
    /// frame that is not subdivided has no record.
    fn each_part(
        &mut self,
        first: PhysicalAddress,
        count: u64,
        order: u32,
        mut what: impl FnMut(&mut Self, Option<RecordAt>, Part) -> Result<(), RefusedAt>,
    ) -> Result<(), PieceError> {
        if !self.is_piece(first, order) {
            return Err(PieceError::NoPiece { at: first, order });
        }
        let units = 1 << self.frame_order();
        let (mut at, mut left) = (first, count << order);
        while left > 0 {
            let (frame, unit) = self.place(at);
            let part = u64::from(units - unit).min(left);
            let end = unit + part as u32;
            let record = self.find(frame);
            let done = what(self, record, Part { frame, unit, end });
            done.map_err(|refused| {
                let start = frame.address(self.page_size).0;
                let of = |unit| PhysicalAddress(start + (u64::from(unit) << UNIT_SHIFT));
                match refused {
                    RefusedAt::TooManyOwners(unit) => PieceError::TooManyOwners(of(unit)),
                    RefusedAt::NoPiece(unit) => {
                        let at = of(unit);
                        PieceError::NoPiece { at, order }
                    }
                }
            })?;
            at.0 += part << UNIT_SHIFT;
            left -= part;
        }
        Ok(())
    }

    /// Counts a refusal.
    fn count(&mut self, done: Result<(), PieceError>) -> Result<(), PieceError> {
        if done.is_err() {
            self.counted.refused = self.counted.refused.saturating_add(1);
        }
        done
    }
}
