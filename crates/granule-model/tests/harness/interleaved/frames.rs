//! Frames of a program's memory, each with the page that it came for: by that, what an access finds is
//! distinguished from what it must not find.

use super::machine::PAGE;
use granule::arch::{PageSize, PhysicalAddress};
use granule::space::{UserFrames, Wanted};
use granule::table::FreedFrames;

/// Where frames are, and how many.
const FRAMES: u64 = 0x10_0000_0000;
const COUNT: usize = 64;

#[derive(Clone, Copy, Default)]
pub(super) struct Frame {
    pub(super) owners: u32,
    /// The page that it came for.
    pub(super) page: u64,
    /// A program wrote it.
    pub(super) written: bool,
}

/// Frames, and the pages that they are for; looked at by accesses too, so with a lock of their own.
#[derive(Clone)]
pub(super) struct Frames {
    pub(super) all: std::sync::Arc<std::sync::Mutex<Vec<Frame>>>,
    /// The page that a frame is needed for.
    pub(super) page: u64,
    /// Whether there are runs for whole groups.
    pub(super) runs: bool,
}

impl Frames {
    /// All free.
    pub(super) fn new() -> Self {
        Self {
            all: std::sync::Arc::new(std::sync::Mutex::new(vec![Frame::default(); COUNT])),
            page: 0,
            runs: false,
        }
    }

    fn index(frame: PhysicalAddress) -> usize {
        ((frame.0 - FRAMES) / PAGE) as usize
    }

    pub(super) fn with<R>(&self, frame: PhysicalAddress, what: impl FnOnce(&mut Frame) -> R) -> R {
        what(&mut self.all.lock().unwrap()[Self::index(frame)])
    }
}

// SAFETY: a frame is given out when it has no owner, and owners are counted.
unsafe impl UserFrames for Frames {
    fn page_size(&self) -> PageSize {
        PageSize::from_bytes(PAGE).unwrap()
    }

    fn allocate(&mut self, wanted: Wanted) -> Option<PhysicalAddress> {
        let mut all = self.all.lock().unwrap();
        let is_free = |index: usize| all.get(index).is_some_and(|frame| frame.owners == 0);
        let wish = match wanted {
            Wanted::Exactly(frame) => Some(Self::index(frame)).filter(|&index| is_free(index)),
            Wanted::Group { frames, index } => (0..COUNT)
                .step_by(frames as usize)
                .find(|&first| (first..first + frames as usize).all(is_free))
                .map(|first| first + index as usize),
            _ => None,
        };
        // The lowest: one that was just given back is used again at once.
        let index = wish.or_else(|| (0..COUNT).find(|&index| is_free(index)))?;
        all[index] = Frame {
            owners: 1,
            page: self.page,
            written: false,
        };
        Some(PhysicalAddress(FRAMES + index as u64 * PAGE))
    }

    fn allocate_run(&mut self, count: u64) -> Option<PhysicalAddress> {
        if !self.runs {
            return None;
        }
        let mut all = self.all.lock().unwrap();
        let count = count as usize;
        let first = (0..=COUNT - count).step_by(count).find(|&first| {
            all[first..first + count]
                .iter()
                .all(|frame| frame.owners == 0)
        })?;
        // The page that the run is for is the first one of its group, as the frames are aligned.
        let start = self.page & !(count as u64 - 1);
        for (number, frame) in all[first..first + count].iter_mut().enumerate() {
            *frame = Frame {
                owners: 1,
                page: start + number as u64,
                written: false,
            };
        }
        Some(PhysicalAddress(FRAMES + first as u64 * PAGE))
    }

    fn zero(&mut self, _: PhysicalAddress, _: u64) {}

    fn copy(&mut self, _: PhysicalAddress, to: PhysicalAddress) {
        assert_eq!(self.with(to, |frame| frame.owners), 1);
    }

    fn share(&mut self, first: PhysicalAddress, count: u64) {
        for at in 0..count {
            let frame = PhysicalAddress(first.0 + at * PAGE);
            self.with(frame, |frame| frame.owners += 1);
        }
    }

    fn release(&mut self, frames: FreedFrames) {
        for at in 0..frames.count() {
            let frame = PhysicalAddress(frames.first().0 + at * PAGE);
            self.with(frame, |frame| frame.owners -= 1);
        }
    }

    fn is_shared(&self, frame: PhysicalAddress) -> bool {
        self.with(frame, |frame| frame.owners > 1)
    }

    fn sharing(&self, first: PhysicalAddress, count: u64) -> (bool, u64) {
        let all = self.all.lock().unwrap();
        let frames = all[Self::index(first)..].iter().take(count as usize);
        let shared = all[Self::index(first)].owners > 1;
        let alike = frames.take_while(|frame| frame.owners > 0 && (frame.owners > 1) == shared);
        (shared, alike.count() as u64)
    }

    fn sync_instructions(&mut self, _: PhysicalAddress, _: u64) {
        unreachable!("no page of these programs may be executed");
    }
}
