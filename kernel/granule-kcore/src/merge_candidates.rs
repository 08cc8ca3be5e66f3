//! Merge candidates: ranges of the linear map whose pages may form large leaves again. A change of
//! permissions adds its range; an idle CPU takes the oldest.
//!
//! There is room for a few ranges only. When it is full, the two closest ranges become one, including
//! the gap between them: the merging CPU then looks at more than it must, and misses nothing.

use arrayvec::ArrayVec;

/// The most separate ranges.
const MOST_CANDIDATES: usize = 16;

/// A range of addresses that may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The first address.
    pub start: u64,
    /// The last address, inclusive because a range may end where addresses end.
    pub last: u64,
    /// When the range was last added, in ticks of any clock.
    pub time: u64,
}

/// The ranges, ascending; no two overlap or touch.
#[derive(Debug, Default)]
pub struct MergeCandidates {
    ranges: ArrayVec<Candidate, MOST_CANDIDATES>,
}

impl MergeCandidates {
    /// No candidates.
    pub const fn new() -> Self {
        Self {
            ranges: ArrayVec::new_const(),
        }
    }

    /// Whether there are no candidates.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds the addresses from `start` to `last`.
    pub fn add(&mut self, start: u64, last: u64, time: u64) {
        // Most ranges lie inside one that is noted already.
        let place = self.ranges.partition_point(|old| old.last < start);
        if let Some(old) = self.ranges.get_mut(place)
            && old.start <= start
            && last <= old.last
        {
            old.time = time;
            return;
        }
        let mut new = Candidate { start, last, time };
        self.ranges.retain(|old| {
            let apart =
                old.start > new.last.saturating_add(1) || new.start > old.last.saturating_add(1);
            if !apart {
                new.start = new.start.min(old.start);
                new.last = new.last.max(old.last);
            }
            apart
        });
        if self.ranges.is_full() {
            self.join_closest(&mut new);
        }
        let place = self.ranges.partition_point(|old| old.start < new.start);
        // There is room: `join_closest` made it.
        let _ = self.ranges.try_insert(place, new);
    }

    /// Makes room: joins the two closest ranges, one of which may be `new`.
    fn join_closest(&mut self, new: &mut Candidate) {
        let gap = |before: &Candidate, after: &Candidate| after.start - before.last;
        let pairs = self.ranges.iter().zip(self.ranges.iter().skip(1));
        let closest = pairs
            .enumerate()
            .map(|(index, (before, after))| (gap(before, after), index))
            .min();
        let nearest = self.ranges.iter().enumerate().map(|(index, old)| {
            let distance = if old.start > new.start {
                gap(new, old)
            } else {
                gap(old, new)
            };
            (distance, index)
        });
        let (Some((between, first)), Some((distance, other))) = (closest, nearest.min()) else {
            return;
        };
        if distance <= between {
            let old = self.ranges.remove(other);
            new.start = new.start.min(old.start);
            new.last = new.last.max(old.last);
            new.time = new.time.max(old.time);
        } else {
            let after = self.ranges.remove(first + 1);
            if let Some(before) = self.ranges.get_mut(first) {
                before.last = after.last;
                before.time = before.time.max(after.time);
            }
        }
    }

    /// The range that was last added the longest time ago.
    pub fn oldest(&self) -> Option<Candidate> {
        self.ranges.iter().min_by_key(|note| note.time).copied()
    }

    /// Removes the part of `note` before `start`, which has been looked at; all of it if `start` is
    /// `None`. `note` came from [`oldest`](Self::oldest). A range that was added again meanwhile
    /// stays.
    pub fn done(&mut self, note: &Candidate, start: Option<u64>) {
        self.ranges.retain(|old| {
            if old != note {
                return true;
            }
            match start {
                Some(start) if start <= old.last => {
                    old.start = start.max(old.start);
                    true
                }
                _ => false,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(notes: &MergeCandidates) -> Vec<(u64, u64)> {
        notes
            .ranges
            .iter()
            .map(|note| (note.start, note.last))
            .collect()
    }

    #[test]
    fn overlapping_and_adjacent_ranges_are_one_candidate() {
        let mut notes = MergeCandidates::new();
        notes.add(100, 199, 1);
        notes.add(300, 399, 2);
        assert_eq!(ranges(&notes), [(100, 199), (300, 399)]);
        notes.add(200, 298, 3);
        assert_eq!(ranges(&notes), [(100, 298), (300, 399)]);
        assert_eq!(notes.oldest().unwrap().time, 2);
        notes.add(250, u64::MAX, 4);
        assert_eq!(ranges(&notes), [(100, u64::MAX)]);
        let note = notes.oldest().unwrap();
        assert_eq!(note.time, 4);
        notes.done(&note, Some(1000));
        assert_eq!(ranges(&notes), [(1000, u64::MAX)]);
        notes.done(&note, None);
        assert!(!notes.is_empty(), "it is not that note any more");
        notes.done(&notes.oldest().unwrap(), None);
        assert!(notes.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn nothing_that_was_noted_is_forgotten(
            adds in prop::collection::vec((0u64..4000, 0u64..40), 1..80),
        ) {
            let mut notes = MergeCandidates::new();
            let mut noted = std::collections::BTreeSet::new();
            for (time, (start, more)) in (0u64..).zip(adds) {
                notes.add(start, start + more, time);
                noted.extend(start..=start + more);
                let seen = ranges(&notes);
                prop_assert!(seen.len() <= MOST_CANDIDATES);
                for pair in seen.windows(2) {
                    prop_assert!(pair[0].1 + 1 < pair[1].0, "{:?}", seen);
                }
                for address in &noted {
                    prop_assert!(seen.iter().any(|(start, last)| (start..=last).contains(&address)));
                }
                prop_assert_eq!(notes.ranges.iter().map(|note| note.time).max(), Some(time));
            }
            // Each range is exact until there is not enough room.
            if noted.len() < MOST_CANDIDATES {
                let exact: u64 = ranges(&notes).iter().map(|(start, last)| last - start + 1).sum();
                prop_assert_eq!(exact, noted.len() as u64);
            }
        }
    }
}
