//! Address ranges, and sorted lists of them with a fixed capacity.

use super::super::tree::Range;
use super::{Error, RangeList};
use core::fmt;

/// A non-empty range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    start: u64,
    end: u64,
}

impl Region {
    /// The range `start..end`, unless it is empty.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if start < end {
            Some(Self { start, end })
        } else {
            None
        }
    }

    /// The range of `size` bytes from `start`, unless it is empty.
    pub(super) fn of(start: u64, size: u64) -> Result<Option<Self>, Error> {
        let end = start
            .checked_add(size)
            .ok_or(Error::Overflow { start, size })?;
        Ok(Self::new(start, end))
    }

    /// The first address.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The first address behind the range.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// The size in bytes, never zero.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range contains `address`.
    #[must_use]
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// The part of the range inside `start..end`.
    #[must_use]
    pub fn inside(self, start: u64, end: u64) -> Option<Self> {
        Self::new(self.start.max(start), self.end.min(end))
    }

    /// The whole pages in the range; `page` is a power of two.
    #[must_use]
    pub(super) fn rounded_inward(self, page: u64) -> Option<Self> {
        let mask = page.saturating_sub(1);
        Self::new(self.start.checked_add(mask)? & !mask, self.end & !mask)
    }

    /// The pages that the range touches; `page` is a power of two. The end of the address space
    /// counts as the end of a page.
    pub(super) fn rounded_outward(self, page: u64) -> Self {
        let mask = page.saturating_sub(1);
        let end = self
            .end
            .checked_add(mask)
            .map_or(u64::MAX, |end| end & !mask);
        Self {
            start: self.start & !mask,
            end,
        }
    }

    /// The lowest place in the range for `size` bytes aligned to `align`.
    pub(super) fn lowest(self, size: u64, align: u64) -> Option<u64> {
        let mask = align.saturating_sub(1);
        let start = self.start.checked_add(mask)? & !mask;
        (start.checked_add(size)? <= self.end).then_some(start)
    }

    /// The highest place in the range for `size` bytes aligned to `align`.
    pub(super) fn highest(self, size: u64, align: u64) -> Option<u64> {
        let start = self.end.checked_sub(size)? & !align.saturating_sub(1);
        (start >= self.start).then_some(start)
    }
}

impl From<Region> for Range {
    fn from(region: Region) -> Self {
        Self::new(region.start, region.len())
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// The list has no room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Full {
    start: u64,
    capacity: usize,
}

impl Full {
    pub(super) fn of(self, list: RangeList) -> Error {
        Error::TooManyRegions {
            list,
            start: self.start,
            capacity: self.capacity,
        }
    }
}

/// Up to `N` ranges, ascending, with a gap between any two.
#[derive(Clone, Debug)]
pub(crate) struct Regions<const N: usize> {
    regions: [Region; N],
    len: usize,
}

impl<const N: usize> Regions<N> {
    pub(crate) const EMPTY: Self = Self {
        regions: [Region { start: 0, end: 1 }; N],
        len: 0,
    };

    pub(crate) fn as_slice(&self) -> &[Region] {
        self.regions.get(..self.len).unwrap_or_default()
    }

    /// Whether the list contains all of `wanted`. One range suffices for the test, because ranges
    /// that touch are merged.
    pub(super) fn covers(&self, wanted: Region) -> bool {
        self.as_slice()
            .iter()
            .any(|own| own.start <= wanted.start && wanted.end <= own.end)
    }

    /// Adds `new`, merged with all ranges it overlaps or touches. Returns how many of its bytes the
    /// list already contained.
    pub(crate) fn insert(&mut self, new: Region) -> Result<u64, Full> {
        let from = self.count(|own| own.end < new.start);
        let to = self.count(|own| own.start <= new.end);
        let touched = self.as_slice().get(from..to).unwrap_or_default();
        let merged = touched.iter().fold(new, |sum, own| Region {
            start: sum.start.min(own.start),
            end: sum.end.max(own.end),
        });
        let before = touched
            .iter()
            .filter_map(|own| own.inside(new.start, new.end))
            .fold(0_u64, |sum, both| sum.saturating_add(both.len()));
        self.replace(from, to, &[merged])?;
        Ok(before)
    }

    /// Removes all of `old` from the list.
    pub(crate) fn remove(&mut self, old: Region) -> Result<(), Full> {
        let from = self.count(|own| own.end <= old.start);
        let to = self.count(|own| own.start < old.end);
        let touched = self.as_slice().get(from..to).unwrap_or_default();
        let below = touched
            .first()
            .and_then(|own| Region::new(own.start, old.start));
        let above = touched.last().and_then(|own| Region::new(old.end, own.end));
        match (below, above) {
            (Some(below), Some(above)) => self.replace(from, to, &[below, above]),
            (Some(rest), None) | (None, Some(rest)) => self.replace(from, to, &[rest]),
            (None, None) => self.replace(from, to, &[]),
        }
    }

    /// Removes the smallest range, and returns it; of several the lowest.
    pub(crate) fn take_smallest(&mut self) -> Option<Region> {
        let ranges = self.as_slice().iter().enumerate();
        let (at, smallest) = ranges.min_by_key(|(_, region)| region.len())?;
        let smallest = *smallest;
        // Removing takes no room.
        self.replace(at, at.saturating_add(1), &[]).ok()?;
        Some(smallest)
    }

    /// Makes room for `spare` more ranges, by joining those that are nearest to each other, and across a range of
    /// `kept` only where there is one in each gap. Returns how many bytes between ranges the list contains now.
    pub(super) fn make_room(&mut self, spare: usize, kept: &[Region]) -> u64 {
        let mut joined = 0_u64;
        while self.len.saturating_add(spare) > N {
            let pairs = self.as_slice().windows(2).enumerate();
            let gaps = pairs.filter_map(|(at, pair)| match pair {
                [below, above] => Some((above.start.saturating_sub(below.end), at, *below, *above)),
                _ => None,
            });
            let holds_kept = |below: &Region, above: &Region| {
                let next = kept.partition_point(|kept| kept.end <= below.end);
                kept.get(next).is_some_and(|kept| kept.start < above.start)
            };
            let best = gaps.min_by_key(|(gap, _, below, above)| (holds_kept(below, above), *gap));
            let Some((gap, at, below, above)) = best else {
                break;
            };
            let both = Region {
                start: below.start,
                end: above.end,
            };
            if self.replace(at, at.saturating_add(2), &[both]).is_err() {
                break;
            }
            joined = joined.saturating_add(gap);
        }
        joined
    }

    /// Removes all bytes outside `start..end`. Returns their number.
    pub(super) fn clip(&mut self, start: u64, end: u64) -> u64 {
        let mut removed = 0_u64;
        let mut kept = Self::EMPTY;
        for own in self.as_slice() {
            let inside = own.inside(start, end);
            let bytes = inside.map_or(0, Region::len);
            removed = removed.saturating_add(own.len().saturating_sub(bytes));
            if let (Some(inside), Some(slot)) = (inside, kept.regions.get_mut(kept.len)) {
                *slot = inside;
                kept.len = kept.len.saturating_add(1);
            }
        }
        *self = kept;
        removed
    }

    /// The number of ranges that satisfy `what`. They must be at the start of the list.
    fn count(&self, what: impl Fn(&Region) -> bool) -> usize {
        self.as_slice().partition_point(what)
    }

    /// Replaces the ranges `from..to` by `new`.
    fn replace(&mut self, from: usize, to: usize, new: &[Region]) -> Result<(), Full> {
        let old = to.saturating_sub(from);
        let (grow, shrink) = (new.len().saturating_sub(old), old.saturating_sub(new.len()));
        let len = self.len.saturating_add(grow);
        let full = Full {
            start: new.last().map_or(0, |region| region.start),
            capacity: N,
        };
        if len > N {
            return Err(full);
        }
        // One of the two is zero. Step by step, because code with the MMU off must not be able to panic.
        for at in (to..self.len).rev().take_while(|_| grow > 0) {
            self.copy(at, at.saturating_add(grow));
        }
        for at in (to..self.len).take_while(|_| shrink > 0) {
            self.copy(at, at.saturating_sub(shrink));
        }
        let slots = self.regions.iter_mut().skip(from);
        for (slot, region) in slots.zip(new) {
            *slot = *region;
        }
        self.len = len.saturating_sub(shrink);
        Ok(())
    }

    fn copy(&mut self, from: usize, to: usize) {
        let Some(region) = self.regions.get(from).copied() else {
            return;
        };
        if let Some(slot) = self.regions.get_mut(to) {
            *slot = region;
        }
    }
}
