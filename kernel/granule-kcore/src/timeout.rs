//! A limit on waiting for another CPU, measured in the time that the waiter itself ran.
//!
//! Under a hypervisor or an emulator a CPU is a thread of the host, and the host may run other
//! threads instead. The counter continues meanwhile, so a wait of many seconds proves nothing about
//! the other CPU: neither may have run. A host divides its time fairly among the CPUs of one guest,
//! so a waiter that ran for seconds waits for a CPU that had seconds too.

/// The part of a second that one round of a waiting loop may count for. A round takes microseconds; a
/// longer one means that the host ran something else.
const ROUNDS: u64 = 1000;

/// The time that a waiter has run since the wait began, with its limit. In ticks of any clock.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    limit: u64,
    longest_round: u64,
    seen: u64,
    ran: u64,
}

impl Timeout {
    /// A wait that begins `now` and may take `seconds` of the waiter's own time, with a clock of
    /// `frequency` ticks a second.
    #[must_use]
    pub const fn new(seconds: u64, frequency: u64, now: u64) -> Self {
        let longest_round = frequency / ROUNDS;
        Self {
            limit: seconds.saturating_mul(frequency),
            longest_round: if longest_round == 0 { 1 } else { longest_round },
            seen: now,
            ran: 0,
        }
    }

    /// Whether the time is over. Called once in each round of the waiting loop.
    pub fn is_over(&mut self, now: u64) -> bool {
        let round = now.wrapping_sub(self.seen).min(self.longest_round);
        self.seen = now;
        self.ran = self.ran.saturating_add(round);
        self.ran > self.limit
    }

    /// Starts the wait again, because there was progress.
    pub const fn restart(&mut self) {
        self.ran = 0;
    }
}

/// The time limit for each of many CPUs, and for all of those together that do not come. A machine with a
/// thousand CPUs whose firmware started none of them would otherwise take hours.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// Seconds that were waited in vain.
    spent: u64,
}

impl Patience {
    /// Seconds for a CPU, as long as few have not come.
    pub const LONG: u64 = 5;
    /// Seconds for a CPU after that.
    const SHORT: u64 = 1;
    /// Seconds in vain until there are few for a CPU, and until there are none.
    const UNTIL_SHORT: u64 = 30;
    /// See above.
    pub const MOST: u64 = 60;

    /// Seconds for the next CPU; `None` if no more CPUs are waited for, so that none should be started.
    #[must_use]
    pub const fn next(&self) -> Option<u64> {
        match self.spent {
            spent if spent >= Self::MOST => None,
            spent if spent >= Self::UNTIL_SHORT => Some(Self::SHORT),
            _ => Some(Self::LONG),
        }
    }

    /// These seconds were waited for a CPU that did not come.
    pub const fn in_vain(&mut self, seconds: u64) {
        self.spent = self.spent.saturating_add(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patience_with_a_thousand_cpus_ends() {
        let mut patience = Patience::default();
        let mut waits = Vec::new();
        for _ in 0..1023 {
            let Some(seconds) = patience.next() else {
                continue;
            };
            waits.push(seconds);
            patience.in_vain(seconds);
        }
        let (long, short): (Vec<u64>, Vec<u64>) = waits.into_iter().partition(|it| *it == 5);
        assert_eq!((long.len(), short), (6, vec![1; 30]));
        // Any number of CPUs that come take none of it.
        assert_eq!(Patience::default().next(), Some(5));
    }

    const FREQUENCY: u64 = 1_000_000;

    /// The rounds of `ticks` ticks each after which ten seconds are over, if they are within `most`.
    fn rounds(ticks: u64, most: u64) -> Option<u64> {
        let mut now = u64::MAX - 5;
        let mut timeout = Timeout::new(10, FREQUENCY, now);
        (1..=most).find(|_| {
            now = now.wrapping_add(ticks);
            timeout.is_over(now)
        })
    }

    #[test]
    fn a_waiter_that_runs_gives_up_after_its_seconds() {
        assert_eq!(rounds(100, 200_000), Some(100_001));
        assert_eq!(rounds(1000, 200_000), Some(10_001));
    }

    #[test]
    fn a_round_in_which_the_waiter_did_not_run_counts_for_a_millisecond() {
        for away in [1001, FREQUENCY, 3600 * FREQUENCY] {
            assert_eq!(rounds(away, 20_000), Some(10_001));
        }
    }

    #[test]
    fn progress_starts_the_wait_again() {
        let mut timeout = Timeout::new(1, 10, 0);
        for now in 1..100 {
            assert!(!timeout.is_over(now), "{now}");
            if now % 10 == 0 {
                timeout.restart();
            }
        }
        assert!((100..=110).any(|now| timeout.is_over(now)));
    }

    #[test]
    fn a_clock_without_a_frequency_ends_a_wait() {
        let mut timeout = Timeout::new(10, 0, 0);
        assert!(!timeout.is_over(0) && timeout.is_over(1));
    }
}
