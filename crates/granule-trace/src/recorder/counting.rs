//! Counters of stores, tables, TLBIs and barriers.
//!
//! [`Counted`] wraps the environment of page tables. Code that does not wrap pays nothing.

#![allow(unsafe_code, reason = "hands on the promises of the trait")]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use granule::arch::PhysicalAddress;
use granule::forward;
use granule::table::{BitChange, BitPattern, Maintenance, TableEnvironment, TableRun, Visibility};

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
    /// Returns the increase since `earlier` counts of the same counters.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            stores: self.stores.wrapping_sub(earlier.stores),
            tables: self.tables.wrapping_sub(earlier.tables),
            tlbi: self.tlbi.wrapping_sub(earlier.tlbi),
            dsb: self.dsb.wrapping_sub(earlier.dsb),
            isb: self.isb.wrapping_sub(earlier.isb),
        }
    }
}

/// Counters that several wrappers add to.
///
/// Any CPU may read them at any time. Those that add take turns, as they do when they change one
/// tree under its lock: two additions at the same time may count as one. An addition is a load and
/// a store, which costs no more than it does without other CPUs.
#[derive(Debug, Default)]
pub struct Counters {
    /// See [`Counts::stores`].
    pub stores: Counter,
    /// See [`Counts::tables`].
    pub tables: Counter,
    /// See [`Counts::tlbi`].
    pub tlbi: Counter,
    /// See [`Counts::dsb`].
    pub dsb: Counter,
    /// See [`Counts::isb`].
    pub isb: Counter,
}

impl Counters {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stores: Counter::new(),
            tables: Counter::new(),
            tlbi: Counter::new(),
            dsb: Counter::new(),
            isb: Counter::new(),
        }
    }

    /// The counts so far. Another CPU that adds meanwhile may be seen in some of them and not yet
    /// in others.
    #[must_use]
    pub fn get(&self) -> Counts {
        Counts {
            stores: self.stores.get(),
            tables: self.tables.get(),
            tlbi: self.tlbi.get(),
            dsb: self.dsb.get(),
            isb: self.isb.get(),
        }
    }

    /// Adds `more` to the counts, wrapping.
    pub fn add(&self, more: Counts) {
        self.stores.add(more.stores);
        self.tables.add(more.tables);
        self.tlbi.add(more.tlbi);
        self.dsb.add(more.dsb);
        self.isb.add(more.isb);
    }
}

/// One of the [`Counters`].
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds `more`, wrapping.
    #[inline(always)]
    pub fn add(&self, more: u64) {
        // No read-modify-write: those that add take turns.
        self.0.store(self.get().wrapping_add(more), Relaxed);
    }
}

/// An environment of page tables, with counted calls.
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

    /// The wrapped environment.
    pub const fn inner(&self) -> &T {
        &self.inner
    }

    /// The wrapped environment, for calls that are not counted.
    pub const fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The wrapped environment, without the wrapper.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

// SAFETY: every call reaches `inner`, whose implementation keeps the trait's promises.
unsafe impl<T: TableEnvironment> TableEnvironment for Counted<'_, T> {
    forward!(self.inner: reach load find_unlike pages reserve capabilities);
    forward!(self.inner after { self.counters.stores.add(1) }: store exchange);
    forward!(self.inner after |(_, _, count, ..)| {
        self.counters.stores.add(count as u64);
    }: fill);
    forward!(self.inner after {
        self.counters.tables.add(1u64.wrapping_neg());
    }: free);

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
        self.counters.stores.add(valid as u64);
        valid
    }

    #[inline(always)]
    unsafe fn update_alike(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        pattern: BitPattern,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let inner = &mut self.inner;
        // SAFETY: the caller promises what the wrapped method requires.
        let alike = unsafe { inner.update_alike(table, first, count, pattern, change, visibility) };
        self.counters.stores.add(alike as u64);
        alike
    }

    #[inline(always)]
    fn allocate(&mut self) -> Option<PhysicalAddress> {
        let table = self.inner.allocate()?;
        self.counters.tables.add(1);
        Some(table)
    }

    #[inline(always)]
    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        let run = self.inner.allocate_run(most)?;
        self.counters.tables.add(run.count as u64);
        Some(run)
    }

    #[inline(always)]
    fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        let first = self.inner.allocate_aligned(count)?;
        self.counters.tables.add(count as u64);
        Some(first)
    }

    #[inline(always)]
    fn invalidate(&mut self, instruction: Maintenance) {
        let counter = match instruction {
            Maintenance::DsbIshst | Maintenance::DsbIsh => &self.counters.dsb,
            Maintenance::Isb => &self.counters.isb,
            Maintenance::Tlbi(..) => &self.counters.tlbi,
        };
        counter.add(1);
        self.inner.invalidate(instruction);
    }
}
