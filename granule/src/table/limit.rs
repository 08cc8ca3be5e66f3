//! Making all leaves of a range small: what a map of blocks becomes when it is to be one of pages.
//!
//! Unlike the splits at the two ends of a change, these are of every leaf in the range, and no
//! change follows whose invalidation would reach the old leaves; so one is issued here, after
//! which no TLB holds a leaf that is too large. Everything else is as there: all tables reserved
//! first, each written while it is private, the whole subtree of a leaf linked by one store that
//! changes only the size (RPVTFW).
//!
//! For that invalidation to be in time the CPUs must allow the split at all: at level 2 both sizes
//! may be in a TLB until it is complete, and an access may end in a TLB conflict abort.

use super::piece::Leaves;
use super::plan::{Cursor, Part, Plan};
use super::{BitChange, Environment, Liveness, PageTables, TableError};
use crate::arch::bbm::{BbmLevel, Change, classify};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress, VirtualAddress};

/// One entry of a table, and where it is.
#[derive(Clone, Copy)]
struct At {
    table: PhysicalAddress,
    level: Level,
    /// The first offset that it translates.
    start: u64,
    entry: Descriptor,
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Splits every leaf among `bytes` bytes from `start` that is larger than `leaves` allows,
    /// into the largest that it does allow. A leaf that reaches across an end of the range is
    /// split whole, and so is a contiguous group. What is not mapped is passed over, hidden leaves
    /// stay hidden. On live tables the TLB is invalidated for what was split before this returns.
    /// Gives the number of tables that were added.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`InsideLeaf`](TableError::InsideLeaf) for the first leaf whose size must not change in
    /// place on live tables ([`set_bbm`](Self::set_bbm)),
    /// [`OutOfTables`](TableError::OutOfTables). Nothing has changed then.
    pub fn limit_leaves(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<usize, TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        let level = self.geometry.start_level();
        let needed = self.tables_to_limit(self.root, level, from, to, leaves)?;
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        let limited = self.limit_in(self.root, level, from, to, leaves);
        self.flush();
        limited.ok_or(exhausted)?;
        Ok(needed)
    }

    /// Whether a leaf is larger than allowed: it must become a table, or lose its hint.
    fn too_large(entry: Descriptor, level: Level, leaves: Leaves) -> bool {
        level < leaves.top || (entry.is_contiguous() && !leaves.contiguous)
    }

    /// The tables that splitting takes below `table`; refuses what must not be split.
    fn tables_to_limit(
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
                Kind::Leaf | Kind::Hidden if Self::too_large(entry, level, leaves) => {
                    let leaf = At {
                        table,
                        level,
                        start,
                        entry,
                    };
                    self.check_limit(&leaf, leaves)?;
                    if level < leaves.top {
                        let part = [self.part_of(&leaf, leaves)];
                        let mut cursor = Cursor::<P>::over_parts(&part, self.geometry);
                        needed += cursor.tables_in_new(level.next(), start + bytes);
                    }
                }
                Kind::Invalid | Kind::Leaf | Kind::Hidden => {}
            }
            at = next;
        }
        Ok(needed)
    }

    /// Whether the rules allow to split this leaf, and the group it is in, on live tables.
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
            // The first edge that it would have inside.
            edge: self.address(group_start + part),
            leaf: self.address(group_start),
            leaf_bytes: bytes * count as u64,
            takes,
        })
    }

    /// The index of the first entry of the group that a leaf is in, and how many there are; the
    /// leaf's own and 1 if it is in none.
    fn group_of(leaf: &At) -> (usize, usize) {
        let index = Self::index(leaf.start, leaf.level);
        if leaf.entry.is_contiguous() {
            let count = P::SIZE.contiguous_entries(leaf.level);
            (index & !(count - 1), count)
        } else {
            (index, 1)
        }
    }

    /// The whole leaf, to be mapped as it is in leaves of the size that is allowed.
    fn part_of(&self, leaf: &At, leaves: Leaves) -> Part {
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
                Kind::Leaf | Kind::Hidden if Self::too_large(entry, level, leaves) => {
                    let leaf = At {
                        table,
                        level,
                        start,
                        entry,
                    };
                    self.limit_leaf(&leaf, leaves)?;
                }
                Kind::Invalid | Kind::Leaf | Kind::Hidden => {}
            }
            at = next;
        }
        Some(())
    }

    /// Takes the hint off the group that a leaf is in, then makes a table of the leaf.
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
            let change = BitChange {
                of: BitChange::LEAVES,
                clear: Descriptor::CONTIGUOUS,
                set: 0,
            };
            self.update(table, first, count, change);
            if entry.is_valid() {
                // Each member may be cached by itself, so the hint enlarges nothing (RLQLSD).
                let group_bytes = bytes * count as u64;
                let group = start & !(group_bytes - 1);
                self.pending.entries(group, group + group_bytes, bytes);
            }
        }
        if level >= leaves.top {
            return Some(());
        }
        let part = [self.part_of(leaf, leaves)];
        let mut cursor = Cursor::<P>::over_parts(&part, self.geometry);
        let new = self.environment.allocate(1)?.first;
        self.build(&mut cursor, new, level.next(), start + bytes)?;
        let link = Descriptor::table(&self.geometry, new);
        self.store(table, Self::index(start, level), link, self.linking());
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
