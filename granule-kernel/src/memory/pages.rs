//! The kernel's pages: the frame allocator over all RAM, behind one lock, from when early memory
//! hands over.

use crate::frames::metadata::{Word, metadata_at, metadata_bytes};
use crate::frames::tables::Source;
use crate::frames::{Frame, FrameError, Frames, MOST_SPANS};
use crate::tree::Memory;
use arrayvec::ArrayVec;
use core::fmt;
use granule::arch::PageSize;
use granule::linear::Placement;
use granule::memblock::{self, Direction};
use spin::Mutex;

static PAGES: Mutex<Option<Frames<'static>>> = Mutex::new(None);

/// Why the frame allocator cannot take over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TakeOverError {
    /// There is no room for what is to be known of each frame.
    Metadata { bytes: u64, error: memblock::Error },
    /// The frame allocator refused a span or a range.
    Frames(FrameError),
}

impl fmt::Display for TakeOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata { bytes, error } => {
                write!(
                    f,
                    "RAM is too small for {bytes} bytes about its own pages: {error}"
                )
            }
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
/// tells what there was.
pub(crate) fn take_over(
    memory: &mut Memory,
    placement: &Placement,
) -> Result<HandedOver, TakeOverError> {
    let page_size = memory.page_size();
    let mut frames = Frames::new(page_size);
    let mut all_metadata = 0;
    for (start, end) in spans(memory) {
        let count = (end - start) >> page_size.shift();
        let bytes = metadata_bytes(count);
        let at = memory
            .allocate(bytes, page_size.bytes(), 0..u64::MAX, Direction::TopDown)
            .map_err(|error| TakeOverError::Metadata { bytes, error })?;
        all_metadata += bytes;
        let pointer = at.wrapping_add(placement.distance()) as *mut Word;
        // SAFETY: the range was just allocated for this alone and never goes back; the linear
        // map shows all of early memory writable, whole pages.
        let metadata = unsafe { metadata_at(pointer, count) };
        frames.add_span(Frame(start >> page_size.shift()), count, metadata)?;
    }
    for range in memory.free_pages() {
        let count = range.len() >> page_size.shift();
        frames.add_range(Frame(range.start() >> page_size.shift()), count)?;
    }
    let free = frames.free_frames();
    *PAGES.lock() = Some(frames);
    Ok(HandedOver {
        free,
        metadata_bytes: all_metadata,
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
        hole = (hole * 2).max(PageSize::MAX.bytes());
    }
}

/// The frame allocator, for table pages: locked for each call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages;

impl Source for Pages {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        let mut pages = PAGES.lock();
        match pages.as_mut() {
            Some(frames) => what(frames),
            // Nobody has a page before the hand-over: an allocator without any.
            None => what(&mut Frames::new(PageSize::MIN)),
        }
    }
}
