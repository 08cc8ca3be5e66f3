//! The state of cache lines, and the effect of stores, maintenance and barriers on it.
//!
//! A line that was stored through the caches may reach memory at any time or never, until it is
//! cleaned. A line that was stored past the caches may be cached with its old contents until it is
//! invalidated. The page of a line is unknown here: pages are [`memory`](super::memory).

use super::ids::PAGE_SHIFT;
use granule_trace::System;
use std::collections::BTreeMap;

/// The cache state of the 64-byte lines of a page, one bit for each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    /// Stored through the caches, not yet in memory.
    pub(crate) dirty: u64,
    /// Being cleaned: the DSB is missing.
    pub(crate) cleaning: u64,
    /// Stored past the caches, which may hold something older.
    pub(crate) newer: u64,
    /// Being invalidated: the DSB is missing.
    pub(crate) invalidating: u64,
    /// Stored, cleaned or invalidated since the trace began: older cached contents are gone.
    pub(crate) settled: u64,
    /// Written as data or code for an observer past the caches.
    pub(crate) other: u64,
    /// Code that the instruction caches may hold older versions of.
    pub(crate) code: u64,
    /// Code not yet cleaned to the point of unification.
    pub(crate) code_dirty: u64,
    /// Code being cleaned there: the DSB is missing, and after an IC before the DSB the old code
    /// may be fetched again.
    pub(crate) code_cleaning: u64,
    /// Code for which an IC was issued since it was last stored.
    pub(crate) code_invalidating: u64,
    /// The CPUs whose instruction caches may hold older versions.
    pub(crate) code_cpus: u64,
    /// The last event that made a line dirty or newer.
    pub(crate) event: u64,
}

/// Cache maintenance that a DSB completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CacheMaintenance {
    /// A clean to the point of coherency.
    Clean,
    /// A clean of instructions to the point of unification.
    CleanCode,
    /// An invalidation.
    Invalidate,
    /// An invalidation of instruction caches, of these CPUs.
    Instructions(u64),
}

/// Cache maintenance that no DSB has completed yet: the first and the last page and the kind of
/// maintenance, with the lines of each page.
pub(crate) type PendingCacheMaintenance = BTreeMap<(u64, u64, CacheMaintenance), u64>;

impl Lines {
    /// Lines whose last contents may be in a cache only.
    pub(crate) const fn unwritten(&self) -> u64 {
        self.dirty | self.cleaning
    }

    /// Lines for which a cache may hold something older than memory.
    pub(crate) const fn outdated(&self) -> u64 {
        self.newer | self.invalidating
    }

    /// Records a store to some lines, through the caches or past them. Returns the lines that a
    /// cache may write back over a store past the caches.
    pub(crate) const fn store(&mut self, mask: u64, cached: bool, now: u64) -> u64 {
        let mut behind = 0;
        if cached {
            self.dirty |= mask;
            self.cleaning &= !mask;
        } else {
            behind = self.unwritten() & mask;
            self.dirty &= !mask;
            self.cleaning &= !mask;
            self.newer |= mask;
            self.invalidating &= !mask;
        }
        self.code_cleaning &= !mask;
        self.code_invalidating &= !mask;
        self.event = now;
        behind
    }

    /// The lines of a store past the caches that were never maintained. They count as maintained
    /// from now on.
    pub(crate) const fn settle_stored(&mut self, mask: u64, cached: bool) -> u64 {
        let unsettled = if cached { 0 } else { mask & !self.settled };
        self.settled |= mask;
        unsettled
    }

    /// Records that an observer past the caches reads, or fetches, the stored lines.
    pub(crate) const fn store_for_others(
        &mut self,
        mask: u64,
        code: bool,
        cached: bool,
        cpus: u64,
    ) {
        self.other |= mask;
        if code {
            self.code |= mask;
            self.code_cpus = cpus;
            if cached {
                self.code_dirty |= mask;
            }
        }
    }

    /// Applies maintenance by address. `wait` receives each piece of work that a DSB has to
    /// complete. Returns the lines whose stores may be lost.
    pub(crate) fn maintain(
        &mut self,
        op: System,
        mask: u64,
        mut wait: impl FnMut(CacheMaintenance, u64),
    ) -> u64 {
        if op != System::DC_IVAC {
            let work = (self.code_dirty | self.code_cleaning) & mask;
            self.code_dirty &= !mask;
            self.code_cleaning |= work;
            wait(CacheMaintenance::CleanCode, work);
        }
        if matches!(op, System::DC_CVAC | System::DC_CIVAC) {
            // A line that is being cleaned counts as cleaned by this operation too.
            let work = self.unwritten() & mask;
            self.dirty &= !mask;
            self.cleaning |= work;
            wait(CacheMaintenance::Clean, work);
        }
        if matches!(op, System::DC_IVAC | System::DC_CIVAC) {
            let work = self.outdated() & mask;
            self.newer &= !mask;
            self.invalidating |= work;
            wait(CacheMaintenance::Invalidate, work);
        }
        if op != System::DC_IVAC {
            return 0;
        }
        let lost = self.unwritten() & mask;
        self.dirty &= !mask;
        self.cleaning &= !mask;
        lost
    }

    /// The code that an IC affects: code whose clean is complete. Other code may be fetched again
    /// in its old version.
    pub(crate) const fn reached_by_ic(&self) -> u64 {
        self.code & !(self.code_dirty | self.code_cleaning)
    }

    /// A DSB completes maintenance of some lines.
    pub(crate) const fn complete(&mut self, work: CacheMaintenance, mask: u64) {
        match work {
            CacheMaintenance::CleanCode => self.code_cleaning &= !mask,
            CacheMaintenance::Clean => self.cleaning &= !mask,
            CacheMaintenance::Invalidate => self.invalidating &= !mask,
            CacheMaintenance::Instructions(cpus) => {
                // Code stored since the IC stays stale.
                let done = mask & self.code_invalidating;
                if self.code_cpus & !cpus == 0 {
                    self.code &= !done;
                } else if self.code & !done == 0 {
                    self.code_cpus &= !cpus;
                }
            }
        }
    }
}

/// Lines with the same state in neighbouring pages: the first page and the last, and the lines of
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineRange {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) mask: u64,
}

impl LineRange {
    /// The addresses from the first to the last of the masked lines.
    pub(crate) const fn addresses(self, mask: u64) -> (u64, u64) {
        (
            (self.first << PAGE_SHIFT) + (mask.trailing_zeros() as u64) * 64,
            (self.last << PAGE_SHIFT) + (63 - mask.leading_zeros() as u64) * 64 + 63,
        )
    }
}

/// The addresses from the first to the last of some lines of a page.
pub(crate) const fn addresses_of(page: u64, mask: u64) -> (u64, u64) {
    let (first, last) = (page, page);
    LineRange { first, last, mask }.addresses(mask)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_that_a_range_touches() {
        assert_eq!(line_mask(0, 0, 1), 1);
        assert_eq!(line_mask(0, 63, 2), 0b11);
        assert_eq!(line_mask(0, 0, 4096), u64::MAX);
        assert_eq!(line_mask(1, 0, 4096 + 64), 1);
        assert_eq!(line_mask(1, 0x1fc0, 0x1000), 1 << 63);
    }
}
