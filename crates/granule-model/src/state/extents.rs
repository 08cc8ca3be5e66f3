//! Ranges of pages with the same state: memory that no event named page by page.
//!
//! An event may name any number of bytes. Its effect on whole pages without a state of their own is
//! recorded once for the range, so the cost depends on the range's borders and not on its bytes. A
//! page leaves its range when an event concerns the page alone, see
//! [`Memory::page_mut`](super::memory::Memory::page_mut).

use super::caches::Lines;
use std::collections::BTreeMap;

/// The owner of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No event named the page.
    #[default]
    Unknown,
    /// It is table memory.
    Tables,
    /// It was table memory and was given back.
    Freed,
}

/// The state of each page of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) owner: Owner,
    /// The page was obtained, so its contents are unknown.
    pub(crate) unknown: bool,
    pub(crate) lines: Lines,
}

/// Ranges by their first page, with their last page. Pages outside of ranges have the default
/// state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents(BTreeMap<u64, (u64, Extent)>);

impl Extents {
    /// The state of a page.
    pub(crate) fn at(&self, number: u64) -> Extent {
        match self.0.range(..=number).next_back() {
            Some((_, (last, extent))) if number <= *last => *extent,
            _ => Extent::default(),
        }
    }

    /// All ranges.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, u64, &Extent)> {
        self.0
            .iter()
            .map(|(from, (to, extent))| (*from, *to, extent))
    }

    /// Changes all pages from `first` to `last`, range by range.
    pub(crate) fn change(
        &mut self,
        first: u64,
        last: u64,
        mut change: impl FnMut(u64, u64, &mut Extent),
    ) {
        self.cut(first);
        if let Some(next) = last.checked_add(1) {
            self.cut(next);
        }
        let mut parts: Vec<(u64, u64, Extent)> = Vec::new();
        let mut next = first;
        for (&from, &(to, extent)) in self.0.range(first..=last) {
            if next < from {
                parts.push((next, from - 1, Extent::default()));
            }
            parts.push((from, to, extent));
            next = to + 1;
        }
        if next <= last {
            parts.push((next, last, Extent::default()));
        }
        for (from, to, mut extent) in parts {
            change(from, to, &mut extent);
            self.0.remove(&from);
            if extent != Extent::default() {
                self.put(from, to, extent);
            }
        }
        // The next range may have the same state now.
        if let Some((from, (to, extent))) = self.0.range(last + 1..).next()
            && *from == last + 1
        {
            let (from, to, extent) = (*from, *to, *extent);
            self.0.remove(&from);
            self.put(from, to, extent);
        }
    }

    /// Inserts a range into a gap, joined to the range before it if the states are equal.
    fn put(&mut self, from: u64, to: u64, extent: Extent) {
        if let Some((_, (last, before))) = self.0.range_mut(..from).next_back()
            && *last + 1 == from
            && *before == extent
        {
            *last = to;
            return;
        }
        self.0.insert(from, (to, extent));
    }

    /// Splits the range that covers a page, so that a range begins at the page.
    fn cut(&mut self, number: u64) {
        let Some((_, (last, extent))) = self.0.range_mut(..number).next_back() else {
            return;
        };
        if *last >= number {
            let rest = (*last, *extent);
            *last = number - 1;
            self.0.insert(number, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_joined_and_forgotten() {
        let mut extents = Extents::default();
        let owned = |extents: &mut Extents, first, last, owner| {
            extents.change(first, last, |_, _, extent| extent.owner = owner);
        };
        owned(&mut extents, 10, 1 << 40, Owner::Tables);
        owned(&mut extents, 20, 29, Owner::Freed);
        let all = |extents: &Extents| -> Vec<(u64, u64, Owner)> {
            extents.all().map(|(a, b, one)| (a, b, one.owner)).collect()
        };
        assert_eq!(
            all(&extents),
            [
                (10, 19, Owner::Tables),
                (20, 29, Owner::Freed),
                (30, 1 << 40, Owner::Tables)
            ]
        );
        assert_eq!(extents.at(29).owner, Owner::Freed);
        assert_eq!(extents.at(9), Extent::default());
        owned(&mut extents, 20, 29, Owner::Tables);
        assert_eq!(all(&extents), [(10, 1 << 40, Owner::Tables)]);
        owned(&mut extents, 0, 1 << 41, Owner::Unknown);
        assert!(all(&extents).is_empty());
    }
}
