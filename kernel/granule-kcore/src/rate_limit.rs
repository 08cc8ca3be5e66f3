//! A rate limit for one kind of printed line, for lines that any program can cause at will: `BURST`
//! lines at once, then one a second. The next printed line states how many were left out. The result
//! that the program gets does not change.

/// Lines of a kind that may be printed at once.
const BURST: u32 = 64;

/// The number of lines of one kind that may still be printed.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    left: u32,
    /// The counter when a line was last added.
    at: u64,
    left_out: u64,
}

/// Permission to print one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Lines of the kind that were left out since the last one.
    pub left_out: u64,
    /// Whether the next line has to wait.
    pub last: bool,
}

impl RateLimit {
    /// A limit under which nothing was printed yet.
    pub const NEW: Self = Self {
        left: BURST,
        at: 0,
        left_out: 0,
    };

    /// Asks for one line, with the counter at `now` and `hz` ticks per second; `None` refuses it.
    #[must_use]
    pub fn take(&mut self, now: u64, hz: u64) -> Option<Permit> {
        let hz = hz.max(1);
        let new = now.wrapping_sub(self.at) / hz;
        self.left =
            u32::try_from(new).map_or(BURST, |new| self.left.saturating_add(new).min(BURST));
        self.at = if self.left == BURST {
            now
        } else {
            self.at.wrapping_add(new.wrapping_mul(hz))
        };
        if self.left == 0 {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.left -= 1;
        Some(Permit {
            left_out: core::mem::take(&mut self.left_out),
            last: self.left == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_said_at_once_and_then_one_a_second() {
        const HZ: u64 = 1000;
        // For any initial counter, also across a wrap.
        for start in [0, 1 << 40, u64::MAX - 3 * HZ] {
            let mut budget = RateLimit::NEW;
            let mut at = |ticks: u64| budget.take(start.wrapping_add(ticks), HZ);
            for index in 1..=BURST {
                let (left_out, last) = (0, index == BURST);
                assert_eq!(at(index.into()), Some(Permit { left_out, last }), "{index}");
            }
            for tick in 0..900 {
                assert_eq!(at(100 + tick), None);
            }
            let last = true;
            let some = |left_out| Some(Permit { left_out, last });
            assert_eq!(at(1001), some(900));
            assert_eq!(at(1002), None);
            // Only time earns a permit; refused requests do not.
            assert_eq!(at(1999), None);
            assert_eq!(at(2002), some(2));
            assert_eq!(at(9500).map(|it| it.last), Some(false));
            // After any long pause there are as many permits as at first, and no more.
            let long = 1_000_000_000;
            let said = (0..1000).filter(|_| at(long).is_some()).count();
            assert_eq!(said, BURST as usize);
        }
    }
}
