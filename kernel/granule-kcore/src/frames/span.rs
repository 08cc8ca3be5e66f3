//! The buddy system over one contiguous span of frame numbers, holes allowed.
//!
//! A block of order `k` has `2^k` frames, and its first frame *number* is a multiple of `2^k`,
//! wherever the span begins. So one leaf can map a block. Two free buddies are always merged into a
//! block of the next order. Blocks do not cross the edge of a span, so neighbouring spans are not
//! merged: one bank is one span.
//!
//! A frame is its offset from the span's first frame here, which callers have checked.

use super::metadata::{Entries, NONE, PageMetadata, SUBDIVIDED, Word};

/// One more than the largest order with any page size, [`max_order`](super::max_order).
pub(super) const ORDERS: usize = super::max_order(crate::sizes::MIN) as usize + 1;

/// An allocated or free block of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) offset: u32,
    pub(super) order: u32,
    pub(super) free: bool,
}

/// A contiguous span of frames.
pub(super) struct Span<'m> {
    first: u64,
    count: u32,
    max_order: u32,
    /// A bit for each order whose list is not empty.
    orders: u32,
    /// The first free block of each order.
    lists: [u32; ORDERS],
    entries: Entries<'m>,
}

impl<'m> Span<'m> {
    /// A span without frames.
    pub(super) const EMPTY: Self = Self {
        first: 0,
        count: 0,
        max_order: 0,
        orders: 0,
        lists: [NONE; ORDERS],
        entries: Entries::empty(),
    };

    /// The span of `count` frames from `first`, none given in yet; `None` if `memory` is too small.
    pub(super) fn new(
        first: u64,
        count: u32,
        max_order: u32,
        memory: &'m mut [Word],
    ) -> Option<Self> {
        Some(Self {
            first,
            count,
            max_order,
            entries: Entries::new(memory, count)?,
            ..Self::EMPTY
        })
    }

    /// The number of the first frame.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    /// One more than the number of the last frame.
    pub(super) const fn end(&self) -> u64 {
        self.first + self.count as u64
    }

    /// The number of the frame at `offset`.
    pub(super) const fn number(&self, offset: u32) -> u64 {
        self.first + offset as u64
    }

    /// The offset of frame `number`, if it is in the span.
    pub(super) const fn offset(&self, number: u64) -> Option<u32> {
        let offset = number.wrapping_sub(self.first);
        if offset < self.count as u64 {
            Some(offset as u32)
        } else {
            None
        }
    }

    /// Number of frames with initialised metadata.
    pub(super) fn touched(&self) -> u64 {
        self.entries.touched()
    }

    /// The smallest order, at least `order`, that has a free block.
    pub(super) const fn best_fit(&self, order: u32) -> Option<u32> {
        let orders = self.orders >> order;
        if orders == 0 {
            None
        } else {
            Some(order + orders.trailing_zeros())
        }
    }

    pub(super) fn entry(&self, offset: u32) -> PageMetadata {
        self.entries.read(offset)
    }

    /// The block that contains `offset`. Not for hot paths.
    pub(super) fn block_of(&self, offset: u32) -> Option<Block> {
        let number = self.number(offset);
        for at_least in 0..=self.max_order {
            let head = self.offset(number >> at_least << at_least)?;
            let (order, free) = match self.entries.read(head) {
                PageMetadata::Inside => continue,
                PageMetadata::Free { order, .. } => (order, true),
                PageMetadata::Allocated { order: SUBDIVIDED } => (0, false),
                PageMetadata::Allocated { order } | PageMetadata::Run { order } => (order, false),
            };
            // The nearest head below. If its block ends before the frame, no block contains the frame.
            return (number >> order == self.number(head) >> order).then_some(Block {
                offset: head,
                order,
                free,
            });
        }
        None
    }

    /// The first of `count` frames from `start` that was already given in.
    pub(super) fn first_given(&self, start: u32, count: u32) -> Option<u32> {
        if count == 0 {
            return None;
        }
        if self.block_of(start).is_some() {
            return Some(start);
        }
        self.entries.first_head(start, start + count)
    }

    /// Gives in `count` frames from `start`, in as few blocks as possible.
    pub(super) fn add(&mut self, start: u32, count: u32) {
        let (mut at, mut left) = (start, count);
        while left > 0 {
            let order = self
                .number(at)
                .trailing_zeros()
                .min(left.ilog2())
                .min(self.max_order);
            self.give(at, order);
            at += 1 << order;
            left -= 1 << order;
        }
    }

    /// The first of `count` frames from `start` that is not free, and whether it is allocated.
    pub(super) fn first_not_free(&self, start: u32, count: u32) -> Option<(u32, bool)> {
        let (mut at, end) = (start, start + count);
        while at < end {
            match self.block_of(at) {
                Some(block) if block.free => at = block.offset + (1 << block.order),
                Some(_) => return Some((at, true)),
                None => return Some((at, false)),
            }
        }
        None
    }

    /// Takes out `count` frames from `start`, all of them free, as if they were never given in. The
    /// other frames of their blocks stay free.
    pub(super) fn remove(&mut self, start: u32, count: u32) {
        let (mut at, end) = (start, start + count);
        while at < end {
            let Some(block) = self.block_of(at) else {
                return;
            };
            let PageMetadata::Free { order, next, prev } = self.entries.read(block.offset) else {
                return;
            };
            self.unlink(order, next, prev);
            self.entries.write(block.offset, PageMetadata::Inside);
            let block_end = block.offset + (1 << order);
            // The remaining pieces cannot merge across the removed frames: no block begins there.
            self.add(block.offset, at - block.offset);
            self.add(block_end.min(end), block_end - block_end.min(end));
            at = block_end;
        }
    }

    /// Calls `what` with the first frame's number and the order of each free block.
    pub(super) fn each_free(&self, what: &mut dyn FnMut(u64, u32)) {
        for list in &self.lists {
            let mut at = *list;
            while let PageMetadata::Free { order, next, .. } = self.entries.read(at) {
                what(self.number(at), order);
                at = next;
            }
        }
    }

    /// Allocates a block of `order` out of a free block of order `from`, if there is one.
    pub(super) fn take(&mut self, order: u32, from: u32) -> Option<u32> {
        let offset = *self.lists.get(from as usize)?;
        let PageMetadata::Free { next, .. } = self.entries.read(offset) else {
            return None;
        };
        self.unlink(from, next, NONE);
        for half in (order..from).rev() {
            self.push(offset + (1 << half), half);
        }
        self.entries
            .write(offset, PageMetadata::Allocated { order });
        Some(offset)
    }

    /// The offset of the block that [`take`](Self::take) would use for `order`.
    pub(super) fn first_free(&self, order: u32) -> Option<u32> {
        let offset = *self.lists.get(order as usize)?;
        (offset != NONE).then_some(offset)
    }

    /// Allocates the frame at `offset` by itself, if it is free. The rest of its block stays free.
    pub(super) fn take_exactly(&mut self, offset: u32) -> bool {
        // The frame heads its block if a group is filled from its start, so this is one look.
        let Some(block) = self.block_of(offset) else {
            return false;
        };
        let PageMetadata::Free { order, next, prev } = self.entries.read(block.offset) else {
            return false;
        };
        self.unlink(order, next, prev);
        self.entries.write(block.offset, PageMetadata::Inside);
        let mut head = block.offset;
        for half in (0..order).rev() {
            let upper = head + (1 << half);
            if offset < upper {
                self.push(upper, half);
            } else {
                self.push(head, half);
                head = upper;
            }
        }
        self.entries
            .write(offset, PageMetadata::Allocated { order: 0 });
        true
    }

    /// Adds an owner to each of `count` frames from `offset`, all allocated as single frames. Otherwise
    /// returns the first frame that is not, or that already has the most owners, and changes nothing.
    pub(super) fn share(&mut self, offset: u32, count: u32) -> Result<(), u32> {
        let end = offset + count;
        let mut at = offset;
        while at < end {
            let done = self.entries.share(at, end);
            at += done;
            if done == 0 && !self.halve_run(at) {
                let mut given = offset;
                while given < at {
                    given += self.entries.unshare(given, at).0;
                }
                return Err(at);
            }
        }
        Ok(())
    }

    /// Makes two of the run that the frame at `offset` is in; false if it is in none.
    #[cold]
    fn halve_run(&mut self, offset: u32) -> bool {
        let run = self.run_of(offset);
        if let Some((head, ..)) = run {
            self.entries.halve(head);
        }
        run.is_some()
    }

    /// The run of the frame at `offset`: its first frame, its frames, their owners beside the first.
    #[cold]
    fn run_of(&self, offset: u32) -> Option<(u32, u32, u32)> {
        let head = self.block_of(offset)?.offset;
        let (count, owners) = self.entries.run(head)?;
        Some((head, count, owners))
    }

    /// Whether the single frame at `offset` has more than one owner, and for how many of the `count` frames
    /// from there on the answer is the same: see [`Entries::sharing`].
    pub(super) fn sharing(&self, offset: u32, count: u32) -> Option<(bool, u32)> {
        if let Some(answer) = self.entries.sharing(offset, count) {
            return Some(answer);
        }
        let (head, frames, owners) = self.run_of(offset)?;
        Some((owners > 0, count.min(head + frames - offset)))
    }

    /// Removes an owner of the single frame at `offset`, if it has more than one.
    pub(super) fn leave(&mut self, offset: u32) -> bool {
        let left = self.entries.further_owners(offset);
        let left = left.and_then(|owners| owners.checked_sub(1));
        if let Some(left) = left {
            self.entries.set_further_owners(offset, left);
        }
        left.is_some()
    }

    /// Removes an owner from each of `count` frames from `offset`, all allocated as single frames.
    /// Frames without owners become free, in as few blocks as possible, and `freed` is called with
    /// each run of them (offset, count). Otherwise returns the first frame that is not allocated so;
    /// the frames before it are released.
    pub(super) fn release(
        &mut self,
        offset: u32,
        count: u32,
        mut freed: impl FnMut(u32, u32),
    ) -> Result<(), u32> {
        let (mut at, end) = (offset, offset + count);
        // The frames before `at` that are blocks of their own no longer, and are given back together.
        let mut start = at;
        let mut refused = None;
        while at < end && refused.is_none() {
            let (done, gone) = self.entries.unshare(at, end);
            if done > 0 && !gone {
                if at > start {
                    self.add(start, at - start);
                    freed(start, at - start);
                }
                start = at + done;
            }
            at += done;
            refused = (done == 0 && !self.halve_run(at)).then_some(at);
        }
        if at > start {
            self.add(start, at - start);
            freed(start, at - start);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Owners, beside the first, of the single frame allocated at `offset`, if there is one.
    pub(super) fn further_owners(&self, offset: u32) -> Option<u32> {
        let alone = self.entries.further_owners(offset);
        if alone.is_some() {
            return alone;
        }
        self.run_of(offset).map(|(.., owners)| owners)
    }

    /// Makes single frames of the allocated block of `order` at `offset`, none shared yet.
    pub(super) fn make_run(&mut self, offset: u32, order: u32) {
        if order > 0 {
            self.entries.write(offset, PageMetadata::Run { order });
        }
    }

    /// See [`Entries::subdivide`].
    pub(super) fn subdivide(&mut self, offset: u32, record: u64) -> bool {
        while self.halve_run(offset) {}
        self.entries.subdivide(offset, record)
    }

    /// See [`Entries::record`].
    pub(super) fn record(&self, offset: u32) -> Option<u64> {
        self.entries.record(offset)
    }

    /// Splits the allocated block of `order` at `offset` into allocated single frames.
    pub(super) fn split(&mut self, offset: u32, order: u32) {
        for frame in offset..offset + (1 << order) {
            self.entries
                .write(frame, PageMetadata::Allocated { order: 0 });
        }
    }

    /// Makes the block of `order` at `offset` free, and merges it with free buddies repeatedly.
    pub(super) fn give(&mut self, offset: u32, order: u32) {
        let (mut offset, mut order) = (offset, order);
        while order < self.max_order {
            let Some(buddy) = self.offset(self.number(offset) ^ (1 << order)) else {
                break;
            };
            let PageMetadata::Free {
                order: buddy_order,
                next,
                prev,
            } = self.entries.read(buddy)
            else {
                break;
            };
            if buddy_order != order {
                break;
            }
            self.unlink(order, next, prev);
            self.entries.write(offset.max(buddy), PageMetadata::Inside);
            offset = offset.min(buddy);
            order += 1;
        }
        self.push(offset, order);
    }

    /// Puts a free block at the front of its list, because the block freed last is in the cache.
    fn push(&mut self, offset: u32, order: u32) {
        let Some(list) = self.lists.get_mut(order as usize) else {
            return;
        };
        let next = core::mem::replace(list, offset);
        self.orders |= 1 << order;
        if next != NONE {
            self.entries.set_prev(next, offset);
        }
        let prev = NONE;
        self.entries
            .write(offset, PageMetadata::Free { order, next, prev });
    }

    /// Removes the block between `prev` and `next` from the list of `order`.
    fn unlink(&mut self, order: u32, next: u32, prev: u32) {
        if next != NONE {
            self.entries.set_prev(next, prev);
        }
        if prev != NONE {
            self.entries.set_next(prev, next);
        } else if let Some(list) = self.lists.get_mut(order as usize) {
            *list = next;
            if next == NONE {
                self.orders &= !(1 << order);
            }
        }
    }

    /// All free blocks as (first frame number, order), ascending; panics if a list is inconsistent.
    #[cfg(test)]
    pub(super) fn free_blocks(&self) -> Vec<(u64, u32)> {
        let mut blocks = Vec::new();
        for (order, list) in self.lists.iter().enumerate() {
            let (mut at, mut before) = (*list, NONE);
            assert_eq!(self.orders >> order & 1 != 0, at != NONE);
            while at != NONE {
                let PageMetadata::Free {
                    order: its_order,
                    next,
                    prev,
                } = self.entries.read(at)
                else {
                    panic!("{at} is in the list of order {order} and not free");
                };
                assert_eq!((its_order, prev), (order as u32, before));
                blocks.push((self.number(at), its_order));
                (at, before) = (next, at);
            }
        }
        blocks.sort_unstable();
        blocks
    }
}
