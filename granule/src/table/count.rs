//! Counters of stores, tables, TLBIs and barriers.
//!
//! [`Counted`] wraps an implementation of any of the three traits. Code that does not wrap pays nothing.

use super::FreedTable;
use super::allocator::{TableAllocator, TableRun};
use super::memory::{BitChange, TableMemory, Visibility};
use super::tlb_ops::TlbOps;
use crate::arch::tlbi::TlbiOp;
use crate::arch::{Descriptor, PhysicalAddress};
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

    #[inline(always)]
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        self.counters.add(|counts| counts.stores += 1);
        // SAFETY: the caller promises what the wrapped method requires.
        unsafe { self.inner.store(table, index, descriptor, visibility) }
    }

    #[inline(always)]
    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        self.counters.add(|counts| counts.stores += 1);
        // SAFETY: the caller promises what the wrapped method requires.
        unsafe { self.inner.exchange(table, index, descriptor, visibility) }
    }

    #[inline(always)]
    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        self.counters.add(|counts| counts.stores += count as u64);
        // SAFETY: the caller promises what the wrapped method requires.
        unsafe {
            self.inner
                .fill(table, first, count, descriptor, step, visibility)
        }
    }

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

    #[inline(always)]
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let run = self.inner.allocate(most);
        if let Some(run) = run {
            self.counters
                .add(|counts| counts.tables += run.count as u64);
        }
        run
    }

    fn free(&mut self, table: FreedTable) {
        self.counters
            .add(|counts| counts.tables = counts.tables.wrapping_sub(1));
        self.inner.free(table);
    }
}

impl<T: TlbOps> TlbOps for Counted<'_, T> {
    forward!(self.inner: capabilities);

    #[inline(always)]
    fn dsb_ishst(&mut self) {
        self.counters.add(|counts| counts.dsb += 1);
        self.inner.dsb_ishst();
    }

    #[inline(always)]
    fn dsb_ish(&mut self) {
        self.counters.add(|counts| counts.dsb += 1);
        self.inner.dsb_ish();
    }

    #[inline(always)]
    fn isb(&mut self) {
        self.counters.add(|counts| counts.isb += 1);
        self.inner.isb();
    }

    #[inline(always)]
    fn tlbi(&mut self, op: TlbiOp) {
        self.counters.add(|counts| counts.tlbi += 1);
        self.inner.tlbi(op);
    }
}
