//! Subdivided frames: smaller pieces of frames, for programs whose pages are smaller than the kernel's.
//!
//! A frame has units of the smallest page size, 4K. A piece is a power of two of units, naturally
//! aligned in its frame, and has an owner count of its own; `order` is log2 of its units. A frame
//! is subdivided when a piece is requested and no subdivided frame has room for it, and goes back
//! to [`Frames`] with its last piece. So a system without pieces pays nothing.
//!
//! The state of a subdivided frame is in a [`PieceRecord`], and the frame's metadata has the record's
//! place (`marks`). Records are in frames of their own (`records`), which are allocated on demand
//! and go back as well. This module finds room for pieces; `owners` counts their owners.
//!
//! A frame with room is in the list of its largest free piece, so that a piece is found without a
//! search, and large pieces stay whole as long as small ones fit elsewhere.

mod marks;
mod owners;
mod piece_records;
#[cfg(test)]
mod tests;

pub use owners::PieceError;
pub use piece_records::{PieceRecord, RecordAt};

use super::tables::Source;
use super::{Frame, Frames};
use core::fmt;
use granule::arch::{PageSize, PhysicalAddress};
use piece_records::{NONE, link, unlink};

/// Log2 of the bytes of a unit.
pub const UNIT_SHIFT: u32 = PageSize::K4.shift();

/// Units of the largest frame.
const MOST_UNITS: usize = 1 << MOST_ORDER;

/// The order of the largest frame.
const MOST_ORDER: u32 = PageSize::K64.shift() - UNIT_SHIFT;

/// Access to the frames and to the memory of records. The frames are always the same ones, and nothing
/// else changes which of them are subdivided.
pub trait Store: Source {
    /// The record at a place in a frame that is allocated for records. Its content may be anything
    /// before it is written first, and is kept from then on.
    fn record(&mut self, at: RecordAt) -> &mut PieceRecord;

    /// Called with frames that were just allocated, before their first use.
    fn allocated(&mut self, _first: PhysicalAddress, _bytes: u64) {}

    /// Called with frames that are about to be free.
    fn freed(&mut self, _first: PhysicalAddress, _bytes: u64) {}
}

/// The subdivided frames of one [`Frames`]. It is for one CPU at a time, like them.
pub struct Pieces<S: Store> {
    store: S,
    page_size: PageSize,
    /// The first frame whose largest free piece has each order.
    lists: [u64; MOST_ORDER as usize],
    /// The first frame of records with a free one.
    record_frames: u64,
    counted: Counted,
}

/// Numbers for reports and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// Frames that are subdivided now.
    pub subdivided: u64,
    /// Free units of the subdivided frames: free memory, which only pieces can have.
    pub free_units: u64,
    /// Frames that hold records now.
    pub record_frames: u64,
    /// Refused calls of [`share`](Pieces::share) and [`release`](Pieces::release): any other number
    /// than 0 is a bug of the kernel.
    pub refused: u64,
}

impl<S: Store> Pieces<S> {
    /// No subdivided frame yet.
    pub const fn new(store: S, page_size: PageSize) -> Self {
        Self {
            store,
            page_size,
            lists: [NONE; MOST_ORDER as usize],
            record_frames: NONE,
            counted: Counted {
                subdivided: 0,
                free_units: 0,
                record_frames: 0,
                refused: 0,
            },
        }
    }

    /// Sets the page size of the frames, before any is subdivided.
    pub fn begin(&mut self, page_size: PageSize) {
        if self.counted.subdivided == 0 {
            self.page_size = page_size;
        }
    }

    /// The numbers so far.
    pub const fn counted(&self) -> Counted {
        self.counted
    }

    /// The order of a frame: pieces are smaller.
    const fn frame_order(&self) -> u32 {
        self.page_size.shift() - UNIT_SHIFT
    }

    /// The free units of a frame without pieces.
    const fn whole(&self) -> u32 {
        (1 << (1 << self.frame_order())) - 1
    }

    /// Allocates a piece with one owner. `None` if there is no memory, or no piece of that order.
    pub fn allocate(&mut self, order: u32) -> Option<PhysicalAddress> {
        self.allocate_run(0, order)
    }

    /// Allocates the piece at `first`; false if it is not free, or there is no memory.
    #[must_use]
    pub fn allocate_exactly(&mut self, first: PhysicalAddress, order: u32) -> bool {
        let (frame, unit) = self.place(first);
        if !self.is_piece(first, order) {
            return false;
        }
        let at = match self.find(frame) {
            Some(at) => at,
            None => {
                let exactly =
                    |frames: &mut Frames<'_>| frames.allocate_exact(frame).then_some(frame);
                // This frame first, so that it does not become a frame for records.
                if self.allocate_frames(exactly).is_none() {
                    return false;
                }
                let Some(at) = self.take_record() else {
                    self.free_frames(frame, 1);
                    return false;
                };
                self.subdivide_frame(frame, at);
                at
            }
        };
        let free = self.store.record(at).free;
        let found = aligned(free, order) & 1 << unit != 0;
        if found {
            self.take(at, unit, order, 0);
        }
        found
    }

    /// Allocates one piece of a free group: number `index` of `2^count` pieces. The group begins at a
    /// multiple of its size, and its other pieces stay free, so that the caller can get them with
    /// [`allocate_exactly`](Self::allocate_exactly), unless another CPU is faster.
    pub fn allocate_in_group(
        &mut self,
        count: u32,
        index: u64,
        order: u32,
    ) -> Option<PhysicalAddress> {
        if order >= self.frame_order() || count >= u64::BITS || index >> count != 0 {
            return None;
        }
        let group = order + count;
        let unit = index << order;
        let (at, first) = if group < self.frame_order() {
            self.room(group)?
        } else {
            let (group, index) = (group - self.frame_order(), unit >> self.frame_order());
            (
                self.subdivide(|frames| frames.allocate_in_group(group, index))?,
                0,
            )
        };
        let unit = first + (unit as u32 & ((1 << self.frame_order()) - 1));
        Some(self.take(at, unit, order, 0))
    }

    /// Allocates `2^count` pieces that follow each other, with one owner each, and returns the first,
    /// which is aligned to the size of all together. `None`, and nothing has changed, if there is no
    /// such run.
    pub fn allocate_run(&mut self, count: u32, order: u32) -> Option<PhysicalAddress> {
        if order >= self.frame_order() {
            return None;
        }
        let run = order.checked_add(count)?;
        let Some(frames) = run.checked_sub(self.frame_order()) else {
            let (at, unit) = self.room(run)?;
            return Some(self.take(at, unit, order, count));
        };
        let first = self.allocate_frames(|all| all.allocate_singles(frames))?;
        for done in 0..1 << frames {
            let Some(at) = self.take_record() else {
                self.undo_run(first, done, 1 << frames);
                return None;
            };
            self.subdivide_frame(Frame(first.0 + done), at);
            self.take(at, 0, order, self.frame_order() - order);
        }
        Some(first.address(self.page_size))
    }

    /// Gives back `count` frames of a run, of which `done` are subdivided.
    #[cold]
    fn undo_run(&mut self, first: Frame, done: u64, count: u64) {
        for number in first.0..first.0 + done {
            if let Some(at) = self.find(Frame(number)) {
                self.forget(at);
            }
        }
        self.free_frames(first, count);
    }

    /// A subdivided frame with a free piece of this order, and the first unit of the piece: the frame
    /// with the smallest free piece, or a new one.
    fn room(&mut self, order: u32) -> Option<(RecordAt, u32)> {
        let listed = self.lists.get(order as usize..)?;
        match listed.iter().find(|first| **first != NONE) {
            Some(first) => {
                let at = RecordAt(*first);
                Some((at, best_fit(self.store.record(at).free, order)?))
            }
            None => Some((self.subdivide(|frames| frames.allocate(0))?, 0)),
        }
    }

    /// Allocates frames by `take`, which returns the first.
    fn allocate_frames(
        &mut self,
        take: impl FnOnce(&mut Frames<'_>) -> Option<Frame>,
    ) -> Option<Frame> {
        let (frame, count) = self.store.with(|frames| {
            let before = frames.allocated();
            let frame = take(frames)?;
            Some((frame, frames.allocated() - before))
        })?;
        let first = frame.address(self.page_size);
        self.store.allocated(first, count << self.page_size.shift());
        Some(frame)
    }

    /// Gives `count` single frames back, subdivided or not.
    fn free_frames(&mut self, first: Frame, count: u64) {
        let start = first.address(self.page_size);
        self.store.freed(start, count << self.page_size.shift());
        self.store.with(|frames| {
            frames.unite(first, count);
            // These frames have one owner, this module; the frames count their refusals.
            let _ = frames.release(first, count, |_, _| ());
        });
    }

    /// Allocates a frame by `take` and subdivides it. All of it is free and it is in no list yet.
    fn subdivide(
        &mut self,
        take: impl FnOnce(&mut Frames<'_>) -> Option<Frame>,
    ) -> Option<RecordAt> {
        // First, so that a frame for records does not take the next frame of a group.
        let at = self.take_record()?;
        let Some(frame) = self.allocate_frames(take) else {
            self.give_record(at);
            return None;
        };
        self.subdivide_frame(frame, at);
        Some(at)
    }

    /// Subdivides a single frame that was just allocated.
    fn subdivide_frame(&mut self, frame: Frame, at: RecordAt) {
        *self.store.record(at) = PieceRecord::of(frame, self.whole());
        self.store.with(|frames| frames.mark_subdivided(frame, at));
        self.counted.subdivided += 1;
        self.counted.free_units += 1 << self.frame_order();
    }

    /// Gives up the record of a frame that is in no list.
    fn forget(&mut self, at: RecordAt) {
        self.counted.subdivided -= 1;
        self.counted.free_units -= u64::from(self.store.record(at).free.count_ones());
        self.give_record(at);
    }

    /// Takes `2^count` free pieces from `unit` on, and returns the address of the first.
    fn take(&mut self, at: RecordAt, unit: u32, order: u32, count: u32) -> PhysicalAddress {
        let record = self.store.record(at);
        let before = record.free;
        record.take(unit, order, count);
        self.counted.free_units -= 1 << (order + count);
        let (after, frame) = (record.free, Frame(record.frame));
        self.relist(at, before, after);
        PhysicalAddress(frame.address(self.page_size).0 + (u64::from(unit) << UNIT_SHIFT))
    }

    /// The list of a frame with these free units, if it is in one.
    fn list_of(&self, free: u32) -> Option<usize> {
        if free == self.whole() {
            return None;
        }
        let orders = (0..MOST_ORDER).rev();
        orders
            .map(|order| (order as usize, aligned(free, order)))
            .find_map(|(list, there)| (there != 0).then_some(list))
    }

    /// Moves a frame to the list where it belongs with the free units `after`.
    fn relist(&mut self, at: RecordAt, before: u32, after: u32) {
        let (from, to) = (self.list_of(before), self.list_of(after));
        if from == to {
            return;
        }
        if let Some(first) = from.and_then(|list| self.lists.get_mut(list)) {
            unlink(&mut self.store, first, at);
        }
        if let Some(first) = to.and_then(|list| self.lists.get_mut(list)) {
            link(&mut self.store, first, at);
        }
    }

    /// The frame and the unit that an address lies in.
    const fn place(&self, at: PhysicalAddress) -> (Frame, u32) {
        let unit = (at.0 >> UNIT_SHIFT) as u32 & ((1 << self.frame_order()) - 1);
        (Frame::containing(at, self.page_size), unit)
    }

    /// Whether a piece of this order can begin at `first`.
    const fn is_piece(&self, first: PhysicalAddress, order: u32) -> bool {
        order < self.frame_order() && first.0.trailing_zeros() >= UNIT_SHIFT + order
    }

    /// The record of a subdivided frame.
    fn find(&mut self, frame: Frame) -> Option<RecordAt> {
        self.store.with(|frames| frames.record_of(frame))
    }
}

impl<S: Store> fmt::Debug for Pieces<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces")
            .field("page_size", &self.page_size)
            .field("counted", &self.counted)
            .finish_non_exhaustive()
    }
}

/// The first units of all aligned pieces of this order that are free.
const fn aligned(free: u32, order: u32) -> u32 {
    const FIRSTS: [u32; 3] = [0x5555, 0x1111, 0x0101];
    let mut found = free;
    let mut below = 0;
    while below < order {
        // Two pieces of the order below, of which the first is at a multiple of their size.
        found &= found >> (1 << below)
            & match below {
                0 => FIRSTS[0],
                1 => FIRSTS[1],
                2 => FIRSTS[2],
                _ => 1,
            };
        below += 1;
    }
    found
}

/// The first unit of a free piece of this order, out of the smallest larger piece that is free.
fn best_fit(free: u32, order: u32) -> Option<u32> {
    (order..=MOST_ORDER).find_map(|from| {
        let larger = aligned(free, from + 1);
        let there = aligned(free, from) & !(larger | larger << (1 << from));
        (there != 0).then(|| there.trailing_zeros())
    })
}
