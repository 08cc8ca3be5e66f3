//! Splitting all large leaves of a range, for example to turn a map of blocks into a map of pages.
//!
//! `split` handles the two edges of a change; this file splits every leaf in the range. No change
//! follows whose invalidation would reach the old leaves, so the operation issues its own
//! invalidation. After it no TLB holds a leaf that is too large. The rest works as in `split`: all
//! tables are reserved first, each is written while it is private, and one store that changes only
//! the size (RPVTFW) links the whole subtree of a leaf.
//!
//! The CPUs' level of FEAT_BBM must allow the split. At level 2 a TLB may hold both sizes until the
//! invalidation completes, and an access may take a TLB conflict abort.

use super::piece::Leaves;
use super::plan::{Cursor, Part, Plan};
use super::stage::Stage;
use super::{Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::{BbmLevel, Change, classify};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress};

/// One entry of a table, and its position.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) table: PhysicalAddress,
    pub(super) level: Level,
    /// The first offset that the entry translates.
    pub(super) start: u64,
    pub(super) entry: Descriptor,
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Splits every leaf in `bytes` bytes from `start` that is larger than `leaves` allows, into
    /// the largest allowed leaves. A leaf or contiguous group that extends across an end of the
    /// range is split as a whole. Unmapped addresses are skipped, and present-invalid leaves stay
    /// present-invalid. On live tables the TLB is invalidated for the split leaves before this
    /// method returns. Returns the number of added tables.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`InsideLeaf`](TableError::InsideLeaf) for the first leaf whose size must not change in
    /// place on live tables ([`set_bbm`](Self::set_bbm)),
    /// [`OutOfTables`](TableError::OutOfTables). The tables are then unchanged.
    pub fn limit_leaves(
        &mut self,
        start: S::Input,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<usize, TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        let level = self.geometry.start_level();
        let mut needed = 0;
        for (root, from, to) in self.roots(from, to) {
            needed += self.tables_to_limit(root, level, from, to, leaves)?;
        }
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        let limited = self
            .roots(from, to)
            .try_for_each(|(root, from, to)| self.limit_in(root, level, from, to, leaves));
        self.flush();
        limited.ok_or(exhausted)?;
        Ok(needed)
    }

    /// Whether a leaf is too large, so that it must become a table or lose its hint.
    pub(super) fn too_large(entry: Descriptor, level: Level, leaves: Leaves) -> bool {
        level < leaves.top || (entry.is_contiguous() && !leaves.contiguous)
    }

    /// Counts the tables that splitting needs below `table`, or returns the first leaf that must
    /// not be split as an error.
    pub(super) fn tables_to_limit(
        &self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        leaves: Leaves,
    ) -> Result<usize, TableError> {
        let bytes = P::SIZE.entry_bytes(level);
        let mut needed = 0;
        let mut at = from;
        while at < to {
            let start = at & !(bytes - 1);
            let next = to.min(start + bytes);
            let entry = self.load(table, Self::index(at, level));
            match entry.kind(&self.geometry, level) {
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    needed += self.tables_to_limit(below, level.next(), at, next, leaves)?;
                }
                Kind::Leaf | Kind::PresentInvalid if Self::too_large(entry, level, leaves) => {
                    let leaf = At {
                        table,
                        level,
                        start,
                        entry,
                    };
                    self.check_limit(&leaf, leaves)?;
                    if level < leaves.top {
                        let part = [self.part_of(&leaf, leaves)];
                        let mut cursor = Cursor::<P, S>::over_parts(&part, self.geometry);
                        needed += cursor.tables_in_new(level.next(), start + bytes);
                    }
                }
                Kind::Invalid | Kind::Leaf | Kind::PresentInvalid => {}
            }
            at = next;
        }
        Ok(needed)
    }

    /// Checks that the rules allow splitting this leaf, and its group, on live tables.
    fn check_limit(&self, leaf: &At, leaves: Leaves) -> Result<(), TableError> {
        if self.liveness == Liveness::Private {
            return Ok(());
        }
        let in_place = |old: Descriptor, new: Descriptor| {
            matches!(
                classify(&self.geometry, leaf.level, old, new, self.bbm),
                Change::Nothing | Change::Store | Change::StoreResized { .. }
            )
        };
        let (first, count) = Self::group_of(leaf);
        let mut allowed = (first..first + count).all(|index| {
            let old = self.load(leaf.table, index);
            in_place(old, ungrouped(old))
        });
        let bytes = P::SIZE.entry_bytes(leaf.level);
        let (mut part, mut takes) = (bytes, BbmLevel::Level1);
        if leaf.level < leaves.top {
            let table = Descriptor::table(&self.geometry, PhysicalAddress(0));
            allowed &= in_place(ungrouped(leaf.entry), table);
            part = P::SIZE.entry_bytes(leaf.level.next());
            takes = BbmLevel::Level2;
        }
        if allowed {
            return Ok(());
        }
        let group_start = leaf.start & !(bytes * count as u64 - 1);
        Err(TableError::InsideLeaf {
            // The first edge that the split would make inside the leaf.
            edge: self.address(group_start + part),
            leaf: self.address(group_start),
            leaf_bytes: bytes * count as u64,
            takes,
        })
    }

    /// The index of the first entry of a leaf's group, and the number of entries; the leaf's own
    /// index and 1 if it is in no group.
    pub(super) fn group_of(leaf: &At) -> (usize, usize) {
        let index = Self::index(leaf.start, leaf.level);
        if leaf.entry.is_contiguous() {
            let count = P::SIZE.contiguous_entries(leaf.level);
            (index & !(count - 1), count)
        } else {
            (index, 1)
        }
    }

    /// The whole leaf as a part to map again, in leaves of the allowed size.
    pub(super) fn part_of(&self, leaf: &At, leaves: Leaves) -> Part {
        let output = self.geometry.address_of(leaf.entry, leaf.level);
        let distance = output.0.wrapping_sub(leaf.start);
        Part {
            from: leaf.start,
            to: leaf.start + P::SIZE.entry_bytes(leaf.level),
            plan: Plan::of_leaf(&self.geometry, leaf.entry, leaf.level, distance, leaves),
        }
    }

    fn limit_in(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        leaves: Leaves,
    ) -> Option<()> {
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            let start = at & !(bytes - 1);
            let next = to.min(start + bytes);
            let entry = self.load(table, Self::index(at, level));
            match entry.kind(&self.geometry, level) {
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    self.limit_in(below, level.next(), at, next, leaves)?;
                }
                Kind::Leaf | Kind::PresentInvalid if Self::too_large(entry, level, leaves) => {
                    let leaf = At {
                        table,
                        level,
                        start,
                        entry,
                    };
                    self.limit_leaf(&leaf, leaves)?;
                }
                Kind::Invalid | Kind::Leaf | Kind::PresentInvalid => {}
            }
            at = next;
        }
        Some(())
    }

    /// Clears the hint of a leaf's group, then replaces the leaf by a table if it is still too
    /// large.
    fn limit_leaf(&mut self, leaf: &At, leaves: Leaves) -> Option<()> {
        let At {
            table,
            level,
            start,
            entry,
        } = *leaf;
        let bytes = P::SIZE.entry_bytes(level);
        if entry.is_contiguous() {
            let (first, count) = Self::group_of(leaf);
            let group_bytes = bytes * count as u64;
            let group = start & !(group_bytes - 1);
            self.clear_hint(table, first, level, group);
            if entry.is_valid() {
                // A TLBI does not follow the hint, so each member needs its own (RLQLSD).
                self.pending.entries(group, group + group_bytes, bytes);
            }
        }
        if level >= leaves.top {
            return Some(());
        }
        let index = Self::index(start, level);
        // Loaded anew, because the group may have given the entry bits.
        let leaf = &At {
            entry: self.load(table, index),
            ..*leaf
        };
        let part = [self.part_of(leaf, leaves)];
        let mut cursor = Cursor::<P, S>::over_parts(&part, self.geometry);
        let new = self.environment.allocate(1)?.first;
        self.build(&mut cursor, new, level.next(), start + bytes)?;
        self.link_in_place_of(leaf.entry, table, index, level, start, new);
        self.pending.split();
        if entry.is_valid() {
            self.pending.entries(start, start + bytes, bytes);
        }
        Some(())
    }
}

const fn ungrouped(leaf: Descriptor) -> Descriptor {
    Descriptor(leaf.0 & !Descriptor::CONTIGUOUS)
}
