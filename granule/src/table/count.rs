//! Counters of stores, tables, TLBIs and barriers.
//!
//! [`Counted`] wraps an implementation of any of the three traits. Code that does not wrap pays
//! nothing.

use super::allocator::{TableAllocator, TableRun};
use super::memory::{BitChange, TableMemory, Visibility};
use super::tlb_ops::TlbOps;
use crate::arch::PhysicalAddress;
use crate::forward;
use core::cell::Cell;

/// The counts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Descriptors stored into tables, zeroing included.
    pub stores: u64,
    /// Table pages allocated and not freed.
    pub tables: u64,
    /// TLBI instructions.
    pub tlbi: u64,
    /// DSBs of any kind.
    pub dsb: u64,
    /// ISBs.
    pub isb: u64,
}

/// Counters that several wrappers add to.
#[derive(Debug, Default)]
pub struct Counters(Cell<Counts>);

impl Counters {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(Cell::new(Counts {
            stores: 0,
            tables: 0,
            tlbi: 0,
            dsb: 0,
            isb: 0,
        }))
    }

    /// The counts so far.
    #[must_use]
    pub fn get(&self) -> Counts {
        self.0.get()
    }

    /// Applies `change` to the counts.
    #[inline(always)]
    pub fn add(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.0.get();
        change(&mut counts);
        self.0.set(counts);
    }
}

/// A wrapper that counts the calls to an implementation of the three traits.
#[derive(Debug)]
pub struct Counted<'c, T> {
    inner: T,
    counters: &'c Counters,
}

impl<'c, T> Counted<'c, T> {
    /// Counts the calls to `inner` in `counters`.
    pub const fn new(inner: T, counters: &'c Counters) -> Self {
        Self { inner, counters }
    }

    /// The wrapped implementation.
    pub const fn inner(&mut self) -> &mut T {
        &mut self.inner
    }
}

// SAFETY: every call reaches `inner`, whose implementation keeps the trait's promises.
unsafe impl<T: TableMemory> TableMemory for Counted<'_, T> {
    forward!(self.inner: load find_mapped);
    forward!(self.inner after { self.counters.add(|counts| counts.stores += 1) }: store exchange);
    forward!(self.inner after |(_, _, count, ..)| {
        self.counters.add(|counts| counts.stores += count as u64);
    }: fill);

    #[inline(always)]
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        // SAFETY: the caller promises what the wrapped method requires.
        let valid = unsafe { self.inner.update(table, first, count, change, visibility) };
        self.counters.add(|counts| counts.stores += valid as u64);
        valid
    }
}

// SAFETY: every call reaches `inner`, whose implementation keeps the trait's promises.
unsafe impl<T: TableAllocator> TableAllocator for Counted<'_, T> {
    forward!(self.inner: reserve);
    forward!(self.inner after {
        self.counters.add(|counts| counts.tables = counts.tables.wrapping_sub(1));
    }: free);

    #[inline(always)]
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let run = self.inner.allocate(most);
        if let Some(run) = run {
            self.counters
                .add(|counts| counts.tables += run.count as u64);
        }
        run
    }

    #[inline(always)]
    fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        let first = self.inner.allocate_aligned(count)?;
        self.counters.add(|counts| counts.tables += count as u64);
        Some(first)
    }
}

impl<T: TlbOps> TlbOps for Counted<'_, T> {
    forward!(self.inner: capabilities);
    forward!(self.inner after { self.counters.add(|counts| counts.dsb += 1) }: dsb_ishst dsb_ish);
    forward!(self.inner after { self.counters.add(|counts| counts.isb += 1) }: isb);
    forward!(self.inner after { self.counters.add(|counts| counts.tlbi += 1) }: tlbi);
}
