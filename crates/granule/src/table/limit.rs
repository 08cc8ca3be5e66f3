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
use super::plan::{Part, Plan};
use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{BitPattern, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::PageChoice;

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
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
        let needed = self.tables_to_limit(from, to, leaves)?;
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.reserve(needed) {
            return Err(exhausted);
        }
        let mut limited = Some(());
        let mut at = from;
        while let Some((start, place)) = self.next_too_large(at, to, leaves) {
            limited = self.limit_leaf(place, start, leaves);
            if limited.is_none() {
                break;
            }
            at = self.end_of(start, place.level);
        }
        self.flush();
        limited.ok_or(exhausted)?;
        Ok(needed)
    }

    /// The next leaf between two offsets that is too large, so that it must become a table or lose
    /// its hint.
    fn next_too_large(&self, from: u64, to: u64, leaves: Leaves) -> Option<(u64, Place)> {
        let mut at = from;
        while at < to {
            let place = self.place(at);
            let Place { slot, level, entry } = place;
            let large = level < leaves.top || (entry.is_contiguous() && !leaves.contiguous);
            if large && self.is_leaf(level, entry) {
                return Some((at, place));
            }
            at = if level.is_last() {
                // Of pages only groups are too large.
                let count = self.whole(at, level, to);
                let found = self.find_unlike(slot.table, slot.index, count, BitPattern::SINGLE);
                let found = found.filter(|_| !leaves.contiguous);
                self.behind(at, level, found.unwrap_or(count).max(1))
            } else {
                self.end_of(at, level)
            };
        }
        None
    }

    /// Counts the tables that splitting needs between two offsets, or returns the first leaf that
    /// must not be split as an error.
    fn tables_to_limit(&self, from: u64, to: u64, leaves: Leaves) -> Result<usize, TableError> {
        let mut needed = 0;
        let mut at = from;
        while let Some((start, place)) = self.next_too_large(at, to, leaves) {
            self.check_limit(&place, start, leaves)?;
            let level = place.level;
            at = self.end_of(start, level);
            if level < leaves.top {
                let part = self.part_of(&place, start, leaves);
                needed += self.tables_of_parts(&part, level.next(), at);
            }
        }
        Ok(needed)
    }

    /// Checks that the rules allow splitting the leaf at `at`, and its group, on live tables.
    fn check_limit(&self, place: &Place, at: u64, leaves: Leaves) -> Result<(), TableError> {
        let Place { slot, level, entry } = *place;
        let bytes = self.size().entry_bytes(level);
        let (part, takes) = if level < leaves.top {
            (self.size().entry_bytes(level.next()), BbmLevel::Level2)
        } else {
            (bytes, BbmLevel::Level1)
        };
        // A leaf that is not valid is not cached, and splits at every level (IWZCBG).
        if self.liveness == Liveness::Private || !entry.is_valid() || self.bbm >= takes {
            return Ok(());
        }
        let (_, count) = self.group_at(slot.index, level, entry);
        let leaf_bytes = bytes * count as u64;
        let leaf = at & !(leaf_bytes - 1);
        Err(TableError::InsideLeaf {
            // The first edge that the split would make inside the leaf.
            edge: self.address(leaf + part),
            leaf: self.address(leaf),
            leaf_bytes,
            takes,
        })
    }

    /// The whole leaf at `at` as a part to map again, in leaves of the allowed size.
    fn part_of(&self, place: &Place, at: u64, leaves: Leaves) -> [Part; 1] {
        let Place { level, entry, .. } = *place;
        let from = at & !(self.size().entry_bytes(level) - 1);
        [Part {
            from,
            to: self.end_of(at, level),
            plan: Plan::of_leaf(&self.geometry, entry, level, from, leaves),
        }]
    }

    /// Clears the hint of the leaf's group, then replaces the leaf by a table if it is still too
    /// large.
    fn limit_leaf(&mut self, place: Place, at: u64, leaves: Leaves) -> Option<()> {
        let Place { slot, level, entry } = place;
        let bytes = self.size().entry_bytes(level);
        if entry.is_contiguous() {
            let (index, count) = self.group_at(slot.index, level, entry);
            let group_bytes = bytes * count as u64;
            let group = at & !(group_bytes - 1);
            self.clear_hint(Slot { index, ..slot }, level, group);
            if entry.is_valid() {
                // A TLBI does not follow the hint, so each member needs its own (RLQLSD).
                self.pending.entries(group, group + group_bytes, bytes);
            }
        }
        if level >= leaves.top {
            return Some(());
        }
        // Loaded anew, because the group may have given the entry bits.
        let old = self.load(slot.table, slot.index);
        let place = Place {
            entry: old,
            ..place
        };
        let part = self.part_of(&place, at, leaves);
        let new = self.take()?;
        let end = self.end_of(at, level);
        let start = end - bytes;
        self.build_parts(&part, new, level.next(), end)?;
        self.link_in_place_of(old, slot, level, start, new);
        self.pending.split();
        if old.is_valid() {
            self.pending.entries(start, end, bytes);
        }
        Some(())
    }
}
