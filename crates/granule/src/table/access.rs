//! Reads and writes entries of a tree. The only calls to the unsafe methods of [`TableEnvironment`].

#![allow(unsafe_code, reason = "the only calls into `TableEnvironment`")]

use super::stage::Stage;
use super::{BitChange, BitPattern, PageTables, TableEnvironment, Visibility};
use crate::arch::page_size::PageChoice;
use crate::arch::{Descriptor, PhysicalAddress};

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    #[inline(always)]
    pub(super) fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        // SAFETY: every table address in this module comes from the private field `root`, a table
        // descriptor below it or an allocation. The private field `environment` reaches all of these,
        // as the caller of `from_root` and `TableEnvironment` promise. Indices come from `index` or are
        // bounded by it.
        unsafe { self.environment.load(table, index) }
    }

    /// The distance from `first` to the first non-empty one of `count` entries.
    #[inline(always)]
    pub(super) fn find_mapped(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
    ) -> Option<usize> {
        self.find_unlike(table, first, count, BitPattern::EMPTY)
    }

    /// The distance from `first` to the first one of `count` entries that does not match `pattern`.
    #[inline(always)]
    pub(super) fn find_unlike(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        pattern: BitPattern,
    ) -> Option<usize> {
        let how = self.visibility();
        let memory = &self.environment;
        // SAFETY: as for `load`, for each entry. Nothing writes private tables meanwhile: they are
        // out of reach of walkers, and `&self` excludes other code.
        unsafe { memory.find_unlike(table, first, count, pattern, how) }
    }

    /// The index of the first non-empty entry from `index` on and before `end`.
    #[cfg(feature = "space")]
    #[inline(always)]
    pub(super) fn next_mapped(
        &self,
        table: PhysicalAddress,
        index: usize,
        end: usize,
    ) -> Option<usize> {
        // It is usually the next entry, which is cheaper to test than a whole chunk.
        if index < end && self.load(table, index).0 & BitChange::LEAVES != 0 {
            return Some(index);
        }
        let found = self.find_mapped(table, index, end - index)?;
        Some(index + found)
    }

    #[inline(always)]
    pub(super) fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        entry: Descriptor,
        how: Visibility,
    ) {
        // SAFETY: as for `load`. `&mut self` makes this the only writer. Callers make private
        // stores only to tables that are not linked or whose tree is not live by the private field
        // `liveness`.
        unsafe { self.environment.store(table, index, entry, how) }
    }

    /// Replaces an entry that hardware may update, and returns the old one.
    #[inline(always)]
    pub(super) fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        entry: Descriptor,
    ) -> Descriptor {
        self.exchange_as(table, index, entry, self.visibility())
    }

    /// As [`exchange`](Self::exchange), with a visibility.
    #[inline(always)]
    pub(super) fn exchange_as(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        entry: Descriptor,
        how: Visibility,
    ) -> Descriptor {
        // SAFETY: as for `store`.
        unsafe { self.environment.exchange(table, index, entry, how) }
    }

    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        entry: Descriptor,
        step: u64,
        how: Visibility,
    ) {
        // SAFETY: as for `store`, for each entry.
        unsafe { self.environment.fill(table, first, count, entry, step, how) }
    }

    #[inline(always)]
    pub(super) fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
    ) -> usize {
        let how = self.visibility();
        // SAFETY: as for `store`, for each entry.
        unsafe { self.environment.update(table, first, count, change, how) }
    }

    /// Changes the entries before the first one, of `count` from `first` on, that does not match
    /// `pattern`, and returns their number.
    #[inline(always)]
    pub(super) fn update_alike(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        pattern: BitPattern,
        change: BitChange,
    ) -> usize {
        debug_assert!(pattern.value & change.of != 0);
        let how = self.visibility();
        let memory = &mut self.environment;
        // SAFETY: as for `store`, for each entry.
        unsafe { memory.update_alike(table, first, count, pattern, change, how) }
    }
}
