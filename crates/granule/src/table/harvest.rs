//! Reading and clearing what hardware noted in leaves: the access flag, and the dirty state.
//!
//! Hardware only ever sets the flag, and only ever marks a page dirty. So a leaf that is seen with
//! the note keeps it until it is cleared here, and one atomic update clears it without losing any
//! other. A leaf that gets the note after it was looked at keeps it for the next time.
//!
//! Only the leaves' notes change here; nothing is split.

use super::hardware_updates::dirty_bits;
use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{BitChange, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, Geometry, VirtualAddress};

/// The note to harvest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Harvest {
    /// The access flag, of all leaves.
    Accessed {
        /// Whether TLBs are invalidated, so that hardware notes the next access.
        ///
        /// Without the invalidation a page that stays in a TLB is noted again only after the TLB
        /// dropped it. For an estimate of what is in use that is enough, and it saves the TLBIs.
        invalidate: bool,
    },
    /// The dirty state, of leaves with
    /// [`dirty_modifier`](crate::arch::Permissions::dirty_modifier). They become clean. TLBs are
    /// always invalidated, because a write through a cached dirty entry would not be noted.
    Dirty,
}

impl Harvest {
    const fn is_noted(self, geometry: &Geometry, leaf: Descriptor) -> bool {
        match self {
            Self::Accessed { .. } => leaf.0 & Descriptor::ACCESS_FLAG != 0,
            Self::Dirty => geometry.is_dirty(leaf),
        }
    }

    /// The change that clears the note of a leaf that has it.
    const fn clearing(self, geometry: &Geometry) -> BitChange {
        let of = BitChange::LEAVES;
        match self {
            Self::Accessed { .. } => BitChange {
                of,
                clear: Descriptor::ACCESS_FLAG,
                set: 0,
            },
            Self::Dirty => BitChange {
                of,
                ..dirty_bits(geometry, false)
            },
        }
    }
}

/// The harvest of one call.
struct Harvesting<'f, S: Stage> {
    what: Harvest,
    /// The offsets of the last run of noted leaves, which is not reported yet.
    run: (u64, u64),
    /// The address of offset 0.
    base: VirtualAddress,
    found: &'f mut dyn FnMut(S::Input, u64),
}

impl<S: Stage> Harvesting<'_, S> {
    fn add(&mut self, from: u64, to: u64) {
        if self.run.1 != from {
            self.report();
            self.run.0 = from;
        }
        self.run.1 = to;
    }

    fn report(&mut self) {
        let (from, to) = self.run;
        if from < to {
            let start = VirtualAddress(self.base.0.wrapping_add(from));
            (self.found)(S::input(start), to - from);
        }
    }
}

/// Flushes the tree when it is dropped, so also when `found` panics.
struct FlushedAtEnd<'t, P: PageChoice, E: TableEnvironment, S: Stage>(&'t mut PageTables<P, E, S>);

impl<P: PageChoice, E: TableEnvironment, S: Stage> Drop for FlushedAtEnd<'_, P, E, S> {
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Calls `found` for each run of addresses among `bytes` bytes from `start` whose leaves have
    /// the note, with its start and bytes, and clears the note. One invalidation follows at the
    /// end.
    ///
    /// A leaf or contiguous group that an end of the range cuts counts as a whole: its run extends
    /// beyond the range. A group has the note if any of its members has it (RXDPXQ).
    ///
    /// `found` is called before the invalidation, so CPUs may still write to a page that it
    /// gets. It must only remember the pages. Their content may be read after this method has
    /// returned. If it panics, the invalidation still follows, and the notes that were cleared and
    /// not yet reported are lost.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace).
    pub fn harvest(
        &mut self,
        start: S::Input,
        bytes: u64,
        what: Harvest,
        mut found: impl FnMut(S::Input, u64),
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        let mut harvesting = Harvesting::<S> {
            what,
            run: (0, 0),
            base: self.geometry.base(),
            found: &mut found,
        };
        let flushed = FlushedAtEnd(self);
        flushed.0.harvest_leaves(from, to, &mut harvesting);
        harvesting.report();
        Ok(())
    }

    fn harvest_leaves(&mut self, from: u64, to: u64, harvesting: &mut Harvesting<'_, S>) {
        let what = harvesting.what;
        let mut at = from;
        while at < to {
            let Place { slot, level, entry } = self.place(at);
            let end = self.end_of(at, level);
            if !self.is_leaf(level, entry) {
                at = end;
                continue;
            }
            let bytes = self.size().entry_bytes(level);
            let first = at & !(bytes - 1);
            if entry.is_contiguous() {
                let (index, count) = self.group_at(slot.index, level, entry);
                let start =
                    first - (((slot.index - index) as u64) << self.size().level_shift(level));
                at = self.behind(start, level, count);
                if self.harvest_group(Slot { index, ..slot }, level, start, what) {
                    harvesting.add(start, at);
                }
                continue;
            }
            // A run of noted leaves is one update.
            let most = ((to - first).div_ceil(bytes)) as usize;
            let most = most.min(self.size().entries() - slot.index);
            let noted = |number: &usize| self.is_harvested(slot, *number, level, what);
            let count = (0..most).take_while(noted).count();
            at = self.behind(first, level, count.max(1));
            if count > 0 {
                self.clear_notes(slot, level, (first, at), what);
                harvesting.add(first, at);
            }
        }
    }

    /// Whether the entry a number of entries behind `slot` is a leaf outside groups that has the
    /// note.
    fn is_harvested(&self, slot: Slot, number: usize, level: Level, what: Harvest) -> bool {
        let entry = self.load(slot.table, slot.index + number);
        self.is_leaf(level, entry) && !entry.is_contiguous() && what.is_noted(&self.geometry, entry)
    }

    /// Clears the notes of the members of the group at `first`. Returns whether any had it.
    fn harvest_group(&mut self, first: Slot, level: Level, start: u64, what: Harvest) -> bool {
        let mut any = false;
        let mut at = start;
        for index in first.index..first.index + self.size().contiguous_entries(level) {
            let end = self.end_of(at, level);
            let member = Slot { index, ..first };
            if what.is_noted(&self.geometry, self.load(first.table, index)) {
                self.clear_notes(member, level, (at, end), what);
                any = true;
            }
            at = end;
        }
        any
    }

    /// Clears the notes of the leaves between two offsets, all of which have it, and records the
    /// change.
    fn clear_notes(&mut self, slot: Slot, level: Level, (from, to): (u64, u64), what: Harvest) {
        let count = ((to - from) >> self.size().level_shift(level)) as usize;
        let change = what.clearing(&self.geometry);
        self.update(slot.table, slot.index, count, change);
        if what != (Harvest::Accessed { invalidate: false }) {
            let bytes = self.size().entry_bytes(level);
            self.pending.leaves(from, to, level, bytes);
        }
    }
}
