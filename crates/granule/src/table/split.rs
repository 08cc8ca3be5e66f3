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
use super::plan::{Cursor, Part, Plan};
use super::stage::Stage;
use super::{BitChange, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::{BbmLevel, Change, classify};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress};

/// A leaf or contiguous group with an edge of a range inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Straddled {
    pub(super) table: PhysicalAddress,
    pub(super) level: Level,
    /// The first offset of the leaf or group, and its bytes.
    pub(super) start: u64,
    bytes: u64,
    pub(super) contiguous: bool,
    /// For each edge the first offset of the entry that must become a table. Hardware may update
    /// the entry later, and the answer must stay the one that tables were reserved for.
    cut: [Option<u64>; 2],
}

impl Straddled {
    /// The entries that must become tables.
    pub(super) fn cut_entries(&self) -> impl Iterator<Item = u64> + use<> {
        let [first, second] = self.cut;
        let second = second.filter(|_| second != first);
        first.into_iter().chain(second)
    }
}

/// A change of the leaves between two offsets.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) change: BitChange,
}

impl Cut {
    /// Records that the leaf `old` with the first offset `start` became a table of a live tree.
    ///
    /// A set access flag needs no TLBI by itself, but the leaf may be cached in spite of its clear
    /// flag: hardware may have set the flag before the split, or a harvest cleared it without an
    /// invalidation. A later TLBI for one page, with that page's level as the hint, would not reach
    /// the leaf.
    pub(super) const fn made_table<P: Page>(
        &self,
        pending: &mut Pending,
        old: Descriptor,
        level: Level,
        start: u64,
    ) {
        pending.split();
        if old.is_valid() {
            let at = if self.from > start { self.from } else { start };
            pending.entries(at, at + P::SIZE.bytes(), P::SIZE.entry_bytes(level));
        }
    }
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Sets the lowest level of FEAT_BBM among the CPUs that use the tables, which decides how the
    /// size of a live leaf may change in place. Level 0 is the default: no valid leaf is split or
    /// merged. Level 1 allows that for contiguous groups, levels 2 and 3 also for blocks.
    /// Present-invalid leaves, and leaves of tables that no CPU walks, are split and merged at every level.
    ///
    /// At levels 1 and 2 a CPU may take a TLB conflict abort on any access to a split or merged
    /// range, as long as it caches an entry of the old size: a split issues no TLBI for the size
    /// alone, and a merge issues it afterwards. A CPU with level 3 takes no such abort.
    /// [`bbm_policy::decide`](crate::arch::bbm_policy::decide) finds the level for a system.
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
    pub(super) fn splits_edges(&self, from: u64, to: u64, change: BitChange) -> bool {
        let cut = Cut { from, to, change };
        self.straddled(from, &cut).is_some() || self.straddled(to, &cut).is_some()
    }

    /// Makes `from` and `to` boundaries of leaves and groups, for `change` of the leaves between
    /// them. A leaf that already has the change stays whole.
    pub(super) fn split_edges(
        &mut self,
        from: u64,
        to: u64,
        change: BitChange,
    ) -> Result<(), TableError> {
        let cut = Cut { from, to, change };
        let (leaves, needed) = self.plan_split(&cut)?;
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        // All hints come first: what hardware may still note in a group takes an invalidation, and
        // that must not come between the split of a block and the invalidation of the change.
        for leaf in leaves.into_iter().flatten() {
            if leaf.contiguous {
                let index = Self::index(leaf.start, leaf.level);
                self.clear_hint(leaf.table, index, leaf.level, leaf.start);
            }
        }
        for leaf in leaves.into_iter().flatten() {
            self.split(&leaf, &cut).ok_or(exhausted)?;
        }
        Ok(())
    }

    /// The leaves to split at the two edges, and the tables that they need.
    pub(super) fn plan_split(
        &self,
        cut: &Cut,
    ) -> Result<([Option<Straddled>; 2], usize), TableError> {
        let first = self.straddled(cut.from, cut);
        let second = self.straddled(cut.to, cut);
        let second = second.filter(|second| first.is_none_or(|first| first.start != second.start));
        let mut needed = 0;
        for leaf in [first, second].into_iter().flatten() {
            self.check_split(&leaf, cut)?;
            needed += self.tables_for(&leaf, cut);
        }
        Ok(([first, second], needed))
    }

    /// The leaf or group that begins before `edge` and ends after it, if `cut` changes it.
    fn straddled(&self, edge: u64, cut: &Cut) -> Option<Straddled> {
        if edge >= self.geometry.span() {
            return None;
        }
        let found = self.walk(edge);
        if !matches!(found.kind, Kind::Leaf | Kind::PresentInvalid) {
            return None;
        }
        let (table, level) = (found.table, found.level);
        let contiguous = found.descriptor.is_contiguous();
        let entries = if contiguous {
            P::SIZE.contiguous_entries(level)
        } else {
            1
        };
        let entry = P::SIZE.entry_bytes(level);
        let bytes = entry * entries as u64;
        let start = edge & !(bytes - 1);
        if start == edge {
            return None;
        }
        // Check every member in the range, because hardware may have updated any of them (RXDPXQ).
        let first = cut.from.max(start) & !(entry - 1);
        let changes = (first..cut.to.min(start + bytes))
            .step_by(entry as usize)
            .any(|at| Self::changes(self.load(table, Self::index(at, level)), cut.change));
        let mut leaf = Straddled {
            table,
            level,
            start,
            bytes,
            contiguous,
            cut: [None; 2],
        };
        if !changes {
            return None;
        }
        leaf.cut = [cut.from, cut.to].map(|edge| self.cut_entry(&leaf, edge, cut.change));
        Some(leaf)
    }

    /// Whether `change` alters `entry`.
    pub(super) fn changes(entry: Descriptor, change: BitChange) -> bool {
        change.concerns(entry) && change.apply(entry) != entry
    }

    /// Checks that the rules allow splitting this leaf at each edge inside it.
    fn check_split(&self, leaf: &Straddled, cut: &Cut) -> Result<(), TableError> {
        if self.liveness == Liveness::Private {
            return Ok(());
        }
        let end = leaf.start + leaf.bytes;
        for (edge, cut_entry) in [cut.from, cut.to].into_iter().zip(leaf.cut) {
            if edge <= leaf.start || edge >= end {
                continue;
            }
            if !self.may_split(leaf, cut_entry) {
                return Err(TableError::InsideLeaf {
                    edge: self.address(edge),
                    leaf: self.address(leaf.start),
                    leaf_bytes: leaf.bytes,
                    takes: match cut_entry {
                        Some(_) => BbmLevel::Level2,
                        None => BbmLevel::Level1,
                    },
                });
            }
        }
        Ok(())
    }

    /// Whether all stores that split the live `leaf`, and its entry at `cut` if there is one, may
    /// change entries in place.
    fn may_split(&self, leaf: &Straddled, cut: Option<u64>) -> bool {
        let level = leaf.level;
        let may = |old: Descriptor, new: Descriptor| match classify(
            &self.geometry,
            level,
            old,
            new,
            self.bbm,
        ) {
            Change::Nothing | Change::Store | Change::StoreResized { .. } => true,
            Change::StoreThenInvalidate | Change::BreakBeforeMake => false,
        };
        let ungrouped = |old: Descriptor| Descriptor(old.0 & !Descriptor::CONTIGUOUS);
        let first = Self::index(leaf.start, level);
        let entries = (leaf.bytes >> P::SIZE.level_shift(level)) as usize;
        let hints = (first..first + entries).all(|index| {
            let old = self.load(leaf.table, index);
            may(old, ungrouped(old))
        });
        let table = Descriptor::table(&self.geometry, PhysicalAddress(0));
        hints
            && cut.is_none_or(|start| {
                let old = self.load(leaf.table, Self::index(start, level));
                may(ungrouped(old), table)
            })
    }

    /// The first offset of the entry of `leaf` that must become a table, because `edge` lies
    /// strictly inside the entry and one side of it changes.
    fn cut_entry(&self, leaf: &Straddled, edge: u64, change: BitChange) -> Option<u64> {
        let start = edge & !(P::SIZE.entry_bytes(leaf.level) - 1);
        if edge <= leaf.start || edge >= leaf.start + leaf.bytes || edge == start {
            return None;
        }
        let mut entry = self.load(leaf.table, Self::index(start, leaf.level));
        if leaf.contiguous {
            // The split will give the entry what hardware noted in another member.
            let count = P::SIZE.contiguous_entries(leaf.level);
            let first = Self::index(leaf.start, leaf.level);
            entry = self.gathering(leaf.table, first, count)(entry).apply(entry);
        }
        Self::changes(entry, change).then_some(start)
    }

    /// The parts into which the edges cut the entry at `start`, to map again as the entry maps
    /// them.
    fn parts(&self, leaf: &Straddled, start: u64, cut: &Cut) -> [Part; 3] {
        let descriptor = self.load(leaf.table, Self::index(start, leaf.level));
        let end = start + P::SIZE.entry_bytes(leaf.level);
        let output = self.geometry.address_of(descriptor, leaf.level);
        let distance = output.0.wrapping_sub(start);
        let plan = Plan::of_leaf(
            &self.geometry,
            descriptor,
            leaf.level,
            distance,
            Leaves::LARGEST,
        );
        let (from, to) = (cut.from.clamp(start, end), cut.to.clamp(start, end));
        [(start, from), (from, to), (to, end)].map(|(from, to)| Part { from, to, plan })
    }

    fn tables_for(&self, leaf: &Straddled, cut: &Cut) -> usize {
        let mut needed = 0;
        for start in leaf.cut_entries() {
            let parts = self.parts(leaf, start, cut);
            let mut cursor = Cursor::<P, S>::over_parts(&parts, self.geometry);
            let end = start + P::SIZE.entry_bytes(leaf.level);
            needed += cursor.tables_in_new(leaf.level.next(), end);
        }
        needed
    }

    /// Makes tables of the cut entries of one leaf, whose hint is cleared. `None` means that the
    /// allocator broke its promise; every address then still translates as before.
    fn split(&mut self, leaf: &Straddled, cut: &Cut) -> Option<()> {
        for start in leaf.cut_entries() {
            let index = Self::index(start, leaf.level);
            // Loaded before the parts are, so that no later update by hardware is missed.
            let old = self.load(leaf.table, index);
            let parts = self.parts(leaf, start, cut);
            let mut cursor = Cursor::<P, S>::over_parts(&parts, self.geometry);
            let end = start + P::SIZE.entry_bytes(leaf.level);
            let table = self.environment.allocate(1)?.first;
            self.build(&mut cursor, table, leaf.level.next(), end)?;
            self.link_in_place_of(old, leaf.table, index, leaf.level, start, table);
            if self.liveness == Liveness::Live {
                cut.made_table::<P>(&mut self.pending, old, leaf.level, start);
            }
        }
        Some(())
    }
}
