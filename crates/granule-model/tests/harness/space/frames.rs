//! Frames of user memory: owners, a value each, and a word to the model when one is free, or holds other
//! instructions than before.

use super::processes::user;
use crate::machine::Shared;
use granule::arch::{PageSize, PhysicalAddress};
use granule::space::{UserFrames, Wanted};
use granule::table::FreedFrames;
use granule_model::{AccessKind, Barrier, Event, Outcome, System};

/// Where those of the first page size begin, and the bytes for each size.
pub(super) const FIRST: u64 = 0x10_0000_0000;
pub(super) const APART: u64 = 0x10_0000_0000;
/// The number of frames for single pages, and of all with those for whole leaves.
const SINGLE: usize = 4096;
const COUNT: usize = SINGLE + 4096;

pub(crate) struct Frames {
    world: Shared,
    page: u64,
    first: u64,
    owners: Vec<u32>,
    values: Vec<u64>,
    /// The frames that were filled since instruction fetches were last made to find what they hold.
    filled: Vec<bool>,
    next: usize,
    /// The number that can be had.
    pub(crate) left: u64,
    /// Whether there are runs for whole leaves.
    pub(crate) runs: bool,
    /// Addresses of the space that is worked on, as first and bytes: when frames of it are free
    /// for others, no CPU may translate them as before.
    pub(crate) concerned: Option<(u64, u64)>,
}

impl Frames {
    /// Frames of `page` bytes from `first` on.
    pub(super) fn new(world: &Shared, page: u64, first: u64) -> Self {
        Self {
            world: world.clone(),
            page,
            first,
            owners: vec![0; COUNT],
            values: vec![0; COUNT],
            filled: vec![false; COUNT],
            next: 0,
            left: u64::MAX,
            runs: true,
            concerned: None,
        }
    }

    fn index(&self, frame: PhysicalAddress) -> usize {
        let index = ((frame.0 - self.first) / self.page) as usize;
        assert!(self.owners[index] > 0, "{frame} is used and free");
        index
    }

    pub(super) fn value(&self, frame: u64) -> u64 {
        self.values[self.index(PhysicalAddress(frame))]
    }

    pub(super) fn write(&mut self, frame: u64, value: u64) {
        let index = self.index(PhysicalAddress(frame));
        assert_eq!(self.owners[index], 1, "a shared frame is written");
        self.values[index] = value;
    }

    pub(crate) fn owned(&self) -> u64 {
        self.owners.iter().map(|owners| u64::from(*owners)).sum()
    }

    /// The kernel stored what may be instructions.
    fn fill(&mut self, first: PhysicalAddress, count: u64) {
        let index = self.index(first);
        self.filled[index..index + count as usize].fill(true);
        let stored = Event::code(first.0, count * self.page);
        self.world.borrow_mut().event(stored);
    }

    /// No CPU may fetch what was filled and not synchronised.
    fn check_not_fetched(&self, first: PhysicalAddress, count: u64) {
        let Some((address, bytes)) = self.concerned else {
            return;
        };
        let filled = |at: u64| {
            let frame = at.wrapping_sub(self.first) / self.page;
            let among = at.wrapping_sub(first.0) < count * self.page;
            among && self.filled[frame as usize]
        };
        if !(0..count).any(|frame| filled(first.0 + frame * self.page)) {
            return;
        }
        let mut world = self.world.borrow_mut();
        for va in (address..address + bytes).step_by(self.page as usize) {
            for cpu in 0..world.model.config().cpus {
                let outcomes = world.model.outcomes(cpu, va, user(AccessKind::Fetch));
                let wrong =
                    |one: &Outcome| matches!(one, Outcome::Memory(to) if filled(to.address));
                if outcomes.iter().any(wrong) {
                    world.watch.wrong.get_or_insert_with(|| {
                        format!(
                            "CPU {cpu} may fetch at {va:#x} before sync_instructions: {outcomes:?}"
                        )
                    });
                }
            }
        }
    }

    fn is_free(&self, index: usize) -> bool {
        self.owners.get(index) == Some(&0)
    }
}

// SAFETY: a frame is given out when it has no owner, and owners are counted.
unsafe impl UserFrames for Frames {
    fn page_size(&self) -> PageSize {
        PageSize::from_bytes(self.page).unwrap_or(PageSize::MAX)
    }

    fn allocate(&mut self, wanted: Wanted) -> Option<PhysicalAddress> {
        self.left = self.left.checked_sub(1)?;
        let wish = match wanted {
            Wanted::Exactly(frame) => Some(((frame.0 - self.first) / self.page) as usize)
                .filter(|&index| self.is_free(index)),
            Wanted::Group { frames, index } => (0..SINGLE)
                .step_by(frames as usize)
                .find(|&first| (first..first + frames as usize).all(|one| self.is_free(one)))
                .map(|first| first + index as usize),
            _ => None,
        };
        let index = wish.or_else(|| {
            // Not the one that was freed last: what is wrong with that one shows at the release.
            self.next = (self.next + 37) % SINGLE;
            (self.next..SINGLE)
                .chain(0..self.next)
                .find(|&index| self.is_free(index))
        })?;
        self.owners[index] = 1;
        self.values[index] = u64::MAX;
        Some(PhysicalAddress(self.first + index as u64 * self.page))
    }

    fn allocate_run(&mut self, frames: u64) -> Option<PhysicalAddress> {
        let left = self.left.checked_sub(frames).filter(|_| self.runs)?;
        let count = frames as usize;
        let first = (SINGLE..=COUNT - count)
            .step_by(count)
            .find(|&first| (first..first + count).all(|one| self.is_free(one)))?;
        self.left = left;
        self.owners[first..first + count].fill(1);
        self.values[first..first + count].fill(u64::MAX);
        Some(PhysicalAddress(self.first + first as u64 * self.page))
    }

    fn zero(&mut self, first: PhysicalAddress, count: u64) {
        let index = self.index(first);
        self.values[index..index + count as usize].fill(0);
        self.fill(first, count);
    }

    fn copy(&mut self, from: PhysicalAddress, to: PhysicalAddress) {
        let value = self.value(from.0);
        self.write(to.0, value);
        self.fill(to, 1);
    }

    fn share(&mut self, first: PhysicalAddress, count: u64) {
        for frame in 0..count {
            let index = self.index(PhysicalAddress(first.0 + frame * self.page));
            self.owners[index] += 1;
        }
    }

    fn release(&mut self, frames: FreedFrames) {
        for frame in 0..frames.count() {
            let index = self.index(PhysicalAddress(frames.first().0 + frame * self.page));
            self.owners[index] -= 1;
            self.left = self.left.saturating_add(1);
        }
        if let Some((address, bytes)) = self.concerned {
            let assumed = Event::assume_visible(address, bytes);
            self.world.borrow_mut().event(assumed);
        }
    }

    fn is_shared(&self, frame: PhysicalAddress) -> bool {
        self.owners[self.index(frame)] > 1
    }

    fn sharing(&self, first: PhysicalAddress, count: u64) -> (bool, u64) {
        let start = self.index(first);
        let shared = self.is_shared(first);
        let frames = self.owners[start..].iter().take(count as usize);
        let alike = frames.take_while(|owners| **owners > 0 && (**owners > 1) == shared);
        (shared, alike.count() as u64)
    }

    /// As a kernel does it on a CPU whose CTR_EL0 requires everything.
    fn sync_instructions(&mut self, first: PhysicalAddress, count: u64) {
        self.check_not_fetched(first, count);
        let index = self.index(first);
        self.filled[index..index + count as usize].fill(false);
        let mut world = self.world.borrow_mut();
        for event in [
            Event::lines(System::DC_CVAU, first.0, count * self.page),
            Event::Barrier(Barrier::DSB_ISH),
            Event::System(System::IC_IALLUIS, 0),
            Event::Barrier(Barrier::DSB_ISH),
            Event::Barrier(Barrier::ISB),
        ] {
            world.event(event);
        }
    }
}
