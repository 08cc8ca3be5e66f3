//! Times and clocks.

use super::{Errno, layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const NANOSECONDS: u64 = 1_000_000_000;

/// `struct timespec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct TimeSpec {
    pub sec: i64,
    pub nsec: i64,
}
layout!(TimeSpec, 16);

impl TimeSpec {
    /// Converts from nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self {
            sec: (ns / NANOSECONDS) as i64,
            nsec: (ns % NANOSECONDS) as i64,
        }
    }

    /// Converts to nanoseconds, at most 584 years. `EINVAL` for a negative or unnormalised time.
    pub fn to_ns(self) -> Result<u64, Errno> {
        let nsec = u64::try_from(self.nsec).map_err(|_| Errno::EINVAL)?;
        let sec = u64::try_from(self.sec).map_err(|_| Errno::EINVAL)?;
        if nsec >= NANOSECONDS {
            return Err(Errno::EINVAL);
        }
        Ok(sec.saturating_mul(NANOSECONDS).saturating_add(nsec))
    }
}

pub const CLOCK_REALTIME: u64 = 0;
pub const CLOCK_MONOTONIC: u64 = 1;
pub const CLOCK_REALTIME_COARSE: u64 = 5;
pub const CLOCK_MONOTONIC_COARSE: u64 = 6;

/// `clock_nanosleep`: the time is absolute.
pub const TIMER_ABSTIME: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_make_no_sense_are_refused() {
        let of = |sec, nsec| TimeSpec { sec, nsec }.to_ns();
        assert_eq!(of(2, 999_999_999), Ok(2_999_999_999));
        assert_eq!(of(0, 1_000_000_000), Err(Errno::EINVAL));
        assert_eq!(of(0, -1), Err(Errno::EINVAL));
        assert_eq!(of(-1, 0), Err(Errno::EINVAL));
        assert_eq!(of(i64::MAX, 0), Ok(u64::MAX));
        assert_eq!(TimeSpec::from_ns(2_999_999_999).to_ns(), Ok(2_999_999_999));
    }
}
