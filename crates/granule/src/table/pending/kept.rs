//! Unlinked tables that wait for one invalidation, in a list beside them: what waits in the chain of
//! [`unlink`](super::super::PageTables::unlink) loses an entry.

use crate::arch::PhysicalAddress;

/// Unlinked tables that wait for the flush with their entries unchanged. No store may change them,
/// because their addresses stay mapped and a walker may still use them.
pub(in super::super) struct Kept {
    pub(super) tables: [PhysicalAddress; MOST_KEPT],
    pub(super) count: usize,
}

/// The most tables that wait for one invalidation.
pub(in super::super) const MOST_KEPT: usize = 32;

impl Kept {
    pub(in super::super) const NONE: Self = Self {
        tables: [PhysicalAddress(0); MOST_KEPT],
        count: 0,
    };

    /// Adds a table, and returns whether the list is full now.
    pub(in super::super) fn keep(&mut self, table: PhysicalAddress) -> bool {
        if let Some(slot) = self.tables.get_mut(self.count) {
            *slot = table;
            self.count += 1;
        }
        self.count == MOST_KEPT
    }
}
