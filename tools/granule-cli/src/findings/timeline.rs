//! The number of events of each kind, in the order of the events: for a picture of a run. The memory is
//! bounded, whatever the run's length.

use granule_model::{BarrierKind, Event, Visibility};
use serde::Serialize;

/// The kinds, in the order of [`Timeline::object`]'s rows.
const KINDS: [&str; 9] = [
    "table stores",
    "tables",
    "registers",
    "TLBI",
    "DSB and DMB",
    "ISB and exceptions",
    "cache maintenance",
    "hardware updates",
    "frames reused",
];
const MOST_BINS: usize = 120;
/// The events of a bin at first.
const FIRST_WIDTH: u64 = 256;

/// Counts by kind in bins of equally many events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    width: u64,
    events: u64,
    bins: Vec<[u64; KINDS.len()]>,
    violations: Vec<u64>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            width: FIRST_WIDTH,
            events: 0,
            bins: Vec::new(),
            violations: Vec::new(),
        }
    }
}

const fn kind(event: &Event) -> Option<usize> {
    Some(match event {
        // What was there when memory became a table belongs to the table.
        Event::Store {
            visibility: Visibility::Earlier,
            ..
        }
        | Event::At(_)
        | Event::Missing(_)
        | Event::AssumeVisible { .. }
        | Event::Settled => return None,
        Event::Store { .. } | Event::Update { .. } => 0,
        Event::Obtained { .. } | Event::Freed { .. } => 1,
        Event::System(system, _) if system.is_register() => 2,
        Event::System(system, _) if system.is_tlbi() => 3,
        Event::Barrier(barrier) => match barrier.kind {
            BarrierKind::Isb => 5,
            _ => 4,
        },
        Event::User | Event::Reset => 5,
        Event::Found { .. } => 7,
        Event::Reused { .. } => 8,
        _ => 6,
    })
}

impl Timeline {
    /// The next event, and the violations that it made.
    pub(super) fn add(&mut self, event: &Event, violations: u64) {
        let mut bin = (self.events / self.width) as usize;
        if bin >= MOST_BINS {
            self.halve();
            bin = (self.events / self.width) as usize;
        }
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, [0; KINDS.len()]);
            self.violations.resize(bin + 1, 0);
        }
        // The end is not an event of the run, but may have violations.
        self.events += u64::from(*event != Event::Settled);
        if let Some(count) = kind(event).and_then(|kind| self.bins.get_mut(bin)?.get_mut(kind)) {
            *count += 1;
        }
        if let Some(count) = self.violations.get_mut(bin) {
            *count += violations;
        }
    }

    /// Puts each two bins together.
    fn halve(&mut self) {
        self.width *= 2;
        let sum = |pair: &[[u64; KINDS.len()]]| {
            let mut sums = [0; KINDS.len()];
            for bin in pair {
                for (sum, count) in sums.iter_mut().zip(bin) {
                    *sum += count;
                }
            }
            sums
        };
        self.bins = self.bins.chunks(2).map(sum).collect();
        self.violations = self
            .violations
            .chunks(2)
            .map(|it| it.iter().sum())
            .collect();
    }

    /// The data for a page.
    pub(super) fn object(&self) -> Drawn<'_> {
        let row = |(at, name): (usize, &&'static str)| Row {
            name,
            counts: self
                .bins
                .iter()
                .filter_map(|bin| bin.get(at).copied())
                .collect(),
        };
        Drawn {
            width: self.width,
            events: self.events,
            rows: KINDS.iter().enumerate().map(row).collect(),
            violations: &self.violations,
        }
    }
}

/// A run in bins.
#[derive(Serialize)]
pub(super) struct Drawn<'a> {
    width: u64,
    events: u64,
    rows: Vec<Row>,
    violations: &'a [u64],
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    counts: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_model::Barrier;

    #[test]
    fn nothing_is_lost_when_bins_are_put_together() {
        let mut timeline = Timeline::default();
        let all = 3 * MOST_BINS as u64 * FIRST_WIDTH + 7;
        for at in 0..all {
            let event = match at % 3 {
                0 => Event::Barrier(Barrier::ISB),
                1 => Event::Reused { start: 0, bytes: 1 },
                _ => Event::At(at),
            };
            timeline.add(&event, u64::from(at % 10 == 0));
        }
        assert!(timeline.bins.len() <= MOST_BINS && timeline.width > FIRST_WIDTH);
        let of = |kind: usize| timeline.bins.iter().map(|bin| bin[kind]).sum::<u64>();
        assert_eq!((of(5), of(8)), (all.div_ceil(3), (all - 1).div_ceil(3)));
        assert_eq!(timeline.violations.iter().sum::<u64>(), all.div_ceil(10));
        assert_eq!(timeline.object().events, all);
    }
}
