//! Two lists of ranges compared: what only one of them maps, and what they map differently.

use crate::attributes::Decoded;
use crate::ranges::Range;
use crate::tree::Tree;
use std::fmt;

/// A tree with its ranges, in ascending order.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'l> {
    pub tree: &'l Tree,
    pub ranges: &'l [Range],
}

/// Addresses that two trees map differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The first address.
    pub start: u64,
    pub bytes: u64,
    /// The first tree's mapping in words; `None` if it does not map them.
    pub old: Option<String>,
    /// The second tree's mapping.
    pub new: Option<String>,
}

/// The differences, by ascending address. Neighbours that differ in the same way are one.
pub fn diff(old: Listed<'_>, new: Listed<'_>) -> Vec<Difference> {
    let mut found: Vec<Difference> = Vec::new();
    let (mut olds, mut news) = (Cursor::new(&old), Cursor::new(&new));
    let mut at = 0;
    loop {
        let next = match (olds.from(at), news.from(at)) {
            (None, None) => return found,
            (one, other) => one.into_iter().chain(other).min(),
        };
        // The piece up to the next edge of either list.
        let Some(start) = next else { return found };
        let last = olds.edge(start).min(news.edge(start));
        let (one, other) = (olds.at(start), news.at(start));
        let alike = match (one, other) {
            (Some(one), Some(other)) => {
                one.leaf_bytes == other.leaf_bytes
                    && one.contiguous == other.contiguous
                    && one.output_at(start) == other.output_at(start)
                    && Decoded::new(old.tree, one.attributes)
                        == Decoded::new(new.tree, other.attributes)
            }
            (one, other) => one.is_none() && other.is_none(),
        };
        if !alike {
            let words = |range: Option<&Range>, tree| range.map(|range| range.words(tree, start));
            push(
                &mut found,
                Difference {
                    start,
                    bytes: last - start + 1,
                    old: words(one, old.tree),
                    new: words(other, new.tree),
                },
            );
        }
        match last.checked_add(1) {
            Some(next) => at = next,
            None => return found,
        }
    }
}

fn push(found: &mut Vec<Difference>, next: Difference) {
    // Words have an output, so only ends of what one side maps alone can be joined.
    if let Some(last) = found.last_mut()
        && last.start.wrapping_add(last.bytes) == next.start
        && last.old == next.old
        && last.new == next.new
    {
        last.bytes += next.bytes;
        return;
    }
    found.push(next);
}

impl Range {
    const fn output_at(&self, address: u64) -> u64 {
        self.output.wrapping_add(address.wrapping_sub(self.start))
    }

    fn words(&self, tree: &Tree, address: u64) -> String {
        let contiguous = if self.contiguous { " contiguous" } else { "" };
        format!(
            "{}{contiguous} at {:#x} {}",
            crate::fields::leaf_name(tree.geometry().page_size(), self.level),
            self.output_at(address),
            Decoded::new(tree, self.attributes)
        )
    }
}

struct Cursor<'l> {
    ranges: &'l [Range],
}

impl<'l> Cursor<'l> {
    const fn new(listed: &Listed<'l>) -> Self {
        Self {
            ranges: listed.ranges,
        }
    }

    /// The first mapped address from `at` on; ranges below it are left behind.
    fn from(&mut self, at: u64) -> Option<u64> {
        while let Some((first, rest)) = self.ranges.split_first() {
            if first.last() >= at {
                return Some(first.start.max(at));
            }
            self.ranges = rest;
        }
        None
    }

    /// The range that maps `at`.
    fn at(&self, at: u64) -> Option<&'l Range> {
        self.ranges.first().filter(|range| range.start <= at)
    }

    /// Returns the last address up to which the list maps the same as at `at`.
    fn edge(&self, at: u64) -> u64 {
        match self.ranges.first() {
            None => u64::MAX,
            Some(range) if range.start > at => range.start - 1,
            Some(range) => range.last(),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.start.wrapping_add(self.bytes - 1);
        let size = crate::fields::size(self.bytes);
        write!(f, "{:#018x} - {last:#018x} {size:>8}  ", self.start)?;
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => write!(f, "changed: {old}  ->  {new}"),
            (Some(old), None) => write!(f, "only in the first: {old}"),
            (None, Some(new)) => write!(f, "only in the second: {new}"),
            (None, None) => f.write_str("not mapped"),
        }
    }
}
