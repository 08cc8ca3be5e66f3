//! Splitting leaves where a change begins or ends inside one.
//!
//! Only at the two edges of a range, both under one reservation: a block becomes a table of the
//! largest leaves that the edges leave, and a contiguous group loses its hint. Nothing is split
//! where the edge is already a boundary. The new table is private until one store links it, and
//! it translates every address as the block did, permissions included: only the size changes in
//! that store (RPVTFW). No TLBI follows: a stale larger entry translates alike, and the
//! invalidation of the change that the split was made for reaches it, since it lies inside.
//!
//! On live tables the CPUs' level of FEAT_BBM must allow it; without, the range is refused. A
//! hidden leaf is invalid, so nothing of it is cached and any CPU allows it.
//!
//! A contiguous group is taken to be whole, as everything here leaves it: the hint on all of its
//! entries, all of them valid or all of them hidden.

use super::piece::Leaves;
use super::plan::{Cursor, Part, Plan};
use super::{BitChange, Environment, Liveness, PageTables, TableError};
use crate::arch::bbm::{BbmLevel, Change, classify};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress};

/// A leaf or contiguous group that an end of a range lies inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Straddled {
    table: PhysicalAddress,
    level: Level,
    /// The first offset of the leaf or group, and its bytes.
    start: u64,
    bytes: u64,
    contiguous: bool,
}

/// A change of what lies between two offsets.
#[derive(Clone, Copy)]
struct Cut {
    from: u64,
    to: u64,
    change: BitChange,
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// How far the size of a live leaf may change in place: the least level of FEAT_BBM among
    /// the CPUs that use the tables. With level 0, as tables begin, no valid leaf is split or merged;
    /// with level 1 contiguous groups are, with levels 2 and 3 blocks too. Hidden leaves, and those of
    /// tables that no CPU walks, are at every level.
    ///
    /// With levels 1 and 2 a CPU may take a TLB conflict abort on any access to what was split or
    /// merged, for as long as it has something of the old size cached: a split makes no TLBI for the
    /// size alone, and a merge makes it afterwards. These levels are for those who handle it (TLBI
    /// VMALLE1 and again, RBLRKC), with code, stack and data outside of anything that is ever split. No
    /// CPU with level 3 takes one.
    ///
    /// A leaf that hardware updates by itself (TCR.HA and no access flag, TCR.HD and
    /// [`dirty_modifier`](crate::arch::Permissions::dirty_modifier)) must be split or merged nowhere but
    /// in [`space`](crate::space): what a CPU notes in it meanwhile would be lost (RWLTNL), and what it
    /// notes in one member of a group says nothing of the others once they have no hint (RXDPXQ).
    pub const fn set_bbm(&mut self, level: BbmLevel) {
        self.bbm = level;
    }

    /// Makes both ends of the offsets from `from` to `to` boundaries of leaves and groups, for
    /// `change` of what lies between. A leaf that has the change already stays whole.
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

    /// The leaf or group that begins before `edge` and ends behind it, if the change would not
    /// leave it as it is.
    fn straddled(&self, edge: u64, cut: &Cut) -> Option<Straddled> {
        if edge >= self.geometry.span() {
            return None;
        }
        let found = self.walk(edge);
        if !matches!(found.kind, Kind::Leaf | Kind::Hidden) {
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
        // Every member that the range has a part of is asked: hardware may have updated one of
        // them (RXDPXQ).
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

    /// Whether `entry` would be another one after `change`.
    fn changes(entry: Descriptor, change: BitChange) -> bool {
        change.concerns(entry) && change.apply(entry) != entry
    }

    /// Whether the rules allow to split this leaf at each of the ends that lie inside it.
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

    /// Whether each store that splitting live `leaf` takes, and the one entry of it at `cut`, is
    /// one that may change the entry in place.
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
    /// strictly inside it and one side of it changes.
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

    /// The entries of `leaf` that must become tables, by their first offsets.
    fn cut_entries(&self, leaf: &Straddled, cut: &Cut) -> [Option<u64>; 2] {
        let first = self.cut_entry(leaf, cut.from, cut.change);
        let second = self.cut_entry(leaf, cut.to, cut.change);
        [first, second.filter(|second| Some(*second) != first)]
    }

    /// The parts of the entry at `start` that the ends leave, to be mapped as it is.
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
            let mut cursor = Cursor::<P>::over_parts(&parts, self.geometry);
            let end = start + P::SIZE.entry_bytes(leaf.level);
            needed += cursor.tables_in_new(leaf.level.next(), end);
        }
        needed
    }

    /// `None` only if the allocator breaks its word; every address translates as before then.
    fn split(&mut self, leaf: &Straddled, cut: &Cut) -> Option<()> {
        // Asked before the hints go, and before one of two entries is a table.
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
            let mut cursor = Cursor::<P>::over_parts(&parts, self.geometry);
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
