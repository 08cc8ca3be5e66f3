//! What was changed in a tree and is not known to the CPUs yet, and the one decision about flushing.
//!
//! Every [`PageTables`] owns its [`Pending`] changes. The steps of an operation record what they did to
//! entries, and which tables they unlinked; [`PageTables::flush`] ends the operation. It alone decides which
//! barriers and TLBIs the change takes, then gives the unlinked tables back. So an invalidation can neither
//! name another tree nor be left out where a table is freed:
//!
//! - Only [`Invalidated`], which `flush` returns, makes a [`FreedTable`] or [`FreedFrames`] of what was
//!   unlinked, and it borrows the tree: nothing else changes there meanwhile.
//! - [`TableAllocator::free`](super::TableAllocator::free) and
//!   [`UserFrames::release`](crate::space::UserFrames::release) take nothing but these two. Neither can be
//!   copied, so nothing is released twice.
//!
//! The instructions, and the errata that touch them, are in [`flush`](super::flush); which entries change,
//! and how, is in the file of each operation.

use super::{BitChange, Environment, Liveness, PageTables, flush};
use crate::arch::page_size::{Level, Page};
use crate::arch::tlbi::{Invalidation, Reach};
use crate::arch::{Descriptor, PhysicalAddress};

/// A table page that no CPU can reach any more: what [`TableAllocator::free`](super::TableAllocator::free)
/// takes.
///
/// The operations of [`PageTables`] make it once the TLB was invalidated. A table that may still be walked
/// cannot be freed, because its address alone is not enough:
///
/// ```compile_fail,E0308
/// use granule::arch::PhysicalAddress;
/// use granule::table::TableAllocator;
///
/// fn too_early(allocator: &mut impl TableAllocator, table: PhysicalAddress) {
///     allocator.free(table);
/// }
/// ```
///
/// Nor can any other code make one:
///
/// ```compile_fail,E0423
/// use granule::arch::PhysicalAddress;
/// use granule::table::{FreedTable, TableAllocator};
///
/// fn forged(allocator: &mut impl TableAllocator, table: PhysicalAddress) {
///     allocator.free(FreedTable(table));
/// }
/// ```
///
/// A wrapper hands it on, once:
///
/// ```
/// use granule::table::{FreedTable, TableAllocator};
///
/// fn once(allocator: &mut impl TableAllocator, table: FreedTable) {
///     allocator.free(table);
/// }
/// ```
///
/// ```compile_fail,E0382
/// use granule::table::{FreedTable, TableAllocator};
///
/// fn twice(allocator: &mut impl TableAllocator, table: FreedTable) {
///     allocator.free(table);
///     allocator.free(table);
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a table that is not given to `TableAllocator::free` is lost"]
pub struct FreedTable(PhysicalAddress);

impl FreedTable {
    /// A table that was allocated and that no operation unlinked: the root of a tree that no CPU uses, or a
    /// page that never became part of a tree.
    ///
    /// # Safety
    ///
    /// No CPU can walk the table: no entry leads to it, no TTBR holds it, and no TLB has anything that was
    /// read from it.
    pub const unsafe fn unreachable(table: PhysicalAddress) -> Self {
        Self(table)
    }

    /// Where the page is.
    #[must_use]
    pub const fn address(&self) -> PhysicalAddress {
        self.0
    }
}

/// Frames that follow each other and that no CPU can reach through one address space any more: what
/// [`UserFrames::release`](crate::space::UserFrames::release) takes.
///
/// Only an operation of [`Space`](crate::space::Space) makes it, once the TLB was invalidated for the pages.
/// Addresses alone are not enough:
///
/// ```compile_fail,E0308
/// use granule::arch::PhysicalAddress;
/// use granule::space::UserFrames;
///
/// fn too_early(frames: &mut impl UserFrames, frame: PhysicalAddress) {
///     frames.release(frame);
/// }
/// ```
///
/// ```compile_fail,E0451
/// use granule::arch::PhysicalAddress;
/// use granule::space::UserFrames;
/// use granule::table::FreedFrames;
///
/// fn forged(frames: &mut impl UserFrames, first: PhysicalAddress) {
///     frames.release(FreedFrames { first, count: 1 });
/// }
/// ```
///
/// A wrapper hands it on, once:
///
/// ```
/// use granule::space::UserFrames;
/// use granule::table::FreedFrames;
///
/// fn once(frames: &mut impl UserFrames, freed: FreedFrames) {
///     frames.release(freed);
/// }
/// ```
///
/// ```compile_fail,E0382
/// use granule::space::UserFrames;
/// use granule::table::FreedFrames;
///
/// fn twice(frames: &mut impl UserFrames, freed: FreedFrames) {
///     frames.release(freed);
///     frames.release(freed);
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "frames that are not given to `UserFrames::release` are lost"]
pub struct FreedFrames {
    first: PhysicalAddress,
    count: u64,
}

impl FreedFrames {
    /// The first frame.
    #[must_use]
    pub const fn first(&self) -> PhysicalAddress {
        self.first
    }

    /// How many frames there are.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// No frames.
    pub(super) const fn none() -> Self {
        Self {
            first: PhysicalAddress(0),
            count: 0,
        }
    }

    /// Adds frames of `bytes` bytes that follow these. Where `next` does not, or there are none yet, `next`
    /// takes the place of what is given back.
    pub(super) fn append(&mut self, next: Self, bytes: u64) -> Self {
        if self.count > 0 && self.first.0 + self.count * bytes == next.first.0 {
            self.count += next.count;
            return Self::none();
        }
        core::mem::replace(self, next)
    }
}

/// The level hint for an invalidation: a wrong one may leave what it names cached (RSQXYZ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// No operation has said anything.
    Unknown,
    /// Every leaf was of this level.
    All(Level),
    /// Leaves were of several levels, or one became a table and may be cached at its old level.
    Differs,
}

/// What was changed in one tree since its last flush.
#[derive(Debug)]
pub(super) struct Pending {
    /// Offsets between which entries were valid and are no more what they were; nothing if `first` is not
    /// below `end`.
    first: u64,
    end: u64,
    /// The bytes of the smallest of those entries; for an unlinked table, of what it translated.
    stride: u64,
    hint: Hint,
    /// Some of those entries led to a table.
    tables: bool,
    /// Entries that were invalid are in use now, or walkers go by a new table.
    new: bool,
    /// The first of the tables that were unlinked, see [`chain`](PageTables::chain).
    unlinked: Option<PhysicalAddress>,
}

impl Pending {
    pub(super) const NOTHING: Self = Self {
        first: u64::MAX,
        end: 0,
        stride: u64::MAX,
        hint: Hint::Unknown,
        tables: false,
        new: false,
        unlinked: None,
    };

    /// Entries that were invalid became valid, or lead to a table now.
    pub(super) const fn made_valid(&mut self) {
        self.new = true;
    }

    /// A leaf became a table that translates as the leaf did.
    pub(super) const fn split(&mut self) {
        self.new = true;
        self.hint = Hint::Differs;
    }

    /// `change` was made to some entries of `stride` bytes each; [`within`](Self::within) says where.
    pub(super) const fn changed(&mut self, change: BitChange, stride: u64) {
        if change.of & Descriptor::VALID == 0 {
            // Of entries that are invalid nothing is cached (IWZCBG).
            self.new = true;
        } else {
            self.smallest(stride);
        }
    }

    /// Valid entries, `stride` bytes each, were changed between two offsets.
    pub(super) const fn entries(&mut self, from: u64, to: u64, stride: u64) {
        self.range(from, to);
        self.smallest(stride);
    }

    /// As [`entries`](Self::entries), of leaves at `level`.
    pub(super) fn leaves(&mut self, from: u64, to: u64, level: Level, stride: u64) {
        self.hint = match self.hint {
            Hint::Unknown => Hint::All(level),
            Hint::All(same) if same == level => Hint::All(level),
            _ => Hint::Differs,
        };
        self.entries(from, to, stride);
    }

    /// As [`entries`](Self::entries), of pages.
    pub(super) fn pages<P: Page>(&mut self, from: u64, to: u64) {
        self.leaves(from, to, Level::L3, P::SIZE.bytes());
    }

    /// Some pages were changed; [`within`](Self::within) says where.
    pub(super) const fn some_pages<P: Page>(&mut self) {
        self.hint = Hint::All(Level::L3);
        self.smallest(P::SIZE.bytes());
    }

    /// What was recorded as a [`range`](Self::range) are pages.
    pub(super) fn are_pages<P: Page>(&mut self) {
        if self.is_stale() {
            self.pages::<P>(self.first, self.end);
        }
    }

    /// An entry that led to a table does so no more. The table translated at most `span` bytes for each
    /// cached pointer to it, and each takes an operation inside of those.
    pub(super) const fn unlinked(&mut self, span: u64) {
        self.tables = true;
        self.smallest(span);
    }

    /// Whether an entry that led to a table does so no more.
    pub(super) const fn has_unlinked(&self) -> bool {
        self.tables
    }

    /// What was recorded without its offsets is between these two.
    pub(super) const fn within(&mut self, from: u64, to: u64) {
        if self.stride != u64::MAX {
            self.range(from, to);
        }
    }

    /// All of this was flushed.
    const fn flushed(self) {
        core::mem::forget(self);
    }

    /// Whether a TLB may have what is no more in the tables.
    pub(super) const fn is_stale(&self) -> bool {
        self.first < self.end
    }

    /// Valid entries were changed between two offsets, of a size that is recorded apart.
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

/// A build with debug assertions refuses to forget a change: an operation that ends without a flush, in a
/// tree that ends before the next one, would leave CPUs with what is no more in the tables.
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

/// Whether a panic is on its way, of a kind that drops values.
#[cfg(all(debug_assertions, any(unix, windows)))]
fn unwinding() -> bool {
    extern crate std;
    std::thread::panicking()
}

/// Elsewhere a panic ends the program.
#[cfg(all(debug_assertions, not(any(unix, windows))))]
const fn unwinding() -> bool {
    false
}

/// The TLB was invalidated for all that was changed in a tree: what was unlinked there may be released.
pub(super) struct Invalidated<'t, P: Page, E>(&'t mut PageTables<P, E>);

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Ends an operation: makes all CPUs see what was changed since the last flush, and gives back the
    /// tables that were unlinked. The decision for each kind of change stands here and nowhere else:
    ///
    /// | change | takes | why |
    /// | --- | --- | --- |
    /// | of tables that no CPU walks | nothing | no CPU has anything of them |
    /// | of nothing, or of invalid entries that stay invalid | nothing | an invalid entry is not cached (IWZCBG) |
    /// | entries became valid, or lead to a new table | DSB ISHST, ISB | walkers must see the stores, and this CPU drop what it speculated; no TLBI (IWZCBG) |
    /// | leaves were changed, cleared or resized | DSB ISHST, TLBIs of leaves, DSB ISH, ISB | other CPUs use the old ones until then; the stride is the smallest entry, never the group (RLQLSD) |
    /// | tables were unlinked | the same, of all levels | pointers to them may be cached by themselves |
    ///
    /// The TLBIs name a level only where every leaf was of that level and none was split (RSQXYZ).
    #[inline(always)]
    pub(super) fn flush(&mut self) -> Invalidated<'_, P, E> {
        if self.pending.is_stale() {
            self.invalidate_pending();
        } else if self.pending.new {
            self.pending.new = false;
            self.pending.hint = Hint::Unknown;
            if self.liveness == Liveness::Live {
                flush::publish(&mut self.environment);
            }
        }
        Invalidated(self)
    }

    /// As [`flush`](Self::flush), of an operation that only made entries valid.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        debug_assert!(!self.pending.is_stale());
        if self.pending.new {
            self.pending.new = false;
            if self.liveness == Liveness::Live {
                flush::publish(&mut self.environment);
            }
        }
    }

    /// As [`flush`](Self::flush), of an operation that changed the pages between two offsets and perhaps
    /// made others valid. Nothing but the offsets has to be worked out then.
    #[inline(always)]
    pub(super) fn flush_pages(&mut self, from: u64, to: u64) -> Invalidated<'_, P, E> {
        debug_assert!(!self.pending.is_stale());
        self.pending.new = false;
        let mut pages = Pending::NOTHING;
        pages.pages::<P>(from, to);
        self.invalidate(pages);
        Invalidated(self)
    }

    /// The part of [`flush`](Self::flush) with TLBIs. Once for each page size.
    #[inline(never)]
    fn invalidate_pending(&mut self) {
        let pending = core::mem::replace(&mut self.pending, Pending::NOTHING);
        self.invalidate(pending);
    }

    /// Invalidates what is stale, then frees what was unlinked.
    #[inline(always)]
    fn invalidate(&mut self, pending: Pending) {
        if self.liveness == Liveness::Live {
            let what = Invalidation {
                start: self.address(pending.first),
                bytes: pending.end - pending.first,
                stride: pending.stride,
                reach: if pending.tables {
                    Reach::AllLevels
                } else {
                    Reach::LastLevel
                },
                asid: self.asid,
                level: match pending.hint {
                    Hint::All(level) => Some(level),
                    Hint::Unknown | Hint::Differs => None,
                },
            };
            if self.defers_tlbi && !pending.tables {
                flush::publish(&mut self.environment);
            } else {
                flush::invalidate(&mut self.environment, &what);
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

    /// Leaves the TLBIs for changes of leaves to the caller, who [invalidates](flush::invalidate) the range
    /// before anything relies on the change. Operations still end with DSB ISHST and ISB. Where a table was
    /// unlinked they invalidate all the same, because the table is freed.
    pub const fn defer_tlbi(&mut self) {
        self.defers_tlbi = true;
    }

    /// Records that a table which translated `span` bytes was unlinked, and puts it into the chain of those
    /// that wait for the flush. The chain goes through their own first entries, so it takes no memory: a page
    /// address has bit 0 clear, so a walker that still reads the table finds an invalid entry there.
    pub(super) fn chain(&mut self, table: PhysicalAddress, span: u64) {
        self.pending.unlinked(span);
        let next = self.pending.unlinked.map_or(0, |next| next.0 | LINK);
        let how = self.visibility();
        self.store(table, 0, Descriptor(next), how);
        self.pending.unlinked = Some(table);
    }

    /// Frees the root of a tree that no CPU uses. Nothing may be done with the tree then but to turn to
    /// another one.
    ///
    /// # Safety
    ///
    /// As for [`FreedTable::unreachable`]; no table may be left below the root.
    pub unsafe fn free_root(&mut self) {
        // SAFETY: the caller's promise.
        let root = unsafe { FreedTable::unreachable(self.root) };
        self.environment.free(root);
    }
}

/// Marks a link to another unlinked table, whose address may be zero; bit 0 stays clear.
const LINK: u64 = 0b10;

impl<P: Page, E: Environment> Invalidated<'_, P, E> {
    /// The tree, to go on with it once everything is known to be invalidated.
    pub(super) const fn tables(&mut self) -> &mut PageTables<P, E> {
        self.0
    }

    /// The same, for a part of what is to be released.
    pub(super) const fn again(&mut self) -> Invalidated<'_, P, E> {
        Invalidated(self.0)
    }

    /// The tree, to be looked at.
    pub(super) const fn look(&self) -> &PageTables<P, E> {
        self.0
    }

    /// Frees a table that the invalidated change unlinked and that was not put into the chain.
    pub(super) fn free(&mut self, table: PhysicalAddress) {
        self.0.environment.free(FreedTable(table));
    }

    /// Frames of pages that the invalidated change removed.
    pub(super) const fn frames(&self, first: PhysicalAddress, count: u64) -> FreedFrames {
        debug_assert!(!self.0.defers_tlbi);
        FreedFrames { first, count }
    }

    /// Frees tables that were kept as they were.
    pub(super) fn free_kept(&mut self, kept: &mut Kept) {
        for table in kept.tables.iter().take(kept.count) {
            self.free(*table);
        }
        kept.count = 0;
    }
}

/// Tables that were unlinked and wait for the flush, kept as they were: nothing may be written into them, for
/// what they map stays mapped and a walker may go on by them.
pub(super) struct Kept {
    tables: [PhysicalAddress; MOST_KEPT],
    count: usize,
}

/// Tables that wait for one invalidation together.
const MOST_KEPT: usize = 32;

impl Kept {
    pub(super) const NONE: Self = Self {
        tables: [PhysicalAddress(0); MOST_KEPT],
        count: 0,
    };

    /// Takes one more; gives whether there is room for no other.
    pub(super) fn keep(&mut self, table: PhysicalAddress) -> bool {
        if let Some(slot) = self.tables.get_mut(self.count) {
            *slot = table;
            self.count += 1;
        }
        self.count == MOST_KEPT
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
