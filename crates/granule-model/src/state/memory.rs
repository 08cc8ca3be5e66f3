//! Sparse physical memory: the descriptors in it, and the state of each page of 4 KiB.
//!
//! The state is kept for each page, so that it grows with the tables of a trace and not with its
//! length. The meaning of the states is defined elsewhere: cache lines are
//! [`caches`](super::caches), tables are [`tables`](super::tables).

use super::caches::{LineRange, Lines, line_mask};
use super::extents::{Extent, Extents, Owner};
use super::ids::{PAGE_SHIFT, PER_PAGE, TableId, pages_of};
use crate::arch::format::Granule;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Events that cover at least this many pages do not record them one by one.
const LONG: u64 = 16;

/// Bits of a page's index in `last`; the other bits hold the page's number, which has 40.
const INDEX_BITS: u32 = 23;

/// The last store to each entry of a page that walkers read: the event and the CPU.
#[derive(Clone, Debug)]
pub(crate) struct Fresh {
    pub(crate) events: [u64; PER_PAGE],
    pub(crate) cpus: [u8; PER_PAGE],
}

/// A store that was made while no walker could reach the table, and that walkers may not see yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) cpu: u32,
    pub(crate) event: u64,
    /// The first entry that was stored, and the one behind the last.
    pub(crate) entries: (usize, usize),
    /// Every entry was invalid before: a walker that misses the store faults, and does nothing worse.
    pub(crate) may_only_fault: bool,
}

impl Pending {
    /// The part of it in the entries between two indices.
    pub(crate) fn within(self, first: usize, end: usize) -> Option<Self> {
        let (from, to) = self.entries;
        let entries = (from.max(first), to.min(end));
        (entries.0 < entries.1).then_some(Self { entries, ..self })
    }
}

/// The state of one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    values: Option<Box<[u64; PER_PAGE]>>,
    /// The entries stored since the page was obtained with unknown contents, one bit each. `None`
    /// for a page that was never obtained, whose contents count as zero.
    written: Option<Box<[u64; PER_PAGE / 64]>>,
    pub(crate) lines: Lines,
    /// The tables that lie here and that some walker can reach.
    pub(crate) tables: Vec<TableId>,
    /// The last stores of each CPU that were made while no walker could reach them.
    pub(crate) pending: Vec<Pending>,
    pub(crate) fresh: Option<Box<Fresh>>,
    owner: Owner,
    /// The owners of the entries where parts of the page have different ones: a top table may be smaller
    /// than a page.
    owners: Option<Box<[Owner; PER_PAGE]>>,
    /// Whether a table here was unlinked; cached pointers to it may remain.
    pub(crate) may_be_walked: bool,
    /// The granule with which a table here was walked, since something was last stored while no
    /// walker could reach it.
    pub(crate) granule: Option<Granule>,
}

impl Page {
    /// The descriptors, zero where never stored.
    pub(crate) fn values_mut(&mut self) -> &mut [u64; PER_PAGE] {
        self.values.get_or_insert_with(|| Box::new([0; PER_PAGE]))
    }

    pub(crate) fn value(&self, index: usize) -> u64 {
        self.values.as_ref().map_or(0, |values| values[index])
    }

    /// Records that `count` entries from `first` were stored.
    pub(crate) fn mark_written(&mut self, first: usize, count: usize) {
        if let Some(written) = &mut self.written {
            for index in first..first + count {
                written[index / 64] |= 1 << (index % 64);
            }
        }
    }

    /// The first of `count` entries from `first` whose contents are unknown.
    pub(crate) fn unknown(&self, first: usize, count: usize) -> Option<usize> {
        let written = self.written.as_ref()?;
        (first..first + count).find(|index| written[index / 64] & (1 << (index % 64)) == 0)
    }

    /// Takes out what is pending of `count` entries from `first`. A table may be smaller than a page.
    pub(crate) fn take_pending(&mut self, first: usize, count: usize) -> Vec<Pending> {
        let all = std::mem::take(&mut self.pending);
        let end = first + count;
        let beside = |one: &Pending| [one.within(0, first), one.within(end, PER_PAGE)];
        self.pending = all.iter().flat_map(beside).flatten().collect();
        let taken = all.iter().filter_map(|one| one.within(first, end));
        taken.collect()
    }

    /// Marks the contents of `count` entries from `first` as unknown: what was stored to them is not what a
    /// walker will read.
    pub(crate) fn forget(&mut self, first: usize, count: usize) {
        self.take_pending(first, count);
        if count == PER_PAGE {
            self.values = None;
            self.written = Some(Box::new([0; PER_PAGE / 64]));
            return;
        }
        let known = || Box::new([u64::MAX; PER_PAGE / 64]);
        let written = self.written.get_or_insert_with(known);
        for index in first..first + count {
            written[index / 64] &= !(1 << (index % 64));
        }
        if let Some(values) = &mut self.values {
            values[first..first + count].fill(0);
        }
    }

    /// The owner of an entry.
    pub(crate) fn owner_of(&self, index: usize) -> Owner {
        self.owners
            .as_ref()
            .map_or(self.owner, |owners| owners[index])
    }

    /// Gives `count` entries from `first` to an owner.
    pub(crate) fn set_owner(&mut self, first: usize, count: usize, owner: Owner) {
        if count == PER_PAGE {
            self.owner = owner;
            self.owners = None;
            return;
        }
        let whole = self.owner;
        let owners = self
            .owners
            .get_or_insert_with(|| Box::new([whole; PER_PAGE]));
        owners[first..first + count].fill(owner);
    }

    /// Records when an entry that walkers can reach was stored.
    pub(crate) fn mark_fresh(&mut self, index: usize, event: u64, cpu: u32) {
        let fresh = self.fresh.get_or_insert_with(|| {
            Box::new(Fresh {
                events: [0; PER_PAGE],
                cpus: [0; PER_PAGE],
            })
        });
        fresh.events[index] = event;
        fresh.cpus[index] = cpu as u8;
    }
}

/// Hashes page numbers. No adversary chooses them, and this code is hot.
#[derive(Default)]
pub(crate) struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Memory {
    index: HashMap<u64, u32, BuildHasherDefault<PageHasher>>,
    pages: Vec<Page>,
    /// The last page found, since tables are read entry by entry: its number plus 1, then its index
    /// in `pages` in [`INDEX_BITS`] bits. No page moves, so the index stays right.
    last: AtomicU64,
    /// The numbers of those pages, in order.
    numbers: BTreeSet<u64>,
    /// The state of all other pages.
    extents: Extents,
    /// The pages with lines written for an observer past the caches.
    other_lines: BTreeSet<u64>,
    /// Entries and paths looked at; atomic, because lookups only borrow the memory.
    visits: AtomicU64,
    /// The bound on `visits`.
    pub(crate) most_visits: u64,
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self {
            index: self.index.clone(),
            pages: self.pages.clone(),
            last: AtomicU64::new(self.last.load(Ordering::Relaxed)),
            numbers: self.numbers.clone(),
            extents: self.extents.clone(),
            other_lines: self.other_lines.clone(),
            visits: AtomicU64::new(self.visits.load(Ordering::Relaxed)),
            most_visits: self.most_visits,
        }
    }
}

impl Memory {
    /// The page with this number (address / 4096), if it has a state of its own.
    pub(crate) fn page(&self, number: u64) -> Option<&Page> {
        let last = self.last.load(Ordering::Relaxed);
        if last >> INDEX_BITS == number + 1 {
            return self.pages.get((last & ((1 << INDEX_BITS) - 1)) as usize);
        }
        let index = *self.index.get(&number)?;
        if index < 1 << INDEX_BITS {
            let found = (number + 1) << INDEX_BITS | u64::from(index);
            self.last.store(found, Ordering::Relaxed);
        }
        self.pages.get(index as usize)
    }

    /// The page with this number, which leaves the range that it was part of.
    pub(crate) fn page_mut(&mut self, number: u64) -> &mut Page {
        let next = self.pages.len();
        let index = *self.index.entry(number).or_insert(next as u32) as usize;
        if index == next {
            let extent = self.extents.at(number);
            let mut page = Page {
                owner: extent.owner,
                lines: extent.lines,
                ..Page::default()
            };
            if extent.unknown {
                page.forget(0, PER_PAGE);
            }
            if extent.lines.other != 0 {
                self.other_lines.insert(number);
            }
            if extent != Extent::default() {
                self.extents
                    .change(number, number, |_, _, one| *one = Extent::default());
            }
            self.pages.push(page);
            self.numbers.insert(number);
        }
        &mut self.pages[index]
    }

    /// The number of pages with a state of their own.
    pub(crate) const fn pages(&self) -> usize {
        self.pages.len()
    }

    /// The pages from `first` to `last` with a state of their own.
    pub(crate) fn known(&self, first: u64, last: u64) -> Vec<u64> {
        if last - first < 16 {
            return (first..=last)
                .filter(|number| self.index.contains_key(number))
                .collect();
        }
        let known: Vec<u64> = self.numbers.range(first..=last).copied().collect();
        self.visit(known.len() as u64);
        known
    }

    /// Changes the state of the pages from `first` to `last` that have none of their own.
    pub(crate) fn change_others(
        &mut self,
        first: u64,
        last: u64,
        mut change: impl FnMut(u64, u64, &mut Extent),
    ) {
        let mut next = first;
        for number in self.known(first, last) {
            if next < number {
                self.extents.change(next, number - 1, &mut change);
            }
            next = number + 1;
        }
        if next <= last {
            self.extents.change(next, last, &mut change);
        }
    }

    /// Changes the cache state of all lines that a range of bytes touches. Lines of pages without a
    /// state are left out unless `all` is set.
    pub(crate) fn change_lines(
        &mut self,
        address: u64,
        bytes: u64,
        all: bool,
        mut change: impl FnMut(LineRange, &mut Lines),
    ) {
        let (first, last) = pages_of(address, bytes).into_inner();
        let long = last - first >= LONG;
        for number in if long {
            vec![first, last]
        } else {
            (first..=last).collect()
        } {
            if all || self.page(number).is_some() || self.extents.at(number) != Extent::default() {
                let mask = line_mask(number, address, bytes);
                self.change_page_lines(number, mask, &mut change);
            }
        }
        if long {
            let (first, last) = (first + 1, last - 1);
            for number in self.known(first, last) {
                self.change_page_lines(number, u64::MAX, &mut change);
            }
            self.change_others(first, last, |first, last, extent| {
                let mask = u64::MAX;
                change(LineRange { first, last, mask }, &mut extent.lines);
            });
        }
    }

    fn change_page_lines(
        &mut self,
        number: u64,
        mask: u64,
        change: &mut impl FnMut(LineRange, &mut Lines),
    ) {
        let (first, last) = (number, number);
        let lines = &mut self.page_mut(number).lines;
        change(LineRange { first, last, mask }, lines);
        if lines.other != 0 {
            self.other_lines.insert(number);
        }
    }

    /// Changes the cache state of the pages from `first` to `last` that have a state.
    pub(crate) fn change_known_lines(
        &mut self,
        first: u64,
        last: u64,
        mut change: impl FnMut(&mut Lines),
    ) {
        for number in self.known(first, last) {
            change(&mut self.page_mut(number).lines);
        }
        self.change_others(first, last, |_, _, extent| {
            if extent.lines != Lines::default() {
                change(&mut extent.lines);
            }
        });
    }

    /// The pages that have lines written for an observer past the caches, in order.
    pub(crate) fn lines_for_others(&self) -> Vec<(LineRange, Lines)> {
        let whole = |first, last| LineRange {
            first,
            last,
            mask: u64::MAX,
        };
        let pages = self.other_lines.iter().filter_map(|&number| {
            let lines = self.page(number)?.lines;
            (lines.other != 0).then_some((whole(number, number), lines))
        });
        let extents = self
            .extents
            .all()
            .filter(|(_, _, one)| one.lines.other != 0);
        let extents = extents.map(|(first, last, one)| (whole(first, last), one.lines));
        let mut found: Vec<_> = pages.chain(extents).collect();
        found.sort_unstable_by_key(|(span, _)| span.first);
        self.visit(found.len() as u64);
        found
    }

    /// Whether [`Self::lines_for_others`] has any.
    pub(crate) fn has_lines_for_others(&self) -> bool {
        let mut pages = self.other_lines.iter();
        let is_other = |number: &u64| self.page(*number).is_some_and(|page| page.lines.other != 0);
        pages.any(is_other) || self.extents.all().any(|(_, _, one)| one.lines.other != 0)
    }

    /// The owner of the memory at an address.
    pub(crate) fn owner(&self, address: u64) -> Owner {
        let number = address >> PAGE_SHIFT;
        match self.page(number) {
            Some(page) => page.owner_of((address >> 3) as usize % PER_PAGE),
            None => self.extents.at(number).owner,
        }
    }

    /// Counts work that may grow faster than the events that cause it. Returns whether more is
    /// allowed.
    pub(crate) fn visit(&self, count: u64) -> bool {
        let visits = self.visits.load(Ordering::Relaxed).saturating_add(count);
        self.visits.store(visits, Ordering::Relaxed);
        visits <= self.most_visits
    }

    /// The visits so far.
    pub(crate) fn visits(&self) -> u64 {
        self.visits.load(Ordering::Relaxed)
    }

    /// The page with this number, if it has a state of its own.
    pub(crate) fn known_mut(&mut self, number: u64) -> Option<&mut Page> {
        let index = *self.index.get(&number)?;
        self.pages.get_mut(index as usize)
    }

    /// The descriptor at an address.
    pub(crate) fn load(&self, address: u64) -> u64 {
        self.page(address >> PAGE_SHIFT)
            .map_or(0, |page| page.value((address >> 3) as usize % PER_PAGE))
    }

    /// The last time when a walker could see another value at `address`, and the CPU that stored
    /// it; event 0 for never.
    pub(crate) fn fresh(&self, address: u64) -> (u64, u32) {
        let index = (address >> 3) as usize % PER_PAGE;
        self.page(address >> PAGE_SHIFT)
            .and_then(|page| page.fresh.as_ref())
            .map_or((0, 0), |fresh| {
                (fresh.events[index], u32::from(fresh.cpus[index]))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_until_stored_and_unknown_once_obtained() {
        let mut memory = Memory::default();
        let address = 0x000f_ffff_ffff_f008;
        assert_eq!(memory.load(address), 0);
        let page = memory.page_mut(address >> PAGE_SHIFT);
        assert_eq!(page.unknown(0, PER_PAGE), None);
        page.values_mut()[1] = 7;
        assert_eq!(memory.load(address), 7);
        let page = memory.page_mut(address >> PAGE_SHIFT);
        page.forget(0, PER_PAGE);
        page.mark_written(0, 3);
        assert_eq!(page.unknown(0, 3), None);
        assert_eq!(page.unknown(0, 4), Some(3));
    }

    #[test]
    fn parts_of_a_page_have_owners_and_contents_of_their_own() {
        let mut page = Page::default();
        page.set_owner(0, PER_PAGE, Owner::Tables);
        page.values_mut()[17] = 1;
        page.values_mut()[33] = 2;
        page.set_owner(16, 16, Owner::Freed);
        page.forget(16, 16);
        assert_eq!(
            [15, 16, 31, 32].map(|index| page.owner_of(index)),
            [Owner::Tables, Owner::Freed, Owner::Freed, Owner::Tables]
        );
        assert_eq!(
            (page.unknown(0, 16), page.unknown(0, PER_PAGE)),
            (None, Some(16))
        );
        assert_eq!((page.value(17), page.value(33)), (0, 2));
        page.set_owner(0, PER_PAGE, Owner::Freed);
        assert_eq!(page.owner_of(0), Owner::Freed);
    }
}
