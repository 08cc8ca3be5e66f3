//! Sets of CPUs, by number.

use super::MOST_CPUS;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;
const WORDS: usize = MOST_CPUS.div_ceil(BITS);

/// A set of CPUs. CPU 0 is the one that booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// The set of one CPU.
    #[must_use]
    pub fn one(cpu: usize) -> Self {
        Self::default().with(cpu)
    }

    /// This set and that CPU. A number that no CPU can have changes nothing.
    #[must_use]
    pub fn with(mut self, cpu: usize) -> Self {
        if let Some(word) = self.0.get_mut(cpu / BITS) {
            *word |= 1 << (cpu % BITS);
        }
        self
    }

    /// This set without that CPU.
    #[must_use]
    pub fn without(mut self, cpu: usize) -> Self {
        if let Some(word) = self.0.get_mut(cpu / BITS) {
            *word &= !(1 << (cpu % BITS));
        }
        self
    }

    /// Whether the CPU is in it.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        let word = self.0.get(cpu / BITS);
        word.is_some_and(|word| word >> (cpu % BITS) & 1 != 0)
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Number of CPUs in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        let counts = self.0.iter().map(|word| word.count_ones() as usize);
        counts.sum()
    }

    /// The CPUs, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(index, word)| {
            let next = |left: &u64| Some(left & left.wrapping_sub(1)).filter(|left| *left != 0);
            let first = (word != 0).then_some(word);
            core::iter::successors(first, next)
                .map(move |left| index * BITS + left.trailing_zeros() as usize)
        })
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cpu) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{cpu}")?;
        }
        Ok(())
    }
}

/// A set that several CPUs change.
#[derive(Debug, Default)]
pub struct AtomicCpuSet([AtomicU64; WORDS]);

impl AtomicCpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// These CPUs.
    #[must_use]
    pub fn of(cpus: CpuSet) -> Self {
        Self(cpus.0.map(AtomicU64::new))
    }

    /// The CPUs in it: each is looked at once, with this order of memory.
    #[must_use]
    pub fn load(&self, order: Ordering) -> CpuSet {
        CpuSet(core::array::from_fn(|index| {
            let word = self.0.get(index);
            word.map_or(0, |word| word.load(order))
        }))
    }

    /// Whether the CPU is in it.
    #[must_use]
    pub fn contains(&self, cpu: usize, order: Ordering) -> bool {
        let word = self.0.get(cpu / BITS);
        word.is_some_and(|word| word.load(order) >> (cpu % BITS) & 1 != 0)
    }

    /// Whether the set is empty: each CPU is looked at once.
    #[must_use]
    pub fn is_empty(&self, order: Ordering) -> bool {
        self.0.iter().all(|word| word.load(order) == 0)
    }

    /// Adds CPU `cpu`.
    pub fn add(&self, cpu: usize, order: Ordering) {
        if let Some(word) = self.0.get(cpu / BITS) {
            word.fetch_or(1 << (cpu % BITS), order);
        }
    }

    /// Removes CPU `cpu`. Returns whether it was in the set.
    pub fn remove(&self, cpu: usize, order: Ordering) -> bool {
        let bit = 1 << (cpu % BITS);
        let word = self.0.get(cpu / BITS);
        word.is_some_and(|word| word.fetch_and(!bit, order) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn set(cpus: &[usize]) -> CpuSet {
        cpus.iter()
            .fold(CpuSet::default(), |set, cpu| set.with(*cpu))
    }

    #[test]
    fn sets_hold_what_was_put_in() {
        let last = MOST_CPUS - 1;
        let set = set(&[0, 3, 31, 5, 63, 64, last]).without(3);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, 31, 63, 64, last]);
        assert_eq!((set.len(), set.is_empty()), (6, false));
        assert!(set.contains(64) && !set.contains(65) && !set.contains(3));
        assert_eq!(set.without(last).without(64).to_string(), "0, 5, 31, 63");
        assert!(CpuSet::one(700).without(700).is_empty());
    }

    #[test]
    fn a_number_beyond_the_last_is_in_no_set() {
        let all = (0..MOST_CPUS).fold(CpuSet::default(), CpuSet::with);
        assert_eq!(all.len(), MOST_CPUS);
        assert_eq!(all.with(MOST_CPUS), all);
        assert!(!all.contains(MOST_CPUS));
        assert!(CpuSet::one(usize::MAX).is_empty());
    }

    #[test]
    fn sets_agree_with_sets_of_numbers() {
        let mut state = 1u64;
        let (mut ours, mut theirs) = (CpuSet::default(), BTreeSet::new());
        let shared = AtomicCpuSet::new();
        for _ in 0..4000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let cpu = (state >> 33) as usize % MOST_CPUS;
            let contains = shared.contains(cpu, Ordering::Relaxed);
            assert_eq!(contains, theirs.contains(&cpu));
            assert_eq!(shared.is_empty(Ordering::Relaxed), theirs.is_empty());
            if state >> 63 == 0 {
                ours = ours.with(cpu);
                theirs.insert(cpu);
                shared.add(cpu, Ordering::Relaxed);
            } else {
                ours = ours.without(cpu);
                assert_eq!(shared.remove(cpu, Ordering::Relaxed), theirs.remove(&cpu));
            }
        }
        assert!(ours.iter().eq(theirs.iter().copied()));
        assert_eq!(shared.load(Ordering::Relaxed), ours);
        assert_eq!(AtomicCpuSet::of(ours).load(Ordering::Relaxed), ours);
    }
}
