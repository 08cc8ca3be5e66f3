//! Where the frames of pages come from: what a [`Space`](super::Space) asks for beside tables.
//!
//! A kernel implements it on its page allocator, with a count of owners for each frame; tests and
//! models on ordinary memory. What a frame holds is touched here and nowhere else.

use crate::arch::PhysicalAddress;
use crate::table::FreedFrames;

/// Which frame would be best. A wish: any other one does, and `None` is for when there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// Any.
    Any,
    /// This one, which continues a group of pages.
    Exactly(PhysicalAddress),
    /// One with which a group can begin: the frame number `index` of a naturally aligned group of
    /// `frames` frames that are all free. The others stay free.
    Group {
        /// The frames of a group, a power of two.
        frames: u64,
        /// Which of them.
        index: u64,
    },
}

/// Gives, shares and takes back the frames of user memory.
///
/// # Safety
///
/// A frame that [`allocate`](Self::allocate) gives must be of the space's page size, aligned to it,
/// below the physical address size of its geometry, and nobody else's until as many owners as it
/// has got (one by `allocate`, one more by each [`share`](Self::share)) were taken from it by
/// [`release`](Self::release). [`is_shared`](Self::is_shared) and [`sharing`](Self::sharing) must
/// tell the truth for as long as the one space that owns a frame alone does not share it; of a frame
/// with several owners they may say so although all but one have just gone. Frames that follow each other are those whose addresses differ by the page size.
pub unsafe trait UserFrames {
    /// A frame with one owner and with anything in it; `None` if there is none.
    fn allocate(&mut self, wanted: Wanted) -> Option<PhysicalAddress>;
    /// Makes all of a frame zero.
    fn zero(&mut self, frame: PhysicalAddress);
    /// Makes the frame `to` hold what `from` holds.
    fn copy(&mut self, from: PhysicalAddress, to: PhysicalAddress);
    /// One owner more for each of `count` frames that follow each other.
    fn share(&mut self, first: PhysicalAddress, count: u64);
    /// One owner less for each of these frames; those without one are free.
    fn release(&mut self, frames: FreedFrames);
    /// Whether a frame has more than one owner.
    fn is_shared(&self, frame: PhysicalAddress) -> bool;
    /// As [`is_shared`](Self::is_shared) of the first of `count` frames that follow each other, with
    /// how many of them, itself included, have the same answer; fewer is no mistake, none is. Who
    /// takes a lock for an answer does better to give as many as it can.
    fn sharing(&self, first: PhysicalAddress, _count: u64) -> (bool, u64) {
        (self.is_shared(first), 1)
    }
    /// Makes what was stored in a frame visible to instruction fetches of all CPUs: before it is
    /// first mapped executable.
    fn sync_instructions(&mut self, frame: PhysicalAddress);
}
