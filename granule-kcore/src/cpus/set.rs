//! Sets of CPUs, by number.

use super::MOST_CPUS;
use core::fmt;

/// A set of CPUs. CPU 0 is the one that booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(pub u64);

const _: () = assert!(MOST_CPUS <= 64, "CpuSet is a 64-bit set");

impl CpuSet {
    /// The set of one CPU.
    pub const fn one(cpu: usize) -> Self {
        Self(1 << cpu)
    }

    /// This set without that CPU.
    pub const fn without(self, cpu: usize) -> Self {
        Self(self.0 & !(1 << cpu))
    }

    /// Whether the CPU is in it.
    pub const fn contains(self, cpu: usize) -> bool {
        self.0 >> cpu & 1 != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of CPUs in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The CPUs, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |cpu| self.contains(*cpu))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let set = CpuSet(1 | 1 << 3 | 1 << 31 | 1 << 5).without(3);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, 31]);
        assert_eq!((set.len(), set.is_empty()), (3, false));
        assert!(set.contains(31) && !set.contains(3));
        assert_eq!(set.to_string(), "0, 5, 31");
        assert!(CpuSet::one(7).without(7).is_empty());
    }
}
