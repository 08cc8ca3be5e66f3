//! Counters of stores, tables, TLBIs and barriers.
//!
//! [`Counted`] wraps an implementation of any of the three traits. Code that does not wrap pays
//! nothing.

use super::allocator::{TableAllocator, TableRun};
use super::memory::{BitChange, TableMemory, Visibility};
use super::tlb_ops::TlbOps;
use crate::arch::PhysicalAddress;
use crate::forward;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

impl Counts {
    /// All zero.
    pub const NONE: Self = Self {
        stores: 0,
        tables: 0,
        tlbi: 0,
        dsb: 0,
        isb: 0,
    };
}

/// Counters that several wrappers add to.
///
/// Any CPU may read them at any time. Those that add take turns, as they do when they change one
/// tree under its lock: two additions at the same time may count as one. An addition is a load and
/// a store, which costs no more than it does without other CPUs.
#[derive(Debug, Default)]
pub struct Counters {
    stores: AtomicU64,
    tables: AtomicU64,
    tlbi: AtomicU64,
    dsb: AtomicU64,
    isb: AtomicU64,
}

impl Counters {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stores: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            tlbi: AtomicU64::new(0),
            dsb: AtomicU64::new(0),
            isb: AtomicU64::new(0),
        }
    }

    /// The counts so far. Another CPU that adds meanwhile may be seen in some of them and not yet
    /// in others.
    #[must_use]
    pub fn get(&self) -> Counts {
        Counts {
            stores: self.stores.load(Relaxed),
            tables: self.tables.load(Relaxed),
            tlbi: self.tlbi.load(Relaxed),
            dsb: self.dsb.load(Relaxed),
            isb: self.isb.load(Relaxed),
        }
    }

    /// Adds `more` to the counts, wrapping.
    #[inline(always)]
    pub fn add(&self, more: Counts) {
        for (counter, more) in [
            (&self.stores, more.stores),
            (&self.tables, more.tables),
            (&self.tlbi, more.tlbi),
            (&self.dsb, more.dsb),
            (&self.isb, more.isb),
        ] {
            // The compiler drops those that are known to be zero; it never drops an atomic store.
            if more != 0 {
                add(counter, more);
            }
        }
    }

    /// Sets all counts to zero.
    pub fn reset(&self) {
        let all = [&self.stores, &self.tables, &self.tlbi, &self.dsb, &self.isb];
        all.into_iter()
            .for_each(|counter| counter.store(0, Relaxed));
    }
}

/// Adds to one counter, for which only one CPU at a time may call this.
#[inline(always)]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
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
    forward!(self.inner after { add(&self.counters.stores, 1) }: store exchange);
    forward!(self.inner after |(_, _, count, ..)| {
        add(&self.counters.stores, count as u64);
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
        add(&self.counters.stores, valid as u64);
        valid
    }
}

// SAFETY: every call reaches `inner`, whose implementation keeps the trait's promises.
unsafe impl<T: TableAllocator> TableAllocator for Counted<'_, T> {
    forward!(self.inner: reserve);
    forward!(self.inner after {
        add(&self.counters.tables, 1u64.wrapping_neg());
    }: free);

    #[inline(always)]
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let run = self.inner.allocate(most);
        if let Some(run) = run {
            add(&self.counters.tables, run.count as u64);
        }
        run
    }
}

impl<T: TlbOps> TlbOps for Counted<'_, T> {
    forward!(self.inner: capabilities);
    forward!(self.inner after { add(&self.counters.dsb, 1) }: dsb_ishst dsb_ish);
    forward!(self.inner after { add(&self.counters.isb, 1) }: isb);
    forward!(self.inner after { add(&self.counters.tlbi, 1) }: tlbi);
}
