//! The pending changes of a tree, and the decision which barriers and TLBIs they need.
//!
//! Every [`PageTables`] owns its [`Pending`] changes. The steps of an operation record the entries
//! they changed and the tables they unlinked. [`PageTables::flush`] ends the operation: it alone
//! decides which barriers and TLBIs the changes need, then frees the unlinked tables. An
//! invalidation therefore always belongs to the same tree, and always comes before a table is
//! freed:
//!
//! - `flush` returns [`Invalidated`], and only that value makes a [`FreedTable`] or
//!   [`FreedFrames`]. It borrows the tree, so nothing else changes the tree meanwhile.
//! - [`TableEnvironment::free`](super::TableEnvironment::free) and
//!   [`UserFrames::release`](crate::space::UserFrames::release) take only these two types. Neither
//!   can be copied, so nothing is released twice.
//!
//! [`flush`](super::flush) has the instructions and their errata. The file of each operation has
//! the changes of entries.

#![allow(unsafe_code, reason = "tables and TLBIs that the caller answers for")]

mod freed;
mod kept;

pub use freed::{FreedFrames, FreedTable};
pub(super) use kept::Kept;
#[cfg(feature = "space")]
pub(super) use kept::MOST_KEPT;

use super::stage::{Stage, Stage1};
use super::{BitChange, Liveness, PageTables, TableEnvironment, Visibility, flush};
use crate::arch::page_size::{Level, PageChoice, PageSize};
use crate::arch::tlbi::{self, Invalidation, TlbCapabilities, TlbiOp, TlbiScope};
use crate::arch::{Descriptor, Geometry, PhysicalAddress};

/// The changes of one tree since its last flush.
#[derive(Debug)]
pub(super) struct Pending {
    /// The range of offsets whose valid entries changed; empty unless `first` is below `end`.
    first: u64,
    end: u64,
    /// The bytes of the smallest of those entries; an unlinked table counts with the bytes it
    /// translated.
    stride: u64,
    /// The levels of the changed leaves, a bit each, and [`MIXED`].
    levels: u8,
    /// Some of those entries pointed to a table.
    tables: bool,
    /// Invalid entries became valid, or a new table was linked.
    new: bool,
    /// The first of the unlinked tables, see [`unlink`](PageTables::unlink).
    unlinked: Option<PhysicalAddress>,
}

/// Leaves of unknown levels changed, or a leaf became a table and may be cached at its old level. With a
/// wrong level hint the CPU may keep the entries (RSQXYZ).
const MIXED: u8 = 1 << 7;

impl Pending {
    pub(super) const NOTHING: Self = Self {
        first: u64::MAX,
        end: 0,
        stride: u64::MAX,
        levels: 0,
        tables: false,
        new: false,
        unlinked: None,
    };

    /// Records that invalid entries became valid, or point to a table now.
    pub(super) const fn made_valid(&mut self) {
        self.new = true;
    }

    /// Records that a leaf became a table that translates as the leaf did.
    pub(super) const fn split(&mut self) {
        self.new = true;
        self.levels |= MIXED;
    }

    /// Records `change` of some entries of `stride` bytes each; [`within`](Self::within) records
    /// their offsets.
    pub(super) const fn changed(&mut self, change: BitChange, stride: u64) {
        let accessed = change.clear == 0 && change.set == Descriptor::ACCESS_FLAG;
        if change.of & Descriptor::VALID == 0 || accessed {
            // Invalid entries are not cached (IWZCBG), and neither are entries without the access
            // flag.
            self.new = true;
        } else {
            self.smallest(stride);
        }
    }

    /// Records a change of valid entries of `stride` bytes each between two offsets.
    pub(super) const fn entries(&mut self, from: u64, to: u64, stride: u64) {
        self.range(from, to);
        self.smallest(stride);
    }

    /// As [`entries`](Self::entries), for leaves of `level`.
    #[inline(never)]
    pub(super) const fn leaves(&mut self, from: u64, to: u64, level: Level, stride: u64) {
        self.level(level);
        self.entries(from, to, stride);
    }

    /// Records the level of leaves that changed.
    const fn level(&mut self, level: Level) {
        self.levels |= 1 << level as u8;
    }

    /// The level of all changed leaves, if they have one.
    const fn one_level(&self) -> Option<Level> {
        let levels = self.levels as u32;
        if levels.is_power_of_two() && self.levels != MIXED {
            Some(Level::from_place(levels.trailing_zeros()))
        } else {
            None
        }
    }

    /// As [`entries`](Self::entries), for pages.
    #[cfg(feature = "space")]
    pub(super) fn pages(&mut self, from: u64, to: u64, size: PageSize) {
        self.leaves(from, to, Level::L3, size.bytes());
    }

    /// Records a change of some leaves of `level`; [`within`](Self::within) records their offsets.
    pub(super) fn some_leaves(&mut self, level: Level, size: PageSize) {
        self.level(level);
        self.smallest(size.entry_bytes(level));
    }

    /// Records that leaves of any level below a table of `level` may be among the changed ones.
    pub(super) fn below(&mut self, level: Level) {
        if level.is_last() {
            self.level(level);
        } else {
            self.levels |= MIXED;
        }
    }

    /// Records that a table was unlinked. Each cached pointer to the table translates at most
    /// `span` bytes, and the invalidation needs one operation inside each such span.
    pub(super) const fn unlinked(&mut self, span: u64) {
        self.tables = true;
        self.smallest(span);
    }

    /// Whether a table was unlinked.
    pub(super) const fn has_unlinked(&self) -> bool {
        self.tables
    }

    /// Records the offsets of changes that were recorded without them.
    pub(super) const fn within(&mut self, from: u64, to: u64) {
        if self.stride != u64::MAX {
            self.range(from, to);
        }
    }

    /// Consumes flushed changes, so that `Drop` does not report them.
    pub(super) const fn flushed(self) {
        core::mem::forget(self);
    }

    /// Whether a TLB may hold entries that are no longer in the tables.
    pub(super) const fn is_stale(&self) -> bool {
        self.first < self.end
    }

    /// Records that valid entries changed between two offsets; their size is recorded separately.
    pub(super) const fn range(&mut self, from: u64, to: u64) {
        if from < self.first {
            self.first = from;
        }
        if to > self.end {
            self.end = to;
        }
    }

    const fn smallest(&mut self, stride: u64) {
        if stride < self.stride {
            self.stride = stride;
        }
    }
}

/// A debug build panics when a change is dropped without a flush. Such a change would leave stale
/// entries in the CPUs' TLBs.
#[cfg(debug_assertions)]
impl Drop for Pending {
    fn drop(&mut self) {
        let lost = self.is_stale() || self.new || self.unlinked.is_some();
        assert!(
            !lost || unwinding(),
            "a change of tables was never flushed: {self:?}"
        );
    }
}

/// Whether the thread is unwinding from a panic.
#[cfg(all(debug_assertions, any(unix, windows)))]
pub(super) fn unwinding() -> bool {
    extern crate std;
    std::thread::panicking()
}

/// On other targets a panic does not unwind.
#[cfg(all(debug_assertions, not(any(unix, windows))))]
pub(super) const fn unwinding() -> bool {
    false
}

/// Proof that the TLB was invalidated for all changes of a tree, so its unlinked frames and tables
/// may be released.
pub(super) struct Invalidated<'t, P: PageChoice, E, S: Stage = Stage1>(&'t mut PageTables<P, E, S>);

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Ends an operation: makes all CPUs see the changes since the last flush, and frees the
    /// unlinked tables. Only this function decides what each kind of change needs:
    ///
    /// | change | needs | reason |
    /// | --- | --- | --- |
    /// | of tables that no CPU walks | nothing | no CPU caches their entries |
    /// | none, or of invalid entries that stay invalid | nothing | an invalid entry is not cached (IWZCBG) |
    /// | entries became valid, or point to a new table | DSB ISHST, ISB | walkers must see the stores, and this CPU must drop what it speculated; no TLBI (IWZCBG) |
    /// | leaves were changed, cleared or resized | DSB ISHST, TLBIs of leaves, DSB ISH, ISB | other CPUs use the old leaves until then; the stride is the smallest entry, never the group (RLQLSD) |
    /// | tables were unlinked | the same, with TLBIs of all levels | TLBs may cache pointers to the tables by themselves |
    ///
    /// The TLBIs have a level hint only if all leaves had that level and none was split (RSQXYZ).
    #[inline(always)]
    pub(super) fn flush(&mut self) -> Invalidated<'_, P, E, S> {
        if self.pending.is_stale() {
            self.invalidate_pending();
        } else if self.pending.new {
            self.pending.new = false;
            self.pending.levels = 0;
            if self.liveness == Liveness::Live {
                self.issue_publish();
            }
        }
        Invalidated(self)
    }

    /// As [`flush`](Self::flush), where the next step of the operation relies on the invalidation:
    /// it is not left to the caller.
    pub(super) fn flush_now(&mut self) {
        let deferred = core::mem::replace(&mut self.defers_tlbi, false);
        self.flush();
        self.defers_tlbi = deferred;
    }

    /// As [`flush`](Self::flush), for an operation that only made entries valid.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        debug_assert!(!self.pending.is_stale());
        if self.pending.new {
            self.pending.new = false;
            if self.liveness == Liveness::Live {
                self.issue_publish();
            }
        }
    }

    /// As [`flush`](Self::flush), for an operation that changed valid leaves of one level between two
    /// offsets, unlinked no table, and perhaps made entries valid. Only the offsets vary then, which makes
    /// this cheaper. `op` returns the one operation that usually suffices.
    #[inline(always)]
    pub(super) fn flush_leaves(
        &mut self,
        from: u64,
        to: u64,
        level: Level,
        op: impl FnOnce(&Invalidation, &Geometry, &TlbCapabilities, PageSize) -> Option<TlbiOp>,
    ) -> Invalidated<'_, P, E, S> {
        debug_assert!(!self.pending.is_stale());
        self.pending.new = false;
        if self.liveness == Liveness::Live {
            if self.defers_tlbi {
                self.issue_publish();
            } else {
                let what = Invalidation {
                    start: self.address(from),
                    bytes: to - from,
                    stride: self.size().entry_bytes(level),
                    scope: TlbiScope::LastLevel,
                    asid: self.asid,
                    level: Some(level),
                };
                let can = self.environment.capabilities();
                let op = op(&what, &self.geometry, &can, self.size());
                self.issue_invalidation(&what, op);
            }
        }
        Invalidated(self)
    }

    /// As [`flush_leaves`](Self::flush_leaves), for pages.
    #[cfg(feature = "space")]
    #[inline(always)]
    pub(super) fn flush_pages(&mut self, from: u64, to: u64) -> Invalidated<'_, P, E, S> {
        self.flush_leaves(from, to, Level::L3, tlbi::of_one_entry)
    }

    /// Issues the barriers of new entries.
    #[inline(always)]
    fn issue_publish(&mut self) {
        flush::publish(|instruction| self.environment.invalidate(instruction));
    }

    /// Issues an invalidation, of which `op` is all that is needed in the usual case. Only here, so that the
    /// instructions of any other are compiled once.
    #[inline(always)]
    fn issue_invalidation(&mut self, what: &Invalidation, op: Option<TlbiOp>) {
        let can = self.environment.capabilities();
        let issue = |instruction| self.environment.invalidate(instruction);
        flush::invalidate_by(op, what, &self.geometry, can, issue);
    }

    /// Removes all cached entries of the tree from every CPU.
    pub(super) fn issue_all(&mut self) {
        let (regime, asid, can) = (
            self.geometry.regime(),
            self.asid,
            self.environment.capabilities(),
        );
        let issue = |instruction| self.environment.invalidate(instruction);
        flush::invalidate_all(regime, asid, can, issue);
    }

    /// The part of [`flush`](Self::flush) with TLBIs, compiled once for each page size.
    #[inline(never)]
    fn invalidate_pending(&mut self) {
        let pending = core::mem::replace(&mut self.pending, Pending::NOTHING);
        self.invalidate(pending);
    }

    /// Invalidates the stale range, then frees the unlinked tables.
    #[inline(always)]
    fn invalidate(&mut self, pending: Pending) {
        if self.liveness == Liveness::Live {
            if self.defers(&pending) {
                self.issue_publish();
            } else {
                let what = self.invalidation(&pending);
                let can = self.environment.capabilities();
                let op = tlbi::of_one_entry(&what, &self.geometry, &can, self.size());
                self.issue_invalidation(&what, op);
            }
        }
        let mut next = pending.unlinked;
        while let Some(table) = next {
            let link = self.load(table, 0);
            next = (link.0 & LINK != 0).then_some(PhysicalAddress(link.0 & !LINK));
            self.environment.free(FreedTable(table));
        }
        pending.flushed();
    }

    /// Returns the invalidation that stale changes need.
    #[inline(always)]
    pub(super) const fn invalidation(&self, pending: &Pending) -> Invalidation {
        Invalidation {
            start: self.address(pending.first),
            bytes: pending.end - pending.first,
            stride: pending.stride,
            scope: if pending.tables {
                TlbiScope::AllLevels
            } else {
                TlbiScope::LastLevel
            },
            asid: self.asid,
            level: pending.one_level(),
        }
    }

    /// Whether the TLBIs for these changes are left to the caller.
    pub(super) const fn defers(&self, pending: &Pending) -> bool {
        self.defers_tlbi && !pending.tables
    }

    /// Leaves the TLBIs for changes of leaves to the caller from here on, or not. Operations still end with
    /// DSB ISHST and ISB, and they still invalidate if they unlinked a table, because they free it.
    ///
    /// # Safety
    ///
    /// As long as they are left to it, the caller [invalidates](flush::invalidate) the range of a change before
    /// anything relies on the change.
    pub const unsafe fn set_deferred_tlbi(&mut self, deferred: bool) {
        self.defers_tlbi = deferred;
    }

    /// Records that a table that translated `span` bytes was unlinked, and adds it to the chain of
    /// tables that wait for the flush. The chain is linked through the tables' first entries, so it
    /// needs no memory. A page address has bit 0 clear, so a walker that still reads the table
    /// finds an invalid entry there. A table that no CPU walks is freed at once.
    #[inline(never)]
    pub(super) fn unlink(&mut self, table: PhysicalAddress, span: u64) {
        if self.liveness == Liveness::Private {
            self.environment.free(FreedTable(table));
            return;
        }
        self.pending.unlinked(span);
        let next = self.pending.unlinked.map_or(0, |next| next.0 | LINK);
        self.store(table, 0, Descriptor(next), Visibility::Live);
        self.pending.unlinked = Some(table);
    }

    /// Frees all tables, the root included, and returns the environment.
    pub fn destroy(mut self) -> E {
        // Unmapping the whole range splits no leaf, so it cannot fail.
        let start = S::input(self.geometry.base());
        let unmapped = self.unmap(start, self.geometry.span());
        debug_assert_eq!(unmapped, Ok(()));
        self.free_root()
    }

    /// Frees the root, below which no table is left and which no CPU walks, and the pages that are held.
    pub(crate) fn free_root(mut self) -> E {
        self.release(0);
        for table in 0..self.root_tables() {
            let table = self.root.0 + table as u64 * self.size().bytes();
            self.environment.free(FreedTable(PhysicalAddress(table)));
        }
        self.environment
    }
}

/// Marks a link to the next table of the chain, whose address may be zero. Bit 0 stays clear.
const LINK: u64 = 0b10;

impl<P: PageChoice, E: TableEnvironment, S: Stage> Invalidated<'_, P, E, S> {
    /// The tree, to change it after the invalidation.
    pub(super) const fn tables(&mut self) -> &mut PageTables<P, E, S> {
        self.0
    }

    /// The same proof, for a part of what is released.
    pub(super) const fn again(&mut self) -> Invalidated<'_, P, E, S> {
        Invalidated(self.0)
    }

    /// The tree, to read it.
    pub(super) const fn look(&self) -> &PageTables<P, E, S> {
        self.0
    }

    /// Frees a table that the invalidated change unlinked and that is not in the chain.
    pub(super) fn free(&mut self, table: PhysicalAddress) {
        self.0.environment.free(FreedTable(table));
    }

    /// The frames of pages that the invalidated change removed.
    pub(super) const fn frames(&self, first: PhysicalAddress, count: u64) -> FreedFrames {
        debug_assert!(!self.0.defers_tlbi);
        FreedFrames { first, count }
    }

    /// Frees the kept tables.
    pub(super) fn free_kept(&mut self, kept: &mut Kept) {
        for table in kept.tables.iter().take(kept.count) {
            self.free(*table);
        }
        kept.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "a change of tables was never flushed")]
    fn a_change_that_is_never_flushed_is_found() {
        let mut pending = Pending::NOTHING;
        pending.entries(0, 0x4000, 0x4000);
        drop(pending);
    }

    #[test]
    fn frames_that_follow_each_other_are_one_run() {
        let frames = |first, count| FreedFrames {
            first: PhysicalAddress(first),
            count,
        };
        let mut run = FreedFrames::none();
        assert_eq!(run.append(frames(0x8000, 2), 0x4000), FreedFrames::none());
        assert_eq!(run.append(frames(0x1_0000, 1), 0x4000), FreedFrames::none());
        assert_eq!(run.append(frames(0x4000, 1), 0x4000), frames(0x8000, 3));
        assert_eq!(run, frames(0x4000, 1));
    }
}
