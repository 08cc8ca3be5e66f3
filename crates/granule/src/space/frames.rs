//! The source of frames for user pages: what a [`Space`](super::Space) needs besides tables.
//!
//! A kernel implements the trait on its page allocator, with an owner count for each frame; tests
//! and models use ordinary memory. The contents of frames are accessed only through this trait.

#![allow(unsafe_code, reason = "the promise of a frame supplier")]

use crate::arch::{PageSize, PhysicalAddress};
use crate::table::FreedFrames;

/// The frame that would suit best. It is a preference: any other frame works, and `None` means that
/// no frame is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// Any frame.
    Any,
    /// This frame, which continues a group of pages.
    Exactly(PhysicalAddress),
    /// A frame that can start a group: frame `index` of a naturally aligned group of `frames`
    /// frames that are all free. The other frames stay free.
    Group {
        /// The number of frames of a group, a power of two.
        frames: u64,
        /// The index of the frame in the group.
        index: u64,
    },
}

/// Allocates, shares and releases the frames of user memory.
///
/// # Safety
///
/// A frame from [`allocate`](Self::allocate) or [`allocate_run`](Self::allocate_run) must be of
/// [`page_size`](Self::page_size), aligned to it, below the physical address size of the space's geometry, and
/// not used otherwise while it has an owner. Both give a frame one owner, each
/// [`share`](Self::share) adds one, and [`release`](Self::release) removes one.
///
/// [`is_shared`](Self::is_shared) and [`sharing`](Self::sharing) must answer correctly for a frame
/// with one owner until that owner shares it. For a frame with several owners they may still answer
/// "shared" when all but one have just released it.
///
/// All values of the type serve one account of frames: a space may allocate a frame through one
/// value and release it through another, and a copy of a space shares the frames.
///
/// Consecutive frames are frames whose addresses differ by the page size.
///
/// No method may panic and unwind. A space calls them in the middle of its operations, when TLBs may
/// still hold translations that the tables do not contain any more.
pub unsafe trait UserFrames {
    /// The page size of all frames of this value. A space refuses frames of another size than its own.
    fn page_size(&self) -> PageSize;
    /// A frame with one owner and undefined contents; `None` if there is none.
    fn allocate(&mut self, wanted: Wanted) -> Option<PhysicalAddress>;
    /// The first of `frames` consecutive frames, aligned to the bytes of all together, each as from
    /// [`allocate`](Self::allocate): with one owner of its own, to be shared and released by itself.
    /// `frames` is a power of two, the pages of a contiguous group or of a block. `None` if there is no
    /// such run, which is not a shortage: the space goes on with a smaller leaf.
    ///
    /// An allocator without such runs keeps this default.
    fn allocate_run(&mut self, _frames: u64) -> Option<PhysicalAddress> {
        None
    }
    /// Fills `count` consecutive frames with zeros.
    fn zero(&mut self, first: PhysicalAddress, count: u64);
    /// Copies the contents of frame `from` to frame `to`.
    fn copy(&mut self, from: PhysicalAddress, to: PhysicalAddress);
    /// Adds one owner to each of `count` consecutive frames.
    fn share(&mut self, first: PhysicalAddress, count: u64);
    /// Removes one owner from each of these frames. A frame without owners is free.
    fn release(&mut self, frames: FreedFrames);
    /// Whether a frame has more than one owner.
    fn is_shared(&self, frame: PhysicalAddress) -> bool;
    /// The answer of [`is_shared`](Self::is_shared) for the first of `count` consecutive frames,
    /// and the number of frames from there, including the first, with the same answer. A smaller
    /// number, but at least one, is correct too. An implementation that takes a lock should return
    /// as large a number as it can.
    fn sharing(&self, first: PhysicalAddress, _count: u64) -> (bool, u64) {
        (self.is_shared(first), 1)
    }
    /// Makes the stores to `count` consecutive frames visible to instruction fetches of all CPUs.
    /// Called before the frames are first mapped executable.
    fn sync_instructions(&mut self, first: PhysicalAddress, count: u64);
}
