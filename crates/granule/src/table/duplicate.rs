//! Sharing all pages of one tree with another tree, read-only in both: the tables' part of a fork.
//!
//! The other tree's tables are reserved before anything changes, and filled front to back while
//! they are private. In the first tree permissions change in place (RWHZWS), with one invalidation
//! at the end. A run of pages whose entries differ by a constant step takes one update, one fill
//! and one call of the callback, so the code decides nothing page by page.

use super::{BitChange, PageTables, TableEnvironment, TableError, Visibility};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress};

/// How shared entries differ from the original ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    /// The change of each entry, in both trees.
    pub(crate) change: BitChange,
    /// Additional bits of the new entries.
    pub(crate) more: u64,
}

/// The sharing of a pass, and its changes so far.
struct Pass {
    sharing: Sharing,
    /// Pages of the first tree changed; blocks are recorded one by one.
    pages: bool,
}

impl<P: PageChoice, E: TableEnvironment> PageTables<P, E> {
    /// Maps all pages of this tree in `other` too, with the entries of both trees changed by
    /// `sharing`. `other` must be empty, and no CPU may walk it. Calls `share` for each run of
    /// frames before anything else can happen to them.
    ///
    /// # Errors
    ///
    /// [`TableError::OutOfTables`]; nothing has changed then.
    pub(crate) fn duplicate(
        &mut self,
        other: &mut Self,
        sharing: Sharing,
        mut share: impl FnMut(PhysicalAddress, u64),
    ) -> Result<(), TableError> {
        let level = self.geometry.start_level();
        let needed = self.tables_below(self.root, level);
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !other.reserve(needed) {
            return Err(exhausted);
        }
        let (from, to) = (self.root, other.root);
        let mut pass = Pass {
            sharing,
            pages: false,
        };
        let filled = self.duplicate_in(other, from, to, level, 0, &mut pass, &mut share);
        if pass.pages {
            self.pending.some_leaves(Level::L3, self.size());
        }
        self.flush();
        filled.ok_or(exhausted)
    }

    fn tables_below(&self, table: PhysicalAddress, level: Level) -> usize {
        if level.is_last() {
            return 0;
        }
        let mut tables = 0;
        let mut index = 0;
        while let Some(found) = self.next_mapped(table, index, self.size().entries()) {
            index = found;
            let entry = self.load(table, index);
            if entry.is_table(level) {
                let below = self.geometry.address_of(entry, level);
                tables += 1 + self.tables_below(below, level.next());
            }
            index += 1;
        }
        tables
    }

    /// Fills `to`, a private table, with the pages of `from`. `None` means that the environment broke
    /// its promise.
    #[allow(clippy::too_many_arguments)]
    fn duplicate_in(
        &mut self,
        other: &mut Self,
        from: PhysicalAddress,
        to: PhysicalAddress,
        level: Level,
        offset: u64,
        pass: &mut Pass,
        share: &mut impl FnMut(PhysicalAddress, u64),
    ) -> Option<()> {
        let entries = self.size().entries();
        let bytes = self.size().entry_bytes(level);
        let mut index = 0;
        // After an error the other entries are still made empty, so that the tables can be walked
        // and freed.
        let mut result = Some(());
        while index < entries {
            let found = self.next_mapped(from, index, entries);
            let mapped = found.filter(|_| result.is_some()).unwrap_or(entries);
            if mapped > index {
                other.leave_empty(to, index, mapped - index);
                index = mapped;
                continue;
            }
            if level.is_last() {
                index += self.duplicate_run(other, from, to, index, offset, pass, share);
                continue;
            }
            let mut link = Descriptor::INVALID;
            let entry = self.load(from, index);
            let at = offset + index as u64 * bytes;
            if entry.is_table(level) {
                result = other.take().and_then(|table| {
                    let below = self.geometry.address_of(entry, level);
                    link = Descriptor::table(&self.geometry, table);
                    let next = level.next();
                    self.duplicate_in(other, below, table, next, at, pass, share)
                });
            } else {
                let shared = pass.sharing.change.apply(entry);
                link = Descriptor(shared.0 | pass.sharing.more);
                if shared.0 != entry.0 {
                    self.update(from, index, 1, pass.sharing.change);
                    self.pending.leaves(at, at + bytes, level, bytes);
                }
                share(self.block_output(entry), bytes >> self.size().shift());
            }
            other.store(to, index, link, Visibility::Private);
            index += 1;
        }
        result
    }

    /// Duplicates the run of pages that begins at `index`, and returns its length.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn duplicate_run(
        &mut self,
        other: &mut Self,
        from: PhysicalAddress,
        to: PhysicalAddress,
        index: usize,
        offset: u64,
        pass: &mut Pass,
        share: &mut impl FnMut(PhysicalAddress, u64),
    ) -> usize {
        let sharing = pass.sharing;
        let page = self.size().bytes();
        let first = self.load(from, index);
        let output = self.geometry.address_of(first, Level::L3);
        let most = self.most_in_run(output, self.size().entries() - index);
        let count = self.run_length(from, index, Level::L3, first, most);
        let shared = sharing.change.apply(first);
        let copy = Descriptor(shared.0 | sharing.more);
        if shared.0 != first.0 {
            let at = offset + index as u64 * page;
            self.pending.range(at, at + count as u64 * page);
            pass.pages = true;
        }
        if count == 1 && !first.may_be_updated() {
            // Scattered frames make runs of one, for which setting up a loop costs more than it
            // saves.
            if shared.0 != first.0 {
                let how = self.visibility();
                self.store(from, index, shared, how);
            }
            other.store(to, index, copy, Visibility::Private);
        } else {
            if shared.0 != first.0 {
                self.update(from, index, count, sharing.change);
            }
            other.fill(to, index, count, copy, page, Visibility::Private);
        }
        share(output, count as u64);
        count
    }
}
