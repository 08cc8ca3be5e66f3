//! Free ranges between VMAs: the range that a node spans with the largest gaps in it, and whether a request
//! fits. Numbers alone.

/// The alignment, besides that of a page, for which a node has its largest gap: programs request whole leaves
/// of 2 MiB, which every page size has. A search with it, or without any, visits no subtree in vain.
const LARGE: u64 = 2 << 20;

/// The range from the first to the last of some VMAs, and the largest gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The start of the first VMA.
    pub(super) first: u64,
    /// The end of the last.
    pub(super) last: u64,
    /// The bytes of the largest gap.
    any: u64,
    /// The most bytes of a gap behind its first multiple of [`LARGE`].
    large: u64,
}

impl Span {
    /// Nothing.
    pub(super) const NONE: Self = Self::of_range(0, 0);

    /// Makes the span of a range without gaps.
    pub(super) const fn of_range(first: u64, last: u64) -> Self {
        Self {
            first,
            last,
            any: 0,
            large: 0,
        }
    }

    /// Makes the span of several that follow each other.
    #[inline(always)]
    pub(super) fn of(mut parts: impl Iterator<Item = Self>) -> Self {
        let mut all = parts.next().unwrap_or(Self::NONE);
        for part in parts {
            if part.first > all.last {
                let aligned = all.last.saturating_add(LARGE - 1) & !(LARGE - 1);
                all.any = all.any.max(part.first - all.last);
                all.large = all.large.max(part.first.saturating_sub(aligned));
            }
            all.any = all.any.max(part.any);
            all.large = all.large.max(part.large);
            all.last = part.last;
        }
        all
    }
}

/// A request for a free range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) bytes: u64,
    /// A power of two.
    pub(super) align: u64,
    /// The lowest address.
    pub(super) low: u64,
    /// The address behind the highest.
    pub(super) high: u64,
}

impl Request {
    /// Finds the highest address that fits between two VMAs, the lower of which ends at `from`.
    pub(super) fn fit(&self, from: u64, to: u64) -> Option<u64> {
        let from = from.max(self.low);
        let start = to.checked_sub(self.bytes)? & !(self.align - 1);
        (from <= start && from <= to).then_some(start)
    }

    /// Returns whether a gap within a span may be large enough.
    pub(super) const fn may_fit(&self, span: &Span) -> bool {
        // A gap that fits with a larger alignment fits with a smaller one.
        span.any >= self.bytes && (self.align < LARGE || span.large >= self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(ranges: &[(u64, u64)]) -> Span {
        Span::of(ranges.iter().map(|&(from, to)| Span::of_range(from, to)))
    }

    #[test]
    fn a_span_has_its_largest_gaps_however_it_is_put_together() {
        let ranges = [
            (0x1000, 0x2000),
            (0x2000, 0x8000),
            (0x30_0000, 0x30_1000),
            (0x60_0000, 0x60_2000),
        ];
        let whole = span(&ranges);
        assert_eq!((whole.first, whole.last), (0x1000, 0x60_2000));
        assert_eq!((whole.any, whole.large), (0x2f_f000, 0x20_0000));
        for at in 1..ranges.len() {
            let (low, high) = ranges.split_at(at);
            assert_eq!(Span::of([span(low), span(high)].into_iter()), whole);
        }
        assert_eq!(Span::of(core::iter::empty()), Span::NONE);
    }

    #[test]
    fn a_request_is_put_as_high_as_it_fits() {
        let request = |bytes, align| Request {
            bytes,
            align,
            low: 0x3000,
            high: u64::MAX,
        };
        assert_eq!(request(0x2000, 0x1000).fit(0, 0x9000), Some(0x7000));
        assert_eq!(request(0x2000, 0x4000).fit(0, 0x9000), Some(0x4000));
        assert_eq!(request(0x2000, 0x8000).fit(0, 0x9000), None);
        assert_eq!(request(0x6000, 0x1000).fit(0, 0x9000), Some(0x3000));
        assert_eq!(request(0x7000, 0x1000).fit(0, 0x9000), None);
        assert_eq!(request(0x1000, 0x1000).fit(0x8000, 0x7000), None);
    }

    #[test]
    fn no_subtree_is_visited_in_vain_for_two_mebibytes() {
        // A gap of almost 4 MiB in which no aligned 2 MiB are free.
        let gap = span(&[(0, 0x1000), (0x3f_f000, 0x40_0000)]);
        let request = |align| Request {
            bytes: LARGE,
            align,
            low: 0,
            high: u64::MAX,
        };
        assert!(request(0x1000).may_fit(&gap));
        assert!(!request(LARGE).may_fit(&gap));
    }
}
