//! A set of signals in the format of user space: one bit for each, signal 1 first.

use crate::abi::signal::{SIGKILL, SIGNALS, SIGSTOP};

/// A set of signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(pub(crate) u64);

impl SignalSet {
    /// No signal.
    pub const EMPTY: Self = Self(0);
    /// The signals that cannot be blocked, caught or ignored.
    pub const UNBLOCKABLE: Self = Self::EMPTY.with(SIGKILL).with(SIGSTOP);

    const fn bit(signal: u8) -> u64 {
        if signal == 0 || signal > SIGNALS {
            0
        } else {
            1 << (signal - 1)
        }
    }

    /// Whether a signal is in the set.
    pub const fn has(self, signal: u8) -> bool {
        self.0 & Self::bit(signal) != 0
    }

    /// The set with one more signal.
    pub const fn with(self, signal: u8) -> Self {
        Self(self.0 | Self::bit(signal))
    }

    /// The set without the signals of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The union of both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether no signal is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The signal with the lowest number.
    pub const fn first(self) -> Option<u8> {
        if self.0 == 0 {
            None
        } else {
            Some(self.0.trailing_zeros() as u8 + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_begin_with_one_and_end_with_sixty_four() {
        let set = SignalSet::EMPTY.with(1).with(64);
        assert_eq!(set.0, 0x8000_0000_0000_0001);
        assert!(set.has(1) && set.has(64) && !set.has(2));
        for none in [0, 65, 255] {
            assert!(!SignalSet(u64::MAX).has(none));
            assert_eq!(SignalSet::EMPTY.with(none), SignalSet::EMPTY);
        }
        assert_eq!(set.first(), Some(1));
        assert_eq!(SignalSet::EMPTY.with(64).first(), Some(64));
        assert_eq!(SignalSet::EMPTY.first(), None);
        assert_eq!(SignalSet::UNBLOCKABLE.0, 0x4_0100);
    }
}
