//! The phases of the boot, from the image's first instruction to the first program's, by the virtual counter.

use super::counter::InstructionCounter;
use super::cpu;

/// The most phases.
const MOST: usize = 9;

/// The phases that have ended, each with the counter at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    /// The counter at the first instruction.
    began: u64,
    ended: [(&'static str, u64); MOST],
    count: usize,
}

/// A phase that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// `None` if the counter does not advance with the instructions, or nobody asked for them.
    pub(crate) instructions: Option<u64>,
    pub(crate) microseconds: u64,
}

impl Phases {
    /// The first phase begins with the counter at `began`, and ends now.
    pub(crate) fn new(began: u64, name: &'static str) -> Self {
        let mut phases = Self {
            began,
            ended: [("", 0); MOST],
            count: 0,
        };
        phases.end(name);
        phases
    }

    /// Ends a phase, and begins the next one. Of more phases than there is room for, the last one has all.
    pub(crate) fn end(&mut self, name: &'static str) {
        let at = self.count.min(MOST - 1);
        self.ended[at] = (name, cpu::counter_now());
        self.count = at + 1;
    }

    /// The phases in order. Their sum is the whole.
    pub(crate) fn all(&self, counter: Option<&InstructionCounter>) -> impl Iterator<Item = Phase> {
        let (mut last, mut until) = (self.began, 0);
        let (began, per_tick) = (self.began, counter.and_then(InstructionCounter::per_tick));
        self.ended.iter().take(self.count).map(move |(name, now)| {
            let ticks = now.wrapping_sub(last);
            last = *now;
            // Rounded at its ends and not by itself, so that the sum is right.
            let before = until;
            until = cpu::microseconds(now.wrapping_sub(began));
            Phase {
                name,
                instructions: per_tick.map(|per_tick| ticks * per_tick),
                microseconds: until - before,
            }
        })
    }
}
