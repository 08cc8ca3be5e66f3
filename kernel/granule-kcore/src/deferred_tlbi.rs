//! The range of the linear map whose TLBI is deferred: its entries changed, and TLBs may still hold
//! the old ones. Code that relies on the TLB there issues the TLBI first.
//!
//! One range covers all deferred changes: they are few, and a surplus TLBI does no harm.

use core::ops::Range;

/// Addresses for which a TLB may hold an entry from before a change.
#[derive(Debug)]
pub struct DeferredTlbi(Range<u64>);

impl DeferredTlbi {
    /// No deferred TLBI.
    pub const fn nowhere() -> Self {
        Self(0..0)
    }

    /// Defers the TLBI for the changed `bytes` bytes from `start`.
    pub fn add(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        self.0 = if self.0.is_empty() {
            start..end
        } else {
            self.0.start.min(start)..self.0.end.max(end)
        };
    }

    /// The range that the caller must invalidate before it relies on the TLB for `bytes` bytes from
    /// `start`: first address and bytes, if any. Nothing is deferred afterwards.
    #[must_use]
    pub fn take_for(&mut self, start: u64, bytes: u64) -> Option<(u64, u64)> {
        let Range { start: first, end } = self.0;
        let meets = first < end && first < start.saturating_add(bytes) && start < end;
        let all = meets.then(|| core::mem::replace(&mut self.0, 0..0))?;
        Some((all.start, all.end - all.start))
    }

    /// Records that a TLBI was issued for `bytes` bytes from `start`.
    pub fn invalidated(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        // A piece from the middle stays in the range, and is invalidated once more.
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

    /// An operation on a range of pages.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add,
        Invalidate,
        Rely,
    }

    proptest! {
        #![proptest_config(config(2000, 20))]

        /// Before code relies on the TLB for a page, the page's deferred TLBI was issued.
        #[test]
        fn nobody_relies_on_a_page_whose_tlbi_is_deferred(
            steps in prop::collection::vec(
                (prop::sample::select(vec![Step::Add, Step::Invalidate, Step::Rely]), 0u64..40, 1u64..12),
                1..30,
            ),
        ) {
            let mut deferred = DeferredTlbi::nowhere();
            let mut stale = [false; 64];
            for (step, first, count) in steps {
                let pages = first as usize..(first + count) as usize;
                let (start, bytes) = (first << 12, count << 12);
                match step {
                    Step::Add => {
                        deferred.add(start, bytes);
                        stale[pages].fill(true);
                    }
                    Step::Invalidate => {
                        deferred.invalidated(start, bytes);
                        stale[pages].fill(false);
                    }
                    Step::Rely => {
                        if let Some((start, bytes)) = deferred.take_for(start, bytes) {
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
    fn a_range_without_deferred_tlbis_invalidates_nothing() {
        let mut deferred = DeferredTlbi::nowhere();
        assert_eq!(deferred.take_for(0, u64::MAX), None);
        deferred.add(0x4000, 0x2000);
        deferred.add(0x1000, 0x1000);
        assert_eq!(deferred.take_for(0x6000, 0x1000), None);
        assert_eq!(deferred.take_for(0, 0x1000), None);
        deferred.invalidated(0, 0x2000);
        deferred.invalidated(0x5000, 0x9000);
        assert_eq!(deferred.take_for(0x4000, 0x1000), Some((0x2000, 0x3000)));
        assert_eq!(deferred.take_for(0, u64::MAX), None);
        deferred.add(0x4000, 0x2000);
        deferred.invalidated(0x4000, 0x2000);
        assert_eq!(deferred.take_for(0, u64::MAX), None);
    }
}
