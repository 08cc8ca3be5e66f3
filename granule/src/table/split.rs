//! Splitting leaves at the two edges of a change.
//!
//! One reservation covers both edges. A block becomes a table of the largest leaves that end at the
//! edges, and a contiguous group loses its hint. An edge that is already a boundary splits nothing.
//! The new table is private until one store links it. It translates every address as the block did,
//! permissions included, so that store changes only the size (RPVTFW). The split issues no TLBI: a
//! stale larger entry translates alike, and the invalidation of the following change reaches it,
//! because that change lies inside the entry.
//!
//! On live tables the CPUs' level of FEAT_BBM must allow the split, or the range is refused. A
//! present-invalid leaf is invalid and so never cached; every level allows its split.
//!
//! The code assumes whole contiguous groups, as all operations leave them: the hint on all entries
//! of a group, and all of them valid or all present-invalid.

use super::piece::Leaves;
use super::plan::{Cursor, Part, Plan};
use super::stage::Stage;
use super::{BitChange, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::{BbmLevel, Change, classify};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress};

/// A leaf or contiguous group with an edge of a range inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Straddled {
    table: PhysicalAddress,
    level: Level,
    /// The first offset of the leaf or group, and its bytes.
    start: u64,
    bytes: u64,
    contiguous: bool,
}

/// A change of the leaves between two offsets.
#[derive(Clone, Copy)]
struct Cut {
    from: u64,
    to: u64,
    change: BitChange,
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
    /// Only [`space`](crate::space) may split or merge a leaf that hardware updates by itself
    /// (TCR.HA and no access flag, TCR.HD and
    /// [`dirty_modifier`](crate::arch::Permissions::dirty_modifier)). Elsewhere an update by
    /// hardware during the split would be lost (RWLTNL), and an update of one member of a group
    /// would not apply to the others once the hint is gone (RXDPXQ).
    ///
    /// # Safety
    ///
    /// Every CPU that walks the tables has at least this level. For levels 1 and 2 the system
    /// handles the TLB conflict abort (TLBI VMALLE1, then retry, RBLRKC), with code, stack and data
    /// outside any range that is ever split.
    pub const unsafe fn set_bbm(&mut self, level: BbmLevel) {
        self.bbm = level;
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
        let first = self.straddled(from, &cut);
        let second = self.straddled(to, &cut);
        let second = second.filter(|second| Some(*second) != first);
        let mut needed = 0;
        for leaf in [first, second].into_iter().flatten() {
            self.check_split(&leaf, &cut)?;
            needed += self.tables_for(&leaf, &cut);
        }
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        for leaf in [first, second].into_iter().flatten() {
            self.split(&leaf, &cut).ok_or(exhausted)?;
        }
        Ok(())
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
        changes.then_some(Straddled {
            table,
            level,
            start,
            bytes,
            contiguous,
        })
    }

    /// Whether `change` alters `entry`.
    fn changes(entry: Descriptor, change: BitChange) -> bool {
        change.concerns(entry) && change.apply(entry) != entry
    }

    /// Checks that the rules allow splitting this leaf at each edge inside it.
    fn check_split(&self, leaf: &Straddled, cut: &Cut) -> Result<(), TableError> {
        if self.liveness == Liveness::Private {
            return Ok(());
        }
        let end = leaf.start + leaf.bytes;
        for edge in [cut.from, cut.to] {
            if edge <= leaf.start || edge >= end {
                continue;
            }
            let cut_entry = self.cut_entry(leaf, edge, cut.change);
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
        let inside = edge > leaf.start && edge < leaf.start + leaf.bytes && edge != start;
        let cut = inside
            && Self::changes(
                self.load(leaf.table, Self::index(start, leaf.level)),
                change,
            );
        cut.then_some(start)
    }

    /// The first offsets of the entries of `leaf` that must become tables.
    fn cut_entries(&self, leaf: &Straddled, cut: &Cut) -> [Option<u64>; 2] {
        let first = self.cut_entry(leaf, cut.from, cut.change);
        let second = self.cut_entry(leaf, cut.to, cut.change);
        [first, second.filter(|second| Some(*second) != first)]
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
        for start in self.cut_entries(leaf, cut).into_iter().flatten() {
            let parts = self.parts(leaf, start, cut);
            let mut cursor = Cursor::<P, S>::over_parts(&parts, self.geometry);
            let end = start + P::SIZE.entry_bytes(leaf.level);
            needed += cursor.tables_in_new(leaf.level.next(), end);
        }
        needed
    }

    /// Splits one leaf. `None` means that the allocator broke its promise; every address then still
    /// translates as before.
    fn split(&mut self, leaf: &Straddled, cut: &Cut) -> Option<()> {
        // Find the entries before the hints are cleared and before one of two entries is a table.
        let cut_entries = self.cut_entries(leaf, cut);
        if leaf.contiguous {
            let first = Self::index(leaf.start, leaf.level);
            let count = P::SIZE.contiguous_entries(leaf.level);
            let change = BitChange {
                of: BitChange::LEAVES,
                clear: Descriptor::CONTIGUOUS,
                set: 0,
            };
            self.update(leaf.table, first, count, change);
        }
        for start in cut_entries.into_iter().flatten() {
            let parts = self.parts(leaf, start, cut);
            let mut cursor = Cursor::<P, S>::over_parts(&parts, self.geometry);
            let end = start + P::SIZE.entry_bytes(leaf.level);
            let table = self.environment.allocate(1)?.first;
            self.build(&mut cursor, table, leaf.level.next(), end)?;
            let descriptor = Descriptor::table(&self.geometry, table);
            let index = Self::index(start, leaf.level);
            self.store(leaf.table, index, descriptor, self.linking());
            self.pending.split();
        }
        Some(())
    }
}
