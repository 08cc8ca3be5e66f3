//! Sparse physical memory: the descriptors in it, and what is known about each page of 4 KiB.
//!
//! Kept per page, so that the whole grows with the tables of a trace and not with its length.
//! What the states mean is decided elsewhere: caches in [`cache`](crate::cache), stores in
//! [`store`](crate::store), ownership in [`frames`](crate::frames).

use crate::tables::TableId;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The bits of an offset in a page of this memory, whatever the granule.
pub(crate) const PAGE_SHIFT: u32 = 12;
/// Descriptors in such a page.
pub(crate) const PER_PAGE: usize = 512;

/// Who has a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nothing was said about it.
    #[default]
    Unknown,
    /// It is table memory.
    Tables,
    /// It was table memory and was given back.
    Freed,
}

/// The cache state of the lines of 64 bytes of a page, a bit a line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lines {
    /// Stored through the caches, not yet in memory.
    pub(crate) dirty: u64,
    /// Being cleaned: the DSB is missing.
    pub(crate) cleaning: u64,
    /// Stored past the caches, which may hold something older.
    pub(crate) newer: u64,
    /// Being invalidated: the DSB is missing.
    pub(crate) invalidating: u64,
    /// Written as data or code for someone past the caches.
    pub(crate) other: u64,
    /// Code that the instruction caches may hold older versions of.
    pub(crate) code: u64,
    /// Code not yet cleaned to the point of unification.
    pub(crate) code_dirty: u64,
    /// The CPUs whose instruction caches may.
    pub(crate) code_cpus: u64,
    /// The last event that made a line dirty or newer.
    pub(crate) event: u64,
}

/// When each entry of a page that walkers read was last stored, and by whom.
#[derive(Clone, Debug)]
pub(crate) struct Fresh {
    pub(crate) events: [u32; PER_PAGE],
    pub(crate) cpus: [u8; PER_PAGE],
}

/// What is known about one page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    values: Option<Box<[u64; PER_PAGE]>>,
    /// Since the page was obtained, whose contents could be anything: entries stored, a bit each.
    /// `None` when it never was, and counts as zero.
    written: Option<Box<[u64; PER_PAGE / 64]>>,
    pub(crate) lines: Lines,
    /// The tables that lie here and that some walker can reach.
    pub(crate) tables: Vec<TableId>,
    /// The last store of each CPU while no walker could reach the page.
    pub(crate) pending: Vec<(u32, u64)>,
    pub(crate) fresh: Option<Box<Fresh>>,
    pub(crate) owner: Owner,
    /// A table here was unlinked; cached pointers to it may remain.
    pub(crate) may_be_walked: bool,
}

impl Page {
    /// The descriptors, zero where never stored.
    pub(crate) fn values_mut(&mut self) -> &mut [u64; PER_PAGE] {
        self.values.get_or_insert_with(|| Box::new([0; PER_PAGE]))
    }

    pub(crate) fn value(&self, index: usize) -> u64 {
        self.values.as_ref().map_or(0, |values| values[index])
    }

    /// Notes that `count` entries from `first` were stored.
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

    /// From now on the contents are unknown.
    pub(crate) fn forget(&mut self) {
        self.values = None;
        self.written = Some(Box::new([0; PER_PAGE / 64]));
    }

    /// Notes when entries that walkers can reach were stored.
    pub(crate) fn mark_fresh(&mut self, index: usize, event: u64, cpu: u32) {
        let fresh = self.fresh.get_or_insert_with(|| {
            Box::new(Fresh {
                events: [0; PER_PAGE],
                cpus: [0; PER_PAGE],
            })
        });
        fresh.events[index] = u32::try_from(event).unwrap_or(u32::MAX);
        fresh.cpus[index] = cpu as u8;
    }
}

/// Mixes page numbers; they are not chosen by an adversary, and this is hot.
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

/// The memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    index: HashMap<u64, u32, BuildHasherDefault<PageHasher>>,
    pages: Vec<Page>,
}

/// The mask of the lines of the page at `page` that `bytes` bytes from `address` touch.
pub(crate) fn line_mask(page: u64, address: u64, bytes: u64) -> u64 {
    let start = page << PAGE_SHIFT;
    let first = address.max(start) - start;
    let last = address
        .saturating_add(bytes - 1)
        .min(start + ((1 << PAGE_SHIFT) - 1))
        - start;
    (u64::MAX >> (63 - (last >> 6))) & (u64::MAX << (first >> 6))
}

impl Memory {
    /// The page with this number (address / 4096), if anything is known about it.
    pub(crate) fn page(&self, number: u64) -> Option<&Page> {
        let index = *self.index.get(&number)?;
        self.pages.get(index as usize)
    }

    /// The page with this number.
    pub(crate) fn page_mut(&mut self, number: u64) -> &mut Page {
        let next = self.pages.len();
        let index = *self.index.entry(number).or_insert(next as u32) as usize;
        if index == next {
            self.pages.push(Page::default());
        }
        &mut self.pages[index]
    }

    /// The page with this number, if anything is known about it.
    pub(crate) fn known_mut(&mut self, number: u64) -> Option<&mut Page> {
        let index = *self.index.get(&number)?;
        self.pages.get_mut(index as usize)
    }

    /// The descriptor at an address.
    pub(crate) fn load(&self, address: u64) -> u64 {
        self.page(address >> PAGE_SHIFT)
            .map_or(0, |page| page.value((address >> 3) as usize % PER_PAGE))
    }

    /// When a walker could last see another value at `address`, and who stored it; event 0 for
    /// never.
    pub(crate) fn fresh(&self, address: u64) -> (u64, u32) {
        let index = (address >> 3) as usize % PER_PAGE;
        self.page(address >> PAGE_SHIFT)
            .and_then(|page| page.fresh.as_ref())
            .map_or((0, 0), |fresh| {
                (u64::from(fresh.events[index]), u32::from(fresh.cpus[index]))
            })
    }

    /// The page numbers that `bytes` bytes from `address` touch.
    pub(crate) fn numbers(address: u64, bytes: u64) -> std::ops::RangeInclusive<u64> {
        let last = address.saturating_add(bytes.saturating_sub(1));
        address >> PAGE_SHIFT..=last >> PAGE_SHIFT
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
        page.forget();
        page.mark_written(0, 3);
        assert_eq!(page.unknown(0, 3), None);
        assert_eq!(page.unknown(0, 4), Some(3));
    }

    #[test]
    fn lines_are_those_that_a_range_touches() {
        assert_eq!(line_mask(0, 0, 1), 1);
        assert_eq!(line_mask(0, 63, 2), 0b11);
        assert_eq!(line_mask(0, 0, 4096), u64::MAX);
        assert_eq!(line_mask(1, 0, 4096 + 64), 1);
        assert_eq!(line_mask(1, 0x1fc0, 0x1000), 1 << 63);
    }
}
