//! Frames of user memory: numbers with owners and a value each, in place of bytes.

use granule::arch::{PageSize, PhysicalAddress};
use granule::space::{UserFrames, Wanted};
use granule::table::FreedFrames;

/// One frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    pub owners: u32,
    /// The contents.
    pub value: u64,
    /// Instruction fetches find what it held when it came.
    pub synchronised: bool,
}

impl Frame {
    /// The kernel fills it: instruction fetches may still find what it held before.
    fn fill(&mut self, value: u64) {
        (self.value, self.synchronised) = (value, false);
    }
}

/// The contents of a frame that nobody zeroed.
const GARBAGE: u64 = 0xdead_dead_dead_dead;

pub struct Frames {
    pub first: u64,
    pub page: u64,
    pub frames: Vec<Frame>,
    /// The number that are given out one by one.
    single: usize,
    /// The number that can still be had.
    pub budget: usize,
    /// Whether wishes are fulfilled.
    pub obliging: bool,
    /// Whether there are runs for whole leaves.
    pub runs: bool,
    /// Whether who has no wish gets what was given back last, as from most allocators.
    pub reusing: bool,
    given_back: Option<usize>,
    random: u64,
}

impl Frames {
    /// `single` frames, and behind them room for runs of `runs` frames in all.
    pub fn new(first: u64, page: u64, single: usize, runs: usize) -> Self {
        assert_eq!(first % page, 0);
        Self {
            first,
            page,
            frames: vec![Frame::default(); single + runs],
            single,
            budget: usize::MAX,
            obliging: true,
            runs: true,
            reusing: false,
            given_back: None,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn index(&self, frame: PhysicalAddress) -> usize {
        let offset = frame.0.checked_sub(self.first).expect("a frame below all");
        assert_eq!(offset % self.page, 0, "{frame} is not a frame");
        (offset / self.page) as usize
    }

    pub fn at(&self, frame: u64) -> &Frame {
        let frame = &self.frames[self.index(PhysicalAddress(frame))];
        assert!(frame.owners > 0, "a frame is used that is free");
        frame
    }

    pub fn at_mut(&mut self, frame: u64) -> &mut Frame {
        let index = self.index(PhysicalAddress(frame));
        let frame = &mut self.frames[index];
        assert!(frame.owners > 0, "a frame is used that is free");
        frame
    }

    pub fn owners(&self) -> u64 {
        self.frames
            .iter()
            .map(|frame| u64::from(frame.owners))
            .sum()
    }

    fn is_free(&self, index: usize) -> bool {
        self.frames
            .get(index)
            .is_some_and(|frame| frame.owners == 0)
    }

    /// The first frame of an aligned run of free frames among some.
    fn free_run(&self, within: std::ops::Range<usize>, frames: u64) -> Option<usize> {
        assert!(frames.is_power_of_two());
        let bytes = frames * self.page;
        let mut start = (self.first + within.start as u64 * self.page).next_multiple_of(bytes);
        while start + bytes <= self.first + within.end as u64 * self.page {
            let first = ((start - self.first) / self.page) as usize;
            if (first..first + frames as usize).all(|index| self.is_free(index)) {
                return Some(first);
            }
            start += bytes;
        }
        None
    }

    fn wished(&self, wanted: Wanted) -> Option<usize> {
        if !self.obliging {
            return None;
        }
        match wanted {
            Wanted::Exactly(frame) => {
                let index = frame.0.checked_sub(self.first)? / self.page;
                self.is_free(index as usize).then_some(index as usize)
            }
            Wanted::Group { frames, index } => {
                assert!(index < frames);
                let first = self.free_run(0..self.single, frames)?;
                Some(first + index as usize)
            }
            _ => None,
        }
    }
}

// SAFETY: a frame is given out when it has no owner, and owners are counted.
unsafe impl UserFrames for Frames {
    fn page_size(&self) -> PageSize {
        PageSize::from_bytes(self.page).unwrap()
    }

    fn allocate(&mut self, wanted: Wanted) -> Option<PhysicalAddress> {
        if self.budget == 0 {
            return None;
        }
        let last = self
            .given_back
            .filter(|&index| self.reusing && self.is_free(index));
        let index = self.wished(wanted).or(last).or_else(|| {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let start = (self.random % self.single as u64) as usize;
            (start..self.single)
                .chain(0..start)
                .find(|&index| self.is_free(index))
        })?;
        self.budget -= 1;
        self.frames[index] = Frame {
            owners: 1,
            value: GARBAGE,
            synchronised: false,
        };
        Some(PhysicalAddress(self.first + index as u64 * self.page))
    }

    fn allocate_run(&mut self, frames: u64) -> Option<PhysicalAddress> {
        let left = self.budget.checked_sub(frames as usize)?;
        if !self.runs {
            return None;
        }
        let first = self.free_run(self.single..self.frames.len(), frames)?;
        self.budget = left;
        self.frames[first..first + frames as usize].fill(Frame {
            owners: 1,
            value: GARBAGE,
            synchronised: false,
        });
        Some(PhysicalAddress(self.first + first as u64 * self.page))
    }

    fn zero(&mut self, first: PhysicalAddress, count: u64) {
        for frame in 0..count {
            self.at_mut(first.0 + frame * self.page).fill(0);
        }
    }

    fn copy(&mut self, from: PhysicalAddress, to: PhysicalAddress) {
        let value = self.at(from.0).value;
        assert_eq!(self.at(to.0).owners, 1, "copied over what others use");
        self.at_mut(to.0).fill(value);
    }

    fn share(&mut self, first: PhysicalAddress, count: u64) {
        assert!(count > 0);
        for frame in 0..count {
            self.at_mut(first.0 + frame * self.page).owners += 1;
        }
    }

    fn release(&mut self, frames: FreedFrames) {
        let (first, count) = (frames.first(), frames.count());
        assert!(count > 0);
        for frame in 0..count {
            self.at_mut(first.0 + frame * self.page).owners -= 1;
        }
        self.given_back = Some(self.index(PhysicalAddress(first.0 + (count - 1) * self.page)));
        self.budget = self.budget.saturating_add(count as usize);
    }

    fn is_shared(&self, frame: PhysicalAddress) -> bool {
        self.at(frame.0).owners > 1
    }

    /// As many as there are, or not quite, as from an allocator that looks at some at a time.
    fn sharing(&self, first: PhysicalAddress, count: u64) -> (bool, u64) {
        let start = self.index(first);
        let most = if start % 3 == 2 { count } else { count.min(7) };
        let shared = self.is_shared(first);
        let same = |frame: &&Frame| frame.owners > 0 && (frame.owners > 1) == shared;
        let frames = self.frames[start..].iter().take(most as usize);
        (shared, frames.take_while(same).count() as u64)
    }

    fn sync_instructions(&mut self, first: PhysicalAddress, count: u64) {
        for frame in 0..count {
            self.at_mut(first.0 + frame * self.page).synchronised = true;
        }
    }
}
