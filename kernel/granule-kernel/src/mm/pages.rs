//! The kernel's page allocator: the frame allocator over all RAM behind one lock, used once early memory has
//! handed over. The lock masks interrupts, so interrupt handlers may take it too. Functions that take it for
//! many pages, or seldom, are not inlined, so that the image has one copy of each.

#![allow(unsafe_code, reason = "the metadata's memory")]

use super::hook::refuses_allocation;
use crate::lock::Lock;
use arrayvec::ArrayVec;
use core::ops::Range;
use granule::arch::PhysicalAddress;
use granule::linear::Placement;
use granule_boot::memblock::Region;
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::frames::metadata::{Word, metadata_at, metadata_bytes};
use granule_kcore::frames::tables::Source;
use granule_kcore::frames::{self, Frame, FrameError, Frames, MOST_SPANS};
use granule_kcore::sizes;
use thiserror::Error;

/// The allocator is too large to be moved through the boot stack, so it is built in place. It has no page
/// before [`take_over`].
static PAGES: Lock<Frames<'static>> = Lock::new(Frames::new(sizes::MIN));

/// Why the frame allocator could not take over.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum TakeOverError {
    #[error("RAM is too small: there is no free range for {bytes} bytes about its own pages")]
    Metadata { bytes: u64 },
    #[error("the page allocator refuses RAM: {0}")]
    Frames(#[from] FrameError),
}

/// The result of taking over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedOver {
    /// Number of frames that can be allocated.
    pub(crate) free: u64,
    /// Bytes of RAM for the frames' metadata. Most of it is not touched.
    pub(crate) metadata_bytes: u64,
}

/// Gives all free RAM in `memory` to the frame allocator. From here on `memory` is a description only and
/// must not allocate any more.
#[inline(never)]
pub(crate) fn take_over(
    memory: &Memory,
    placement: &Placement,
) -> Result<HandedOver, TakeOverError> {
    PAGES.with(|frames| fill(frames, memory, placement))
}

fn fill(
    frames: &mut Frames<'static>,
    memory: &Memory,
    placement: &Placement,
) -> Result<HandedOver, TakeOverError> {
    let page_size = memory.page_size();
    frames.begin(page_size);
    let mut taken = Taken::new();
    let mut all_metadata = 0;
    for (start, end) in frames::spans::spans(memory.mapped(), page_size) {
        let count = (end - start) >> page_size.shift();
        let bytes = metadata_bytes(count);
        let whole = bytes.next_multiple_of(page_size.bytes());
        // Prefer the span that the metadata describes, so that each bank carries its own; else any free
        // range.
        let at = room(memory, &taken, start..end, whole)
            .or_else(|| room(memory, &taken, 0..u64::MAX, whole))
            .filter(|&at| taken.try_push((at, at + whole)).is_ok())
            .ok_or(TakeOverError::Metadata { bytes })?;
        all_metadata += whole;
        let pointer = at.wrapping_add(placement.distance()) as *mut Word;
        // SAFETY: the range is free and recorded in `taken`, so nothing else gets it, and it is never freed.
        // The linear map shows all of early memory writable, in whole pages.
        let metadata = unsafe { metadata_at(pointer, count) };
        frames.add_span(Frame(start >> page_size.shift()), count, metadata)?;
    }
    for range in memory.free_pages() {
        let count = (untaken_end(&taken, range) - range.start()) >> page_size.shift();
        if count > 0 {
            frames.add_range(Frame(range.start() >> page_size.shift()), count)?;
        }
    }
    Ok(HandedOver {
        free: frames.free_frames(),
        metadata_bytes: all_metadata,
    })
}

/// A receiver of each page after it is allocated, before its first use (`true`), and of each page that is freed, before it
/// can be allocated again: the first address, the number of bytes.
type PageWatch = fn(PhysicalAddress, u64, bool);

static WATCH: spin::Once<PageWatch> = spin::Once::new();

pub(super) fn watch_by(watch: PageWatch) {
    WATCH.call_once(|| watch);
}

pub(super) fn notify_allocated(start: PhysicalAddress, bytes: u64) {
    if let Some(watch) = WATCH.get() {
        watch(start, bytes, true);
    }
}

pub(super) fn notify_freed(start: PhysicalAddress, bytes: u64) {
    if let Some(watch) = WATCH.get() {
        watch(start, bytes, false);
    }
}

/// Allocates `2^order` frames in one block, which the linear map shows writable. Returns `None` if there is
/// no such block.
#[inline(never)]
pub(crate) fn allocate(order: u32) -> Option<Frame> {
    if refuses_allocation() {
        return None;
    }
    let (frame, size) = PAGES.with(|frames| Some((frames.allocate(order)?, frames.page_size())))?;
    notify_allocated(frame.address(size), size.bytes() << order);
    Some(frame)
}

/// Frees the block of `2^order` frames that [`allocate`] returned. The linear map must show it as it did
/// then.
#[inline(never)]
pub(crate) fn free(frame: Frame, order: u32) -> Result<(), FrameError> {
    PAGES.with(|frames| {
        let size = frames.page_size();
        frames.free(frame, order)?;
        // Under the lock, so no other CPU can have allocated the block yet.
        notify_freed(frame.address(size), size.bytes() << order);
        Ok(())
    })
}

/// Whether `frame` is free; `None` if the lock is taken.
#[inline(never)]
pub(crate) fn is_free(frame: Frame) -> Option<bool> {
    PAGES.try_with(|frames| frames.is_free(frame))
}

/// The ranges taken from early memory, each from the end of a free range.
type Taken = ArrayVec<(u64, u64), MOST_SPANS>;

/// The end of the untaken part of a free range.
fn untaken_end(taken: &Taken, range: Region) -> u64 {
    taken
        .iter()
        .map(|&(start, _)| start)
        .filter(|&start| range.contains(start))
        .fold(range.end(), u64::min)
}

/// Finds `bytes` bytes at the end of a free range that begins in `within`.
fn room(memory: &Memory, taken: &Taken, within: Range<u64>, bytes: u64) -> Option<u64> {
    memory
        .free_pages()
        .filter(|range| within.contains(&range.start()))
        .find_map(|range| {
            let left = untaken_end(taken, range) - range.start();
            let before = left.checked_sub(bytes)?;
            Some(range.start() + before)
        })
}

/// The frame allocator as a source of table pages. Each call takes the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages;

impl Source for Pages {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        PAGES.with(|frames| what(frames))
    }
}

/// Allocates a single frame with one owner; `None` if there is none.
pub(crate) fn allocate_one() -> Option<PhysicalAddress> {
    single(|frames| frames.allocate(0))
}

/// Allocates the frame at `address` as a single frame, if it is free.
#[inline(never)]
pub(crate) fn allocate_exactly(address: PhysicalAddress) -> Option<PhysicalAddress> {
    single(|frames| {
        let frame = Frame::containing(address, frames.page_size());
        frames.allocate_exact(frame).then_some(frame)
    })
}

/// Allocates one frame of a free group: number `index` of `count` frames. The group begins at a multiple of
/// `count`, a power of two.
pub(crate) fn allocate_in_group(count: u64, index: u64) -> Option<PhysicalAddress> {
    single(|frames| frames.allocate_in_group(count.checked_ilog2()?, index))
}

/// Allocates `count` frames, a power of two, in one block, as single frames with one owner each. `None` if no
/// such block is free.
#[inline(never)]
pub(crate) fn allocate_singles(count: u64) -> Option<PhysicalAddress> {
    if refuses_allocation() {
        return None;
    }
    let order = count.checked_ilog2()?;
    let (frame, size) =
        PAGES.with(|frames| Some((frames.allocate_singles(order)?, frames.page_size())))?;
    let first = frame.address(size);
    notify_allocated(first, size.bytes() << order);
    Some(first)
}

fn single(take: impl FnOnce(&mut Frames<'static>) -> Option<Frame>) -> Option<PhysicalAddress> {
    if refuses_allocation() {
        return None;
    }
    let (frame, size) = PAGES.with(|frames| Some((take(frames)?, frames.page_size())))?;
    let address = frame.address(size);
    notify_allocated(address, size.bytes());
    Some(address)
}

/// Most frames that are shared or released under one taking of the lock, because interrupts wait for it.
const MOST_AT_ONCE: u64 = 512;

/// Calls `what` with parts of the `count` frames from `first`. Parts end at multiples of [`MOST_AT_ONCE`], so
/// that the frames freed in one part form one block, wherever the range begins.
fn in_parts(
    first: PhysicalAddress,
    count: u64,
    mut what: impl FnMut(&mut Frames<'static>, Frame, u64),
) {
    let mut done = 0;
    while done < count {
        done += PAGES.with(|frames| {
            let at = Frame::containing(first, frames.page_size()).0 + done;
            let part = (MOST_AT_ONCE - at % MOST_AT_ONCE).min(count - done);
            what(frames, Frame(at), part);
            part
        });
    }
}

/// The address and number of frames of a run of single frames.
pub(crate) type Run = (PhysicalAddress, u64);

/// Allocates the first run of free frames in a range, as single frames. Returns `Ok(None)` once no frame is
/// free. Long runs come in parts.
pub(crate) fn allocate_free_in(range: Range<u64>) -> Result<Option<Run>, NoMemory> {
    if refuses_allocation() {
        return Err(NoMemory);
    }
    let mut next = range.start;
    while next < range.end {
        let (size, run) = PAGES.with(|frames| {
            let size = frames.page_size();
            let mut run = None;
            for _ in 0..MOST_AT_ONCE {
                let address = PhysicalAddress(next);
                let taken =
                    next < range.end && frames.allocate_exact(Frame::containing(address, size));
                match &mut run {
                    None if taken => run = Some((address, 1)),
                    Some((_, count)) if taken => *count += 1,
                    None if next < range.end => {}
                    _ => break,
                }
                next += size.bytes();
            }
            (size, run)
        });
        if let Some((first, count)) = run {
            notify_allocated(first, count << size.shift());
            return Ok(run);
        }
    }
    Ok(None)
}

/// Allocates one run of 1 to `most` single frames, anywhere.
#[inline(never)]
pub(crate) fn allocate_run(most: u64) -> Result<Run, NoMemory> {
    if refuses_allocation() {
        return Err(NoMemory);
    }
    let (size, run) = PAGES.with(|frames| {
        let mut wanted = most.min(MOST_AT_ONCE);
        while wanted > 0 && !frames.reserve(wanted) {
            wanted /= 2;
        }
        let run = frames.take_reserved(wanted);
        frames.unreserve(wanted - run.map_or(0, |(_, count)| count));
        let size = frames.page_size();
        (size, run.map(|(first, count)| (first.address(size), count)))
    });
    let (first, count) = run.ok_or(NoMemory)?;
    notify_allocated(first, count << size.shift());
    Ok((first, count))
}

/// No frame is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// Calls `what` with the address and size in bytes of each free block of at least `least` bytes.
pub(crate) fn each_free_block(least: u64, mut what: impl FnMut(PhysicalAddress, u64)) {
    PAGES.with(|frames| {
        let size = frames.page_size();
        frames.each_free(|frame, order| {
            let bytes = size.bytes() << order;
            if bytes >= least {
                what(frame.address(size), bytes);
            }
        });
    });
}

/// Adds one owner to each of `count` single frames from `first`.
#[inline(never)]
pub(crate) fn share(first: PhysicalAddress, count: u64) {
    in_parts(first, count, |frames, first, count| {
        // The frame allocator counts the calls that it refuses.
        let _ = frames.share(first, count);
    });
}

/// Removes one owner from each of `count` single frames from `first`.
#[inline(never)]
pub(crate) fn release(first: PhysicalAddress, count: u64) {
    if count == 1 && PAGES.with(|frames| frames.leave(Frame::containing(first, frames.page_size())))
    {
        return;
    }
    release_all(first, count);
}

#[inline(never)]
fn release_all(first: PhysicalAddress, count: u64) {
    in_parts(first, count, |frames, first, count| {
        let size = frames.page_size();
        // Under the lock, so no other CPU can have allocated the freed frames yet. The frame allocator counts
        // the calls that it refuses.
        let _ = frames.release(first, count, |frame, count| {
            notify_freed(frame.address(size), count << size.shift());
        });
    });
}

/// Whether a single frame has more than one owner.
#[inline(never)]
pub(crate) fn is_shared(frame: PhysicalAddress) -> bool {
    PAGES.with(|frames| frames.is_shared(Frame::containing(frame, frames.page_size())))
}

/// Whether a single frame has more than one owner, and for how many frames from `first` the same answer
/// holds: at most `count`, and at most as many as one taking of the lock examines.
#[inline(never)]
pub(crate) fn sharing(first: PhysicalAddress, count: u64) -> (bool, u64) {
    PAGES.with(|frames| {
        let first = Frame::containing(first, frames.page_size());
        let (shared, alike) = frames.sharing(first, count.min(MOST_AT_ONCE) as u32);
        (shared, u64::from(alike))
    })
}

/// The allocator's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Frames that are allocated.
    pub(crate) allocated: u64,
    /// Calls that were refused.
    pub(crate) refused: u64,
}

/// Reads the allocator's counters.
#[inline(never)]
pub(crate) fn counted() -> Counted {
    PAGES.with(|frames| Counted {
        allocated: frames.allocated(),
        refused: frames.refused(),
    })
}
