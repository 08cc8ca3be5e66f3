//! The full count of a 32-bit event counter that may have wrapped.
//!
//! Arithmetic only; the kernel's `counter` reads the registers. The overflow flag records one overflow
//! and not a second. So the bits above bit 32 come from a clock, or the time was too short for a
//! second overflow. Otherwise the count is lost, because a count that may miss 2^33 must not be
//! reported.

use thiserror::Error;

/// The number of counts that the counter and its overflow flag can distinguish.
const FLAGGED: u64 = 1 << 33;

/// More instructions than any CPU retires in a nanosecond: sixteen per cycle at 4 GHz.
const MOST_PER_NS: u64 = 64;

/// The tolerated deviation of a clock that advances with the instructions. It includes the
/// instructions that only one of the two counts: far more than those, and far less than 2^31, beyond
/// which the result would be wrong.
const SLACK: u64 = 1 << 20;

/// Why a count is lost.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum Lost {
    #[error(
        "the PMU's counter has 32 bits and a flag, {ns} us are enough for it to overflow twice, and no clock here counts \
         instructions",
        ns = .0 / 1000
    )]
    MayHaveOverflown(u64),
    #[error(
        "the PMU's 32-bit counter and its flag give {counted}, or 2^32 times something more, the clock gives {clock}"
    )]
    ClockDisagrees { counted: u64, clock: u64 },
}

/// The count of a 32-bit counter after `ns` nanoseconds. The counter shows `low`, and `overflowed` is
/// its overflow flag. `clock` is the approximate count by a clock that was seen to advance with the
/// instructions.
pub fn unwrap(low: u32, overflowed: bool, ns: u64, clock: Option<u64>) -> Result<u64, Lost> {
    let flagged = u64::from(overflowed) << 32 | u64::from(low);
    let Some(clock) = clock else {
        return match ns.checked_mul(MOST_PER_NS) {
            Some(most) if most < FLAGGED => Ok(flagged),
            _ => Err(Lost::MayHaveOverflown(ns)),
        };
    };
    // The number that ends in `low` and is nearest to the clock's.
    let past = clock.saturating_add(1 << 31).saturating_sub(low.into()) >> 32;
    let count = past << 32 | u64::from(low);
    if (past > 0) == overflowed && count.abs_diff(clock) <= SLACK {
        Ok(count)
    } else {
        Err(Lost::ClockDisagrees {
            counted: flagged,
            clock,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_says_how_often_it_overflowed() {
        let (once, twice) = (1 << 32, 1 << 33);
        for count in [0, 1, 8192, once - 1, once, 4_994_749_482, twice - 1, twice] {
            for more in [0, 7 << 32, 1 << 50] {
                let count: u64 = count + more;
                let overflowed = count >> 32 > 0;
                for clock in [count, count + 4000, count.saturating_sub(4000)] {
                    assert_eq!(unwrap(count as u32, overflowed, 0, Some(clock)), Ok(count));
                }
            }
        }
    }

    #[test]
    fn without_a_clock_only_short_times_are_believed() {
        assert_eq!(unwrap(5, true, 1_000_000, None), Ok(1 << 32 | 5));
        let ns = FLAGGED / MOST_PER_NS;
        assert_eq!(unwrap(5, true, ns - 1, None), Ok(1 << 32 | 5));
        for ns in [ns, u64::MAX] {
            let lost = Err(Lost::MayHaveOverflown(ns));
            assert_eq!(unwrap(5, true, ns, None), lost);
        }
    }

    #[test]
    fn a_clock_that_does_not_count_instructions_is_found_out() {
        let (counted, clock) = (1 << 32 | 5, (1 << 33) + (1 << 30));
        let lost = Lost::ClockDisagrees { counted, clock };
        assert_eq!(unwrap(5, true, 0, Some(clock)), Err(lost));
        // The first overflow sets the flag, which stays set.
        assert!(unwrap(5, false, 0, Some(1 << 32)).is_err());
        assert!(unwrap(5, true, 0, Some(5)).is_err());
    }
}
