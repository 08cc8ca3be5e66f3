//! Splitting leaves at the two edges of a change.
//!
//! One reservation covers both edges. A block becomes a table of the largest leaves that end at the
//! edges, and a contiguous group loses its hint. An edge that is already a boundary splits nothing.
//! The new table is private until one store links it. It translates every address as the block did,
//! permissions included, so that store changes only the size (RPVTFW). The split issues no TLBI: a
//! stale larger entry translates alike, and the invalidation of the following change reaches it,
//! because that change lies inside the entry. [`Cut::made_table`] records one page of the change, so
//! that there is such an invalidation even if the change itself needs none.
//!
//! On live tables the CPUs' level of FEAT_BBM must allow the split, or the range is refused. A
//! present-invalid leaf is invalid and so never cached; every level allows its split.
//!
//! The code assumes whole contiguous groups, as all operations leave them: the hint on all entries
//! of a group, and all of them valid or all present-invalid.
//!
//! # The order of the steps
//!
//! 1. All tables of both edges are reserved before the first store. Running out of them is one error, and
//!    leaves the tables unchanged.
//! 2. All members of a group lose the hint, one store each (RPVTFW; level 1 allows it). If hardware may
//!    update a member, the group is then invalidated, and all members get what any has: hardware may note a
//!    write to one member in another until no TLB holds the group (RXDPXQ).
//! 3. A block becomes a table (level 2 allows it, RKFLJB). If hardware may update the block, an exchange
//!    links the table, and a late update goes to the whole new table, so none is lost (RWLTNL).
//! 4. The change of the leaves follows, with its TLBI. The stride of that is the smallest changed entry,
//!    because each member of a group needs its own TLBI (RLQLSD), and it has no level hint, because the hint
//!    of the small leaves would leave the large one cached (RSQXYZ).

#![allow(unsafe_code, reason = "the level of BBM that the caller vouches for")]

use super::pending::Pending;
use super::piece::Leaves;
use super::plan::{Cursor, Part, Parts, Plan};
use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{BitChange, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::{Level, PageChoice, PageSize};
use crate::arch::{Descriptor, PhysicalAddress};

/// A leaf or contiguous group with an edge of a range inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Straddled {
    /// The first entry.
    first: Slot,
    level: Level,
    /// The first offset of the leaf or group, and the one behind it.
    start: u64,
    end: u64,
    contiguous: bool,
    /// The first offsets of the entries that must become tables, and their number. Hardware may update
    /// an entry later, and the answer must stay the one that tables were reserved for.
    cut: [u64; 2],
    cuts: u8,
}

impl Straddled {
    /// The first offset of one of the entries that must become tables.
    fn cut(&self, number: u8) -> Option<u64> {
        let cut = self.cut.get(usize::from(number))?;
        (number < self.cuts).then_some(*cut)
    }
}

/// A change of the leaves between two offsets, by what a leaf is.
#[derive(Clone, Copy)]
pub(super) struct Cut<'f> {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) change: &'f OfLeaf<'f>,
}

/// A change of the bits of a leaf, by what the leaf is.
pub(super) type OfLeaf<'f> = dyn Fn(Descriptor) -> BitChange + 'f;

impl Cut<'_> {
    /// Records that the leaf `old` with the first offset `start` became a table of a live tree.
    ///
    /// A set access flag needs no TLBI by itself, but the leaf may be cached in spite of its clear
    /// flag: hardware may have set the flag before the split, or a harvest cleared it without an
    /// invalidation. A later TLBI for one page, with that page's level as the hint, would not reach
    /// the leaf.
    pub(super) const fn made_table(
        &self,
        size: PageSize,
        pending: &mut Pending,
        old: Descriptor,
        level: Level,
        start: u64,
    ) {
        pending.split();
        if old.is_valid() {
            let at = if self.from > start { self.from } else { start };
            pending.entries(at, at + size.bytes(), size.entry_bytes(level));
        }
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Sets the lowest level of FEAT_BBM among the CPUs that use the tables, which decides how the
    /// size of a live leaf may change in place. Level 0 is the default: no valid leaf is split or
    /// merged. Level 1 allows that for contiguous groups, levels 2 and 3 also for blocks.
    /// Present-invalid leaves, and leaves of tables that no CPU walks, are split and merged at every level.
    ///
    /// At levels 1 and 2 a CPU may take a TLB conflict abort on any access to a split or merged
    /// range, as long as it caches an entry of the old size: a split issues no TLBI for the size
    /// alone, and a merge issues it afterwards. A CPU with level 3 takes no such abort.
    /// [`SystemLimits::decide`](crate::arch::bbm_policy::SystemLimits::decide) finds the level for a system.
    ///
    /// A leaf that hardware updates meanwhile (TCR.HA and no access flag, TCR.HD and
    /// [`dirty_modifier`](crate::arch::Permissions::dirty_modifier)) is split without losing an
    /// update: what hardware notes of the large leaf then holds for all of the small ones. For a
    /// group this takes one invalidation of its own. Such a leaf is not merged.
    ///
    /// # Safety
    ///
    /// Every CPU that walks the tables has at least this level. For levels 1 and 2 the system
    /// handles the TLB conflict abort (TLBI VMALLE1, at stage 2 VMALLS12E1 at EL2, then retry,
    /// RBLRKC), with code, stack and data outside any range that is ever split.
    pub const unsafe fn set_bbm(&mut self, level: BbmLevel) {
        self.bbm = level;
    }

    /// Whether [`split_edges`](Self::split_edges) would split a leaf or group.
    ///
    /// # Errors
    ///
    /// As for that function.
    pub(super) fn splits_edges(
        &self,
        from: u64,
        to: u64,
        change: &OfLeaf<'_>,
    ) -> Result<bool, TableError> {
        let cut = Cut { from, to, change };
        Ok(self.straddled(from, &cut)?.is_some() || self.straddled(to, &cut)?.is_some())
    }

    /// Makes `from` and `to` boundaries of leaves and groups, for `change` of the leaves between
    /// them. A leaf that already has the change stays whole.
    pub(super) fn split_edges(
        &mut self,
        from: u64,
        to: u64,
        change: &OfLeaf<'_>,
    ) -> Result<(), TableError> {
        let cut = Cut { from, to, change };
        let mut leaves = [self.straddled(from, &cut)?, None];
        if leaves[0].as_ref().is_none_or(|first| first.end <= to) {
            // The first leaf does not reach the other edge.
            leaves[1] = self.straddled(to, &cut)?;
        }
        if leaves.iter().all(Option::is_none) {
            return Ok(());
        }
        self.split_leaves(&leaves, &cut)
    }

    /// Splits the leaves at the two edges.
    #[inline(never)]
    fn split_leaves(
        &mut self,
        leaves: &[Option<Straddled>; 2],
        cut: &Cut<'_>,
    ) -> Result<(), TableError> {
        let mut needed = 0;
        for leaf in leaves.iter().flatten() {
            needed += self.tables_for(leaf, cut);
        }
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.reserve(needed) {
            return Err(exhausted);
        }
        // All hints come first: what hardware may still note in a group takes an invalidation, and
        // that must not come between the split of a block and the invalidation of the change.
        for leaf in leaves.iter().flatten() {
            if leaf.contiguous {
                self.clear_hint(leaf.first, leaf.level, leaf.start);
            }
        }
        for leaf in leaves.iter().flatten() {
            self.split(leaf, cut).ok_or(exhausted)?;
        }
        Ok(())
    }

    /// The leaf or group that begins before `edge` and ends after it, if `cut` changes it.
    ///
    /// # Errors
    ///
    /// [`TableError::InsideLeaf`] if the rules do not allow to split it at each edge inside.
    #[inline(never)]
    fn straddled(&self, edge: u64, cut: &Cut<'_>) -> Result<Option<Straddled>, TableError> {
        if edge >= self.geometry.span() {
            return Ok(None);
        }
        let Place { slot, level, entry } = self.place(edge);
        if !self.is_leaf(level, entry) {
            return Ok(None);
        }
        let (index, count) = self.group_at(slot.index, level, entry);
        let first = Slot { index, ..slot };
        let bytes = self.size().entry_bytes(level);
        let start = edge & !((bytes << count.trailing_zeros()) - 1);
        if start == edge {
            return Ok(None);
        }
        let end = start + (bytes << count.trailing_zeros());
        // Check every member in the range, because hardware may have updated any of them (RXDPXQ).
        let mut at = cut.from.max(start);
        let mut changes = false;
        while at < cut.to.min(end) {
            let member = self.load(first.table, self.index(at, level));
            changes |= Self::changes(member, (cut.change)(member));
            at = self.end_of(at, level);
        }
        if !changes {
            return Ok(None);
        }
        let mut leaf = Straddled {
            first,
            level,
            start,
            end,
            contiguous: entry.is_contiguous(),
            cut: [u64::MAX; 2],
            cuts: 0,
        };
        for edge in [cut.from, cut.to] {
            if edge <= start || edge >= end {
                continue;
            }
            let first = edge & !(bytes - 1);
            if first == leaf.cut[0] {
                // Both edges cut the same entry, or one is its first offset.
                continue;
            }
            let cuts = self.cuts_entry(&leaf, edge, cut.change);
            // A leaf that is not valid is not cached, and splits at every level (IWZCBG).
            let takes = if cuts {
                BbmLevel::Level2
            } else {
                BbmLevel::Level1
            };
            if self.liveness == Liveness::Live && entry.is_valid() && self.bbm < takes {
                return Err(TableError::InsideLeaf {
                    edge: self.address(edge),
                    leaf: self.address(start),
                    leaf_bytes: end - start,
                    takes,
                });
            }
            if cuts {
                leaf.cut = [leaf.cut[0].min(first), first];
                leaf.cuts += 1;
            }
        }
        Ok(Some(leaf))
    }

    /// Whether the entry of `leaf` at `edge` must become a table, because `edge` lies strictly inside
    /// and one side of it changes.
    #[cold]
    #[inline(never)]
    fn cuts_entry(&self, leaf: &Straddled, edge: u64, change: &OfLeaf<'_>) -> bool {
        if edge & (self.size().entry_bytes(leaf.level) - 1) == 0 {
            return false;
        }
        let mut entry = self.load(leaf.first.table, self.index(edge, leaf.level));
        if leaf.contiguous {
            // The split will give the entry what hardware noted in another member.
            entry = self.noted(leaf.first, leaf.level).give(entry);
        }
        Self::changes(entry, change(entry))
    }

    /// The parts into which the edges cut the entry at `start`, to map again as the entry `old` maps
    /// them.
    #[inline(never)]
    fn parts(&self, old: Descriptor, level: Level, start: u64, cut: &Cut<'_>) -> [Part; 3] {
        let end = self.end_of(start, level);
        let plan = Plan::of_leaf(&self.geometry, old, level, start, Leaves::LARGEST);
        let inside = |edge: u64| edge.max(start).min(end);
        let (from, to) = (inside(cut.from), inside(cut.to));
        [(start, from), (from, to), (to, end)].map(|(from, to)| Part { from, to, plan })
    }

    #[inline(never)]
    fn tables_for(&self, leaf: &Straddled, cut: &Cut<'_>) -> usize {
        let mut needed = 0;
        let mut number = 0;
        while let Some(start) = leaf.cut(number) {
            number += 1;
            let old = self.load(leaf.first.table, self.index(start, leaf.level));
            let parts = self.parts(old, leaf.level, start, cut);
            let end = self.end_of(start, leaf.level);
            needed += self.tables_of_parts(&parts, leaf.level.next(), end);
        }
        needed
    }

    /// Makes tables of the cut entries of one leaf, whose hint is cleared. `None` means that the
    /// environment broke its promise; every address then still translates as before.
    #[inline(never)]
    fn split(&mut self, leaf: &Straddled, cut: &Cut<'_>) -> Option<()> {
        let mut number = 0;
        while let Some(start) = leaf.cut(number) {
            number += 1;
            let index = self.index(start, leaf.level);
            let slot = Slot {
                index,
                ..leaf.first
            };
            // Loaded once, so that no later update by hardware is missed.
            let old = self.load(slot.table, index);
            let table = self.take()?;
            let parts = self.parts(old, leaf.level, start, cut);
            let end = self.end_of(start, leaf.level);
            self.build_parts(&parts, table, leaf.level.next(), end)?;
            self.link_in_place_of(old, slot, leaf.level, start, table);
            if self.liveness == Liveness::Live {
                cut.made_table(self.size(), &mut self.pending, old, leaf.level, start);
            }
        }
        Some(())
    }

    /// The number of tables that map parts before `end` in a new table of `level`, that one included.
    #[inline(never)]
    pub(super) fn tables_of_parts(&self, parts: &[Part], level: Level, end: u64) -> usize {
        Cursor::<P, S>::new(Parts::Of(parts), &self.geometry).tables_in_new(level, end)
    }

    /// Maps parts before `end` in the new table of `level`. A function of its own, as the one above, so that
    /// no frame holds a cursor and the parts.
    #[inline(never)]
    pub(super) fn build_parts(
        &mut self,
        parts: &[Part],
        table: PhysicalAddress,
        level: Level,
        end: u64,
    ) -> Option<()> {
        let geometry = self.geometry;
        let mut cursor = Cursor::new(Parts::Of(parts), &geometry);
        self.build(&mut cursor, table, level, end)
    }
}
