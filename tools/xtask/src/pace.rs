//! The estimate of the time left: the expected time of each case on an idle machine with two cores,
//! corrected by the speed of this run.

use std::time::Duration;

use indicatif::HumanDuration;

/// With less expected time done, the correction would be noise.
const ENOUGH: Duration = Duration::from_secs(20);

/// Expected times count in full for cases that run alone and by half for cases that run two at a time; the
/// caller does that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    done: Duration,
    left: Duration,
}

impl Pace {
    pub(crate) fn of(left: Duration) -> Self {
        Self {
            done: Duration::ZERO,
            left,
        }
    }

    /// A case with this expected time has ended.
    pub(crate) fn ended(&mut self, expected: Duration) {
        self.done += expected;
        self.left = self.left.saturating_sub(expected);
    }

    /// The time left when `passed` has gone by since the first case began.
    pub(crate) fn left(&self, passed: Duration) -> Duration {
        if self.done < ENOUGH {
            return self.left;
        }
        self.left
            .mul_f64(passed.as_secs_f64() / self.done.as_secs_f64())
    }
}

/// A duration in words for people.
pub(crate) fn about(time: Duration) -> HumanDuration {
    HumanDuration(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_corrected_by_the_pace_so_far() {
        let second = Duration::from_secs(1);
        let mut pace = Pace::of(100 * second);
        assert_eq!(pace.left(Duration::ZERO), 100 * second);
        pace.ended(5 * second);
        assert_eq!(pace.left(50 * second), 95 * second);
        pace.ended(20 * second);
        assert_eq!(pace.left(50 * second), 150 * second);
        assert_eq!(pace.left(Duration::ZERO), Duration::ZERO);
        pace.ended(1000 * second);
        assert_eq!(pace.left(9 * second), Duration::ZERO);
    }
}
