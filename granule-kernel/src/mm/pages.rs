//! The kernel's pages: the frame allocator over all RAM, behind one lock, from when early memory
//! hands over. Interrupts may take that lock: it masks them. What takes it for many pages at once, or
//! seldom, stands once in the image and not in each caller.

use super::hook::refuses_allocation;
use crate::lock::Lock;
use arrayvec::ArrayVec;
use core::fmt;
use core::ops::Range;
use granule::arch::PhysicalAddress;
use granule::linear::Placement;
use granule_boot::memblock::Region;
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::frames::metadata::{Word, metadata_at, metadata_bytes};
use granule_kcore::frames::tables::Source;
use granule_kcore::frames::{Frame, FrameError, Frames, MOST_SPANS};
use granule_kcore::sizes;

/// In its place from the start, since it is too large to be moved through the boot stack. Nobody
/// has a page before the hand-over: an allocator without any.
static PAGES: Lock<Frames<'static>> = Lock::new(Frames::new(sizes::MIN));

/// Why the frame allocator cannot take over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TakeOverError {
    /// There is no room for what is to be known of each frame.
    Metadata { bytes: u64 },
    /// The frame allocator refused a span or a range.
    Frames(FrameError),
}

impl fmt::Display for TakeOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata { bytes } => write!(
                f,
                "RAM is too small: there is no free range for {bytes} bytes about its own pages"
            ),
            Self::Frames(error) => write!(f, "the page allocator refuses RAM: {error}"),
        }
    }
}

impl From<FrameError> for TakeOverError {
    fn from(error: FrameError) -> Self {
        Self::Frames(error)
    }
}

/// What was handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedOver {
    /// Frames that can be allocated.
    pub(crate) free: u64,
    /// Bytes of RAM for what is known of the frames; little of it is touched.
    pub(crate) metadata_bytes: u64,
}

/// Gives all RAM that is free in `memory` to the frame allocator. From here on `memory` only
/// tells what there was: it must not allocate any more.
// Its own frame, as that of the boot is under all that follows.
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
    for (start, end) in spans(memory) {
        let count = (end - start) >> page_size.shift();
        let bytes = metadata_bytes(count);
        let whole = bytes.next_multiple_of(page_size.bytes());
        // Where it is told of, so that a bank carries its own; else wherever there is room.
        let at = room(memory, &taken, start..end, whole)
            .or_else(|| room(memory, &taken, 0..u64::MAX, whole))
            .filter(|&at| taken.try_push((at, at + whole)).is_ok())
            .ok_or(TakeOverError::Metadata { bytes })?;
        all_metadata += whole;
        let pointer = at.wrapping_add(placement.distance()) as *mut Word;
        // SAFETY: the range is free and in `taken` from here on, so nobody else gets it, and it
        // never goes back; the linear map shows all of early memory writable, whole pages.
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

/// Hears of pages, before they are used and before they can be allocated again.
pub(super) trait PageWatch: Sync {
    /// `bytes` bytes from `start` were just allocated; nobody uses them yet.
    fn allocated(&self, start: PhysicalAddress, bytes: u64);

    /// `bytes` bytes from `start` are about to be free, or just became so and nobody can allocate
    /// them yet.
    fn freed(&self, start: PhysicalAddress, bytes: u64);
}

static WATCH: spin::Once<&'static dyn PageWatch> = spin::Once::new();

/// From here on `watch` hears of pages.
pub(super) fn watch_by(watch: &'static dyn PageWatch) {
    WATCH.call_once(|| watch);
}

pub(super) fn tell_allocated(start: PhysicalAddress, bytes: u64) {
    if let Some(watch) = WATCH.get() {
        watch.allocated(start, bytes);
    }
}

pub(super) fn tell_freed(start: PhysicalAddress, bytes: u64) {
    if let Some(watch) = WATCH.get() {
        watch.freed(start, bytes);
    }
}

/// Allocates `2^order` frames in one block, whose memory the linear map shows writable; `None` if
/// there is no such block.
#[inline(never)]
pub(crate) fn allocate(order: u32) -> Option<Frame> {
    if refuses_allocation() {
        return None;
    }
    let (frame, size) = PAGES.with(|frames| Some((frames.allocate(order)?, frames.page_size())))?;
    tell_allocated(frame.address(size), size.bytes() << order);
    Some(frame)
}

/// Frees the block of `2^order` frames that [`allocate`] gave, which must be in the linear map as
/// it was then.
#[inline(never)]
pub(crate) fn free(frame: Frame, order: u32) -> Result<(), FrameError> {
    PAGES.with(|frames| {
        let size = frames.page_size();
        frames.free(frame, order)?;
        // Still under the lock, so nobody else has it yet.
        tell_freed(frame.address(size), size.bytes() << order);
        Ok(())
    })
}

/// Whether `frame` is free, if that can be told without waiting.
#[inline(never)]
pub(crate) fn is_free(frame: Frame) -> Option<bool> {
    PAGES.try_with(|frames| frames.is_free(frame))
}

/// What was taken from early memory's free ranges, always from the end of one.
type Taken = ArrayVec<(u64, u64), MOST_SPANS>;

/// The end of what is left of a free range.
fn untaken_end(taken: &Taken, range: Region) -> u64 {
    taken
        .iter()
        .map(|&(start, _)| start)
        .filter(|&start| range.contains(start))
        .fold(range.end(), u64::min)
}

/// Room for `bytes` bytes at the end of a free range that begins in `within`.
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

/// The stretches of RAM that get metadata of their own: the pieces that are mapped, neighbours
/// joined across ever larger holes until they are few enough.
fn spans(memory: &Memory) -> ArrayVec<(u64, u64), MOST_SPANS> {
    let mut hole = 0;
    loop {
        let mut spans = ArrayVec::<(u64, u64), MOST_SPANS>::new();
        let fits = memory.mapped().all(|piece| {
            if let Some(last) = spans.last_mut()
                && piece.start() - last.1 <= hole
            {
                last.1 = piece.end();
                return true;
            }
            spans.try_push((piece.start(), piece.end())).is_ok()
        });
        if fits {
            return spans;
        }
        hole = (hole * 2).max(sizes::MAX.bytes());
    }
}

/// The frame allocator, for table pages: locked for each call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages;

impl Source for Pages {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        PAGES.with(|frames| what(frames))
    }
}

/// A frame by itself, with one owner; `None` if there is none.
pub(crate) fn allocate_one() -> Option<PhysicalAddress> {
    single(|frames| frames.allocate(0))
}

/// The frame at `address` by itself, if it is free.
#[inline(never)]
pub(crate) fn allocate_exactly(address: PhysicalAddress) -> Option<PhysicalAddress> {
    single(|frames| {
        let frame = Frame::containing(address, frames.page_size());
        frames.allocate_exact(frame).then_some(frame)
    })
}

/// The frame number `index` of `count` free ones that begin at a multiple of that, a power of two,
/// by itself.
pub(crate) fn allocate_in_group(count: u64, index: u64) -> Option<PhysicalAddress> {
    single(|frames| frames.allocate_in_group(count.checked_ilog2()?, index))
}

fn single(take: impl FnOnce(&mut Frames<'static>) -> Option<Frame>) -> Option<PhysicalAddress> {
    if refuses_allocation() {
        return None;
    }
    let (frame, size) = PAGES.with(|frames| Some((take(frames)?, frames.page_size())))?;
    let address = frame.address(size);
    tell_allocated(address, size.bytes());
    Some(address)
}

/// Frames that are shared or released under one taking of the lock at most: interrupts wait for it.
const MOST_AT_ONCE: u64 = 512;

/// Calls `what` with so many frames from `first` on, some at a time: up to multiples of
/// [`MOST_AT_ONCE`], so that what becomes free in one is one block, wherever in memory it began.
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

/// Frames that were free, each by itself.
pub(crate) type Run = (PhysicalAddress, u64);

/// The first run of frames of a range that are free, each by itself; `Ok(None)` once none is. Long
/// runs come in parts.
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
            tell_allocated(first, count << size.shift());
            return Ok(run);
        }
    }
    Ok(None)
}

/// Between one frame and `most` in one run, each by itself, wherever they are.
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
    tell_allocated(first, count << size.shift());
    Ok((first, count))
}

/// There are no frames left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// Calls `what` with each free block of `least` bytes or more: where it begins, and its bytes.
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

/// One owner more for each of `count` frames from `first`, each allocated by itself.
#[inline(never)]
pub(crate) fn share(first: PhysicalAddress, count: u64) {
    in_parts(first, count, |frames, first, count| {
        // The frames count what they refuse.
        let _ = frames.share(first, count);
    });
}

/// One owner less for each of `count` frames from `first`, each allocated by itself.
#[inline(never)]
pub(crate) fn release(first: PhysicalAddress, count: u64) {
    in_parts(first, count, |frames, first, count| {
        let size = frames.page_size();
        // Still under the lock, so nobody else has what became free. The frames count what they
        // refuse.
        let _ = frames.release(first, count, |frame, count| {
            tell_freed(frame.address(size), count << size.shift());
        });
    });
}

/// Whether a frame that is allocated by itself has more than one owner, and of how many among `count`
/// from it on the same holds: not more than are looked at under one taking of the lock.
#[inline(never)]
pub(crate) fn sharing(first: PhysicalAddress, count: u64) -> (bool, u64) {
    PAGES.with(|frames| {
        let first = Frame::containing(first, frames.page_size());
        let (shared, alike) = frames.sharing(first, count.min(MOST_AT_ONCE) as u32);
        (shared, u64::from(alike))
    })
}

/// What the allocator has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Frames that are allocated.
    pub(crate) allocated: u64,
    /// Calls that it refused.
    pub(crate) refused: u64,
}

/// Counts.
#[inline(never)]
pub(crate) fn counted() -> Counted {
    PAGES.with(|frames| Counted {
        allocated: frames.allocated(),
        refused: frames.refused(),
    })
}
