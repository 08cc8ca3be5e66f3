//! Where the linear map was changed and its TLBI put off, for whoever has to make it after all. Pure.
//!
//! One range that has everything in it: those who put off TLBIs make them soon, and one too many does
//! no harm.

use core::ops::Range;

/// Addresses of which CPUs may have what was there before a change.
#[derive(Debug)]
pub(super) struct PutOff(Range<u64>);

impl PutOff {
    /// Nowhere.
    pub(super) const fn nowhere() -> Self {
        Self(0..0)
    }

    /// `bytes` bytes from `start` were changed, and no TLBI made.
    pub(super) fn add(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        self.0 = if self.0.is_empty() {
            start..end
        } else {
            self.0.start.min(start)..self.0.end.max(end)
        };
    }

    /// Somebody is to rely on the TLB for `bytes` bytes from `start`: the first address and the bytes
    /// to invalidate for that, if any. None are put off then.
    #[must_use]
    pub(super) fn take_for(&mut self, start: u64, bytes: u64) -> Option<(u64, u64)> {
        let Range { start: first, end } = self.0;
        let meets = first < end && first < start.saturating_add(bytes) && start < end;
        let all = meets.then(|| core::mem::replace(&mut self.0, 0..0))?;
        Some((all.start, all.end - all.start))
    }

    /// The TLB was invalidated for `bytes` bytes from `start`.
    pub(super) fn invalidated(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        // What is cut out of the middle is invalidated once more.
        if start <= self.0.start {
            self.0.start = self.0.start.max(end);
        }
        if end >= self.0.end {
            self.0.end = self.0.end.min(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::cases::config;
    use proptest::prelude::*;

    /// What is done with pages from and to.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add,
        Invalidate,
        Rely,
    }

    proptest! {
        #![proptest_config(config(2000, 20))]

        /// Whoever relies on the TLB for pages has had each of them invalidated that was put off.
        #[test]
        fn nobody_relies_on_a_page_that_was_put_off(
            steps in prop::collection::vec(
                (prop::sample::select(vec![Step::Add, Step::Invalidate, Step::Rely]), 0u64..40, 1u64..12),
                1..30,
            ),
        ) {
            let mut put_off = PutOff::nowhere();
            let mut stale = [false; 64];
            for (step, first, count) in steps {
                let pages = first as usize..(first + count) as usize;
                let (start, bytes) = (first << 12, count << 12);
                match step {
                    Step::Add => {
                        put_off.add(start, bytes);
                        stale[pages].fill(true);
                    }
                    Step::Invalidate => {
                        put_off.invalidated(start, bytes);
                        stale[pages].fill(false);
                    }
                    Step::Rely => {
                        if let Some((start, bytes)) = put_off.take_for(start, bytes) {
                            prop_assert!(bytes > 0);
                            let from = (start >> 12) as usize;
                            stale[from..from + (bytes >> 12) as usize].fill(false);
                            prop_assert!(!stale.contains(&true), "the rest is forgotten");
                        }
                        prop_assert!(!stale[pages].contains(&true));
                    }
                }
            }
        }
    }

    #[test]
    fn who_meets_nothing_invalidates_nothing() {
        let mut put_off = PutOff::nowhere();
        assert_eq!(put_off.take_for(0, u64::MAX), None);
        put_off.add(0x4000, 0x2000);
        put_off.add(0x1000, 0x1000);
        assert_eq!(put_off.take_for(0x6000, 0x1000), None);
        assert_eq!(put_off.take_for(0, 0x1000), None);
        put_off.invalidated(0, 0x2000);
        put_off.invalidated(0x5000, 0x9000);
        assert_eq!(put_off.take_for(0x4000, 0x1000), Some((0x2000, 0x3000)));
        assert_eq!(put_off.take_for(0, u64::MAX), None);
        put_off.add(0x4000, 0x2000);
        put_off.invalidated(0x4000, 0x2000);
        assert_eq!(put_off.take_for(0, u64::MAX), None);
    }
}
