//! The walk that every operation is made of: from the root down to the entry that decides about an
//! offset.
//!
//! An operation is one loop: it finds the [`Place`] of the next offset, does to a run of entries
//! there what their state asks for, and goes on behind them. So the loop holds no table but the one
//! it works on. One walk, which loads one entry a level, serves all entries of a table. What builds,
//! visits or frees a whole subtree recurses, at most once a level.
//!
//! Offsets count from the base of the half, so nothing here wraps.

use super::stage::Stage;
use super::{BitChange, BitPattern, PageTables, TableEnvironment, visit};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress};

/// The position of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The table.
    pub(crate) table: PhysicalAddress,
    /// The index in it.
    pub(crate) index: usize,
}

/// The last entry on the way to an offset: a leaf, or the empty entry where the tables end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) slot: Slot,
    /// The level of its table.
    pub(crate) level: Level,
    pub(crate) entry: Descriptor,
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// The last entry on the way to `offset`.
    #[inline(never)]
    pub(crate) fn place(&self, offset: u64) -> Place {
        let place = self.near_place(offset);
        if place.entry.is_table(place.level) {
            // Hidden from the compiler, which unrolls the loop for a constant level.
            return self.place_to(offset, core::hint::black_box(Level::L3));
        }
        place
    }

    /// As [`place`](Self::place), in line, but it also ends at an entry that leads to a table whose
    /// address has bits that a 52-bit format moves. So no step waits for those.
    #[inline(always)]
    pub(super) fn near_place(&self, offset: u64) -> Place {
        let start = self.geometry.start_level();
        let mut table = self.root_of(offset);
        let (near, far) = self.geometry.near_bits();
        // A table, with an address without those bits.
        let pattern = BitPattern {
            mask: BitPattern::TABLE.mask | far,
            ..BitPattern::TABLE
        };
        // Written out, the steps have constant shifts.
        macro_rules! step {
            ($($level:ident)+) => {
                $(
                    if start <= Level::$level {
                        let level = Level::$level;
                        let index = self.index(offset, level);
                        let entry = self.load(table, index);
                        if !pattern.matches(entry) {
                            let slot = Slot { table, index };
                            return Place { slot, level, entry };
                        }
                        table = PhysicalAddress(entry.0 & near);
                    }
                )+
            };
        }
        if self.size().has_minus1() {
            step!(Minus1);
        }
        step!(L0 L1 L2);
        let (level, index) = (Level::L3, self.index(offset, Level::L3));
        let entry = self.load(table, index);
        let slot = Slot { table, index };
        Place { slot, level, entry }
    }

    /// The last entry on the way to `offset` in a table of `lowest` or above it.
    #[inline(never)]
    pub(super) fn place_to(&self, offset: u64, lowest: Level) -> Place {
        let mut table = self.root_of(offset);
        let mut level = self.geometry.start_level();
        loop {
            let slot = Slot {
                table,
                index: self.index(offset, level),
            };
            let entry = self.load(slot.table, slot.index);
            if level >= lowest || !entry.is_table(level) {
                return Place { slot, level, entry };
            }
            table = self.output(entry);
            level = level.next();
        }
    }

    /// The place of the offset `at`, which begins the entry behind the last one that was looked at in
    /// the table of `place`: beside that one, or by a new walk.
    #[inline(always)]
    pub(super) fn beside(&self, place: &Place, at: u64) -> Place {
        let Place { slot, level, .. } = *place;
        let index = self.index(at, level);
        if index != 0 {
            let entry = self.load(slot.table, index);
            if !entry.is_table(level) {
                let slot = Slot { index, ..slot };
                return Place { slot, level, entry };
            }
        }
        self.place(at)
    }

    /// The end of the offsets that the entry of `level` for the offset `at` translates.
    #[inline(always)]
    pub(super) const fn end_of(&self, at: u64, level: Level) -> u64 {
        (at | (self.size().entry_bytes(level) - 1)) + 1
    }

    /// The end, at most `to`, of the offsets that the table of `level` for the offset `at`
    /// translates.
    #[inline(always)]
    pub(super) fn table_end(&self, at: u64, level: Level, to: u64) -> u64 {
        let bytes = self.size().entry_bytes(level) << self.size().index_bits();
        to.min((at | (bytes - 1)) + 1)
    }

    /// The number of entries of a table of `level`, from the one for `at` on, that end at `to` or
    /// before.
    #[inline(always)]
    pub(super) fn whole(&self, at: u64, level: Level, to: u64) -> usize {
        let shift = self.size().level_shift(level);
        ((self.table_end(at, level, to) >> shift) - (at >> shift)) as usize
    }

    /// Whether the entry of `level` for `at` begins there and ends at `to` or before.
    #[inline(always)]
    pub(super) const fn is_whole(&self, at: u64, level: Level, to: u64) -> bool {
        at & (self.size().entry_bytes(level) - 1) == 0 && self.end_of(at, level) <= to
    }

    /// The offset behind `count` entries of `level` that begin with the one for `at`.
    #[inline(always)]
    pub(super) const fn behind(&self, at: u64, level: Level, count: usize) -> u64 {
        let shift = self.size().level_shift(level);
        ((at >> shift) + count as u64) << shift
    }

    /// The table or the page that a valid entry leads to, which is not a block.
    #[inline(always)]
    pub(crate) const fn output(&self, entry: Descriptor) -> PhysicalAddress {
        self.geometry.address_in(entry.0, self.size().shift())
    }

    /// The index of the first member of the contiguous group of an entry, and the number of members;
    /// the entry's own index and 1 if it is in no group.
    #[inline(always)]
    pub(super) const fn group_at(
        &self,
        index: usize,
        level: Level,
        entry: Descriptor,
    ) -> (usize, usize) {
        if entry.is_contiguous() {
            let count = self.size().contiguous_entries(level);
            (index & !(count - 1), count)
        } else {
            (index, 1)
        }
    }

    /// The offset behind the run of whole valid leaves of one table that begins with the leaf for
    /// `at`. If `to` lies inside that leaf, it is the leaf's first offset.
    #[inline(always)]
    pub(super) fn leaves_end(&self, slot: Slot, level: Level, at: u64, to: u64) -> u64 {
        let count = self.whole(at, level, to);
        let pattern = BitPattern::leaf(level);
        let found = self.find_unlike(slot.table, slot.index, count, pattern);
        self.behind(at, level, found.unwrap_or(count))
    }

    /// Whether an entry is a leaf, valid or present-invalid.
    #[inline(always)]
    pub(super) const fn is_leaf(&self, level: Level, entry: Descriptor) -> bool {
        use crate::arch::Kind::{Leaf, PresentInvalid};
        matches!(entry.kind(&self.geometry, level), Leaf | PresentInvalid)
    }

    /// Whether hardware may change this leaf at any time (TCR.HA, TCR.HD).
    #[inline(always)]
    pub(super) const fn may_be_updated(&self, leaf: Descriptor) -> bool {
        self.geometry.may_be_updated(leaf)
    }

    /// Whether `change` alters `entry`.
    #[inline(always)]
    pub(super) fn changes(entry: Descriptor, change: BitChange) -> bool {
        change.concerns(entry) && change.apply(entry) != entry
    }

    /// The root table that translates `offset`.
    #[inline(always)]
    pub(super) fn root_of(&self, offset: u64) -> PhysicalAddress {
        visit::root_of::<S>(&self.geometry, self.size(), self.root, offset)
    }
}
