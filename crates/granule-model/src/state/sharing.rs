//! The parts of a tree that may meet other trees in a TLB: its global leaves, and the ASIDs under
//! which it is walked.
//!
//! A CPU may hold entries of several trees of one half. Those of different ASIDs never meet, global
//! leaves meet everything. Both are kept as sets that may be too large and never too small, so that a
//! switch between trees costs no walk of them.

/// Addresses in a few ranges, first and last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<(u64, u64)>);

/// The most ranges; more become one that covers them all.
const MOST_SPANS: usize = 64;

impl Spans {
    /// Adds a range.
    pub(crate) fn add(&mut self, first: u64, last: u64) {
        // Neighbours are mostly added one after the other.
        let joins = |one: &&mut (u64, u64)| {
            first <= one.1.saturating_add(1) && one.0 <= last.saturating_add(1)
        };
        if let Some(one) = self.0.iter_mut().rev().find(joins) {
            *one = (one.0.min(first), one.1.max(last));
            return;
        }
        self.0.push((first, last));
        if self.0.len() > MOST_SPANS {
            let first = self.0.iter().map(|one| one.0).min();
            let last = self.0.iter().map(|one| one.1).max();
            self.0 = first.zip(last).into_iter().collect();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }
}

/// A set of ASIDs.
#[derive(Clone, Default)]
pub(crate) struct Asids(Option<Box<[u64; 1024]>>);

impl std::fmt::Debug for Asids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |bits: &[u64; 1024]| bits.iter().map(|word| word.count_ones()).sum();
        let count: u32 = self.0.as_deref().map_or(0, count);
        write!(f, "{count} ASIDs")
    }
}

impl Asids {
    /// Adds an ASID. Returns whether it is new.
    pub(crate) fn add(&mut self, asid: u16) -> bool {
        let bits = self.0.get_or_insert_with(|| Box::new([0; 1024]));
        let (word, bit) = (&mut bits[usize::from(asid / 64)], 1 << (asid % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Whether some ASID is in both sets.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => a.iter().zip(b.iter()).any(|(a, b)| a & b != 0),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_what_was_added() {
        let mut spans = Spans::default();
        assert!(spans.is_empty());
        spans.add(0x1000, 0x1fff);
        spans.add(0x2000, 0x2fff);
        spans.add(0, 0xfff);
        spans.add(0x8000, 0x8fff);
        let all: Vec<_> = spans.iter().collect();
        assert_eq!(all, [(0, 0x2fff), (0x8000, 0x8fff)]);
        spans.add(u64::MAX - 0xfff, u64::MAX);
        for number in 0..100 {
            spans.add(number << 20, (number << 20) + 5);
        }
        let covers = |address: u64| spans.iter().any(|(a, b)| (a..=b).contains(&address));
        assert!(covers(u64::MAX) && covers(99 << 20) && covers(0x8000));
        assert!(spans.iter().count() <= MOST_SPANS);
    }

    #[test]
    fn sets_of_asids_meet_where_one_is_in_both() {
        let (mut kernel, mut user) = (Asids::default(), Asids::default());
        assert!(!kernel.meets(&user));
        for asid in (0..=u16::MAX).step_by(2) {
            assert!(kernel.add(asid) && user.add(asid + 1));
        }
        assert!(!kernel.meets(&user) && !kernel.add(65534));
        user.add(65534);
        assert!(kernel.meets(&user) && user.meets(&kernel));
    }
}
