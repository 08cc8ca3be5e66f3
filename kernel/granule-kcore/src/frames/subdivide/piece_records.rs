//! Records of subdivided frames, and the frames in which they are.
//!
//! A frame of records begins with one slot that describes it, in the form of a record too. Slots are
//! used in order, so that a new frame costs one store of its description; a slot that comes back is
//! first in a list of free slots. A frame with a free slot is in one list, and a frame whose last
//! record comes back goes back to [`Frames`].
//!
//! [`Frames`]: crate::frames::Frames

use super::{MOST_UNITS, Pieces, Store};
use crate::frames::Frame;
use granule::arch::PhysicalAddress;

/// No record, where a place is stored.
pub(super) const NONE: u64 = u64::MAX;

/// Where the order of a piece is in its owner word; 0 there means that no piece begins.
const ORDER_SHIFT: u32 = 28;
/// The most owners of a piece beside its first.
const MOST_FURTHER_OWNERS: u32 = (1 << ORDER_SHIFT) - 1;

/// The place of a record. Only this room makes one, and only in a frame that it allocated for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAt(pub(super) u64);

impl RecordAt {
    /// The physical address of the record, a multiple of its alignment.
    pub const fn address(self) -> PhysicalAddress {
        PhysicalAddress(self.0)
    }
}

/// The record of one subdivided frame, or of one frame of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PieceRecord {
    /// The neighbours in a list.
    pub(super) next: u64,
    pub(super) prev: u64,
    /// The frame's number; of a frame of records, the number of its records in use.
    pub(super) frame: u64,
    /// A bit for each free unit; of a frame of records, its first slot that was never used.
    pub(super) free: u32,
    /// The next free slot, of a free slot and of a frame of records; 0 is none.
    free_slot: u32,
    /// For the first unit of each piece its order and its owners beside the first; 0 for other units.
    owners: [u32; MOST_UNITS],
}

/// Why a record refused a call, with the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusedAt {
    /// No such piece begins there.
    NoPiece(u32),
    /// The piece there has the most owners.
    TooManyOwners(u32),
}

impl PieceRecord {
    /// A frame with these free units and without pieces.
    pub(super) const fn of(frame: Frame, free: u32) -> Self {
        Self {
            next: NONE,
            prev: NONE,
            frame: frame.0,
            free,
            free_slot: 0,
            owners: [0; MOST_UNITS],
        }
    }

    /// Takes `2^count` free pieces of this order from `unit` on.
    pub(super) fn take(&mut self, unit: u32, order: u32, count: u32) {
        let end = unit + (1 << (order + count));
        self.free &= !(bits(end) & !bits(unit));
        for piece in (unit..end).step_by(1 << order) {
            if let Some(word) = self.owners.get_mut(piece as usize) {
                *word = (order + 1) << ORDER_SHIFT;
            }
        }
    }

    /// The owners, beside the first, of the piece of this order at `unit`.
    pub(super) fn further_owners(&self, unit: u32, order: u32) -> Option<u32> {
        let word = *self.owners.get(unit as usize)?;
        (word >> ORDER_SHIFT == order + 1).then_some(word & MOST_FURTHER_OWNERS)
    }

    /// Adds an owner to each piece of this order from `unit` to `end`, or to none.
    pub(super) fn share(&mut self, unit: u32, end: u32, order: u32) -> Result<(), RefusedAt> {
        for piece in (unit..end).step_by(1 << order) {
            let refused = match self.further_owners(piece, order) {
                None => RefusedAt::NoPiece(piece),
                Some(MOST_FURTHER_OWNERS) => RefusedAt::TooManyOwners(piece),
                Some(_) => {
                    if let Some(word) = self.owners.get_mut(piece as usize) {
                        *word += 1;
                    }
                    continue;
                }
            };
            self.unshare(unit, piece, order);
            return Err(refused);
        }
        Ok(())
    }

    /// Takes back [`share`](Self::share).
    pub(super) fn unshare(&mut self, unit: u32, end: u32, order: u32) {
        for piece in (unit..end).step_by(1 << order) {
            if let Some(word) = self.owners.get_mut(piece as usize) {
                *word -= 1;
            }
        }
    }

    /// Gives the piece at `unit` as many owners as can be counted.
    #[cfg(test)]
    pub(super) fn set_most_owners(&mut self, unit: u32) {
        self.owners[unit as usize] |= MOST_FURTHER_OWNERS;
    }

    /// Removes an owner from each piece of this order from `unit` to `end`. Pieces without owners are
    /// free. If a piece is refused, those before it are released.
    pub(super) fn release(&mut self, unit: u32, end: u32, order: u32) -> Result<(), RefusedAt> {
        for piece in (unit..end).step_by(1 << order) {
            let owners = self.further_owners(piece, order);
            let owners = owners.ok_or(RefusedAt::NoPiece(piece))?;
            let Some(word) = self.owners.get_mut(piece as usize) else {
                continue;
            };
            if owners > 0 {
                *word -= 1;
            } else {
                *word = 0;
                self.free |= bits(piece + (1 << order)) & !bits(piece);
            }
        }
        Ok(())
    }
}

/// The units below `end`.
const fn bits(end: u32) -> u32 {
    (1 << end) - 1
}

impl<S: Store> Pieces<S> {
    /// A record that is not used; `None` if there is no memory for more.
    pub(super) fn take_record(&mut self) -> Option<RecordAt> {
        if self.record_frames == NONE {
            let frame = self.allocate_frames(|frames| frames.allocate(0))?;
            let head = RecordAt(frame.address(self.page_size).0);
            // No record is in use, and the first slot is this one.
            *self.store.record(head) = PieceRecord::of(Frame(0), 1);
            // So that nothing but this module takes it for a frame of its own.
            let none = RecordAt(NONE);
            self.store
                .with(|frames| frames.mark_subdivided(frame, none));
            self.record_frames = head.0;
            self.counted.record_frames += 1;
        }
        let head = RecordAt(self.record_frames);
        let PieceRecord {
            free, free_slot, ..
        } = *self.store.record(head);
        let slot = if free_slot != 0 { free_slot } else { free };
        let at = RecordAt(head.0 + slot as u64 * size_of::<PieceRecord>() as u64);
        if free_slot != 0 {
            let next = self.store.record(at).free_slot;
            self.store.record(head).free_slot = next;
        } else {
            self.store.record(head).free = slot + 1;
        }
        let slots = self.slots();
        let description = self.store.record(head);
        description.frame += 1;
        if description.frame == slots {
            unlink(&mut self.store, &mut self.record_frames, head);
        }
        Some(at)
    }

    /// Gives back a record.
    pub(super) fn give_record(&mut self, at: RecordAt) {
        let head = RecordAt(at.0 & !(self.page_size.bytes() - 1));
        let slot = (at.0 - head.0) / size_of::<PieceRecord>() as u64;
        let slots = self.slots();
        let description = self.store.record(head);
        let was_full = description.frame == slots;
        let next = core::mem::replace(&mut description.free_slot, slot as u32);
        description.frame -= 1;
        let is_empty = description.frame == 0;
        self.store.record(at).free_slot = next;
        if was_full {
            link(&mut self.store, &mut self.record_frames, head);
        }
        if is_empty {
            unlink(&mut self.store, &mut self.record_frames, head);
            self.counted.record_frames -= 1;
            self.free_frames(Frame::containing(head.address(), self.page_size), 1);
        }
    }

    /// Records of a frame of records.
    pub(super) const fn slots(&self) -> u64 {
        self.page_size.bytes() / size_of::<PieceRecord>() as u64 - 1
    }
}

/// Puts a record at the front of the list that begins with `first`.
pub(super) fn link<S: Store>(store: &mut S, first: &mut u64, at: RecordAt) {
    let next = core::mem::replace(first, at.0);
    let record = store.record(at);
    (record.next, record.prev) = (next, NONE);
    if next != NONE {
        store.record(RecordAt(next)).prev = at.0;
    }
}

/// Takes a record out of the list that begins with `first`.
pub(super) fn unlink<S: Store>(store: &mut S, first: &mut u64, at: RecordAt) {
    let PieceRecord { next, prev, .. } = *store.record(at);
    if next != NONE {
        store.record(RecordAt(next)).prev = prev;
    }
    if prev != NONE {
        store.record(RecordAt(prev)).next = next;
    } else {
        *first = next;
    }
}
