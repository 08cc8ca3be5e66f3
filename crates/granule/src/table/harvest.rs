//! Reading and clearing what hardware noted in leaves: the access flag, and the dirty state.
//!
//! Hardware only ever sets the flag, and only ever marks a page dirty. So a leaf that is seen with
//! the note keeps it until it is cleared here, and one atomic update clears it without losing any
//! other. A leaf that gets the note after it was looked at keeps it for the next time.
//!
//! Only the leaves' notes change here; nothing is split.

use super::change_attributes::dirty_bits;
use super::stage::Stage;
use super::{BitChange, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Geometry, Kind, PhysicalAddress, VirtualAddress};

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
struct FlushedAtEnd<'t, P: Page, E: TableEnvironment, S: Stage>(&'t mut PageTables<P, E, S>);

impl<P: Page, E: TableEnvironment, S: Stage> Drop for FlushedAtEnd<'_, P, E, S> {
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
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
        let level = self.geometry.start_level();
        let flushed = FlushedAtEnd(self);
        for (root, from, to) in flushed.0.roots(from, to) {
            flushed.0.harvest_in(root, level, from, to, &mut harvesting);
        }
        harvesting.report();
        Ok(())
    }

    fn harvest_in(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        harvesting: &mut Harvesting<'_, S>,
    ) {
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            let first = at & !(bytes - 1);
            let entry = self.load(table, Self::index(at, level));
            match entry.kind(&self.geometry, level) {
                Kind::Invalid => at = first + bytes,
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    let next = to.min(first + bytes);
                    self.harvest_in(below, level.next(), at, next, harvesting);
                    at = next;
                }
                Kind::Leaf | Kind::PresentInvalid if entry.is_contiguous() => {
                    let group = bytes * P::SIZE.contiguous_entries(level) as u64;
                    let first = at & !(group - 1);
                    if self.harvest_leaves(table, level, first, first + group, harvesting) {
                        harvesting.add(first, first + group);
                    }
                    at = first + group;
                }
                Kind::Leaf | Kind::PresentInvalid => {
                    // A run of noted leaves is one update.
                    let mut next = first;
                    while next < to && self.is_harvested(table, level, next, harvesting.what) {
                        next += bytes;
                    }
                    if next > first {
                        self.clear_notes(table, level, first, next, harvesting.what);
                        harvesting.add(first, next);
                    }
                    at = next.max(first + bytes);
                }
            }
        }
    }

    /// Whether the entry at an offset is a leaf outside groups that has the note. An offset that
    /// begins another table is not.
    fn is_harvested(&self, table: PhysicalAddress, level: Level, at: u64, what: Harvest) -> bool {
        let entry = self.load(table, Self::index(at, level));
        let kind = entry.kind(&self.geometry, level);
        matches!(kind, Kind::Leaf | Kind::PresentInvalid)
            && !entry.is_contiguous()
            && what.is_noted(&self.geometry, entry)
    }

    /// Clears the notes of the members of a group. Returns whether any had it.
    fn harvest_leaves(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        harvesting: &Harvesting<'_, S>,
    ) -> bool {
        let bytes = P::SIZE.entry_bytes(level);
        let mut any = false;
        for at in (from..to).step_by(bytes as usize) {
            let member = self.load(table, Self::index(at, level));
            if harvesting.what.is_noted(&self.geometry, member) {
                self.clear_notes(table, level, at, at + bytes, harvesting.what);
                any = true;
            }
        }
        any
    }

    /// Clears the notes of leaves that have it, and records the change.
    fn clear_notes(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        what: Harvest,
    ) {
        let count = ((to - from) >> P::SIZE.level_shift(level)) as usize;
        self.update(
            table,
            Self::index(from, level),
            count,
            what.clearing(&self.geometry),
        );
        if what != (Harvest::Accessed { invalidate: false }) {
            let bytes = P::SIZE.entry_bytes(level);
            self.pending.leaves(from, to, level, bytes);
        }
    }
}
