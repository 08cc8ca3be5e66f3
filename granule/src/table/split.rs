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

use super::map::{Cursor, Leaves, Part, Plan};
use super::{BitChange, Environment, Liveness, PageTables, TableError};
use crate::arch::bbm::{BbmLevel, Change, classify};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress};

/// A leaf or contiguous group that an edge lies inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Straddled {
    table: PhysicalAddress,
    level: Level,
    /// The first offset of the leaf or group, and its bytes.
    start: u64,
    bytes: u64,
    contiguous: bool,
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// How far the size of a live leaf may change in place: the least level of FEAT_BBM among
    /// the CPUs that use the tables. Level 0, as tables begin, refuses every split.
    ///
    /// Level 2 is for those who handle a TLB conflict abort, with code and data outside of
    /// anything that is ever split.
    pub const fn set_bbm(&mut self, level: BbmLevel) {
        self.bbm = level;
    }

    /// Makes both ends of the offsets from `from` to `to` boundaries of leaves and groups, for
    /// `change` of what lies between. A leaf that has the change already stays whole. Gives
    /// whether an entry became a table: the old entry may then be cached at its own level.
    pub(super) fn split_edges(
        &mut self,
        from: u64,
        to: u64,
        change: BitChange,
    ) -> Result<bool, TableError> {
        let first = self.straddled(from, change);
        let second = self.straddled(to, change);
        let second = second.filter(|second| Some(*second) != first);
        let mut needed = 0;
        for leaf in [first, second].into_iter().flatten() {
            self.check_split(&leaf, from, to)?;
            needed += self.tables_for(&leaf, from, to);
        }
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        for leaf in [first, second].into_iter().flatten() {
            self.split(&leaf, from, to).ok_or(exhausted)?;
        }
        Ok(needed > 0)
    }

    /// The leaf or group that begins before `edge` and ends behind it, if `change` would not
    /// leave it as it is.
    fn straddled(&self, edge: u64, change: BitChange) -> Option<Straddled> {
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
        let bytes = P::SIZE.entry_bytes(level) * entries as u64;
        let start = edge & !(bytes - 1);
        if start == edge {
            return None;
        }
        // All members are asked: hardware may have updated one of them (RXDPXQ).
        let first = Self::index(start, level);
        let changes = (first..first + entries).any(|index| {
            let entry = self.load(table, index);
            change.concerns(entry) && change.apply(entry) != entry
        });
        changes.then_some(Straddled {
            table,
            level,
            start,
            bytes,
            contiguous,
        })
    }

    /// Whether the rules allow to split this leaf at each of the edges that lie inside it.
    fn check_split(&self, leaf: &Straddled, from: u64, to: u64) -> Result<(), TableError> {
        if self.liveness == Liveness::Private {
            return Ok(());
        }
        let end = leaf.start + leaf.bytes;
        let inside = |edge: &u64| *edge > leaf.start && *edge < end;
        let refused = [from, to]
            .into_iter()
            .filter(inside)
            .find(|edge| !self.may_split(leaf, *edge));
        match refused {
            None => Ok(()),
            Some(edge) => Err(TableError::InsideLeaf {
                edge: self.address(edge),
                leaf: self.address(leaf.start),
                leaf_bytes: leaf.bytes,
            }),
        }
    }

    /// Whether each store that splitting live `leaf` at `edge` takes is one that may change the
    /// entry in place.
    fn may_split(&self, leaf: &Straddled, edge: u64) -> bool {
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
        let cuts_entry = edge & (P::SIZE.entry_bytes(level) - 1) != 0;
        let table = Descriptor::table(&self.geometry, PhysicalAddress(0));
        let cut = self.load(leaf.table, Self::index(edge, level));
        hints && (!cuts_entry || may(ungrouped(cut), table))
    }

    /// The entries of `leaf` that an edge lies strictly inside, by their first offsets: at most
    /// two, of which the second may be the first.
    fn cut_entries(leaf: &Straddled, from: u64, to: u64) -> [Option<u64>; 2] {
        let mask = P::SIZE.entry_bytes(leaf.level) - 1;
        let entry = |edge: u64| {
            let inside = edge > leaf.start && edge < leaf.start + leaf.bytes && edge & mask != 0;
            inside.then_some(edge & !mask)
        };
        let first = entry(from);
        [first, entry(to).filter(|second| Some(*second) != first)]
    }

    /// The parts of the entry at `start` that the edges leave, to be mapped as it is.
    fn parts(&self, leaf: &Straddled, start: u64, from: u64, to: u64) -> [Part; 3] {
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
        let cut = |edge: u64| edge.clamp(start, end);
        [(start, cut(from)), (cut(from), cut(to)), (cut(to), end)].map(|(from, to)| Part {
            from,
            to,
            plan,
        })
    }

    fn tables_for(&self, leaf: &Straddled, from: u64, to: u64) -> usize {
        let mut needed = 0;
        for start in Self::cut_entries(leaf, from, to).into_iter().flatten() {
            let parts = self.parts(leaf, start, from, to);
            let mut cursor = Cursor::<P>::over_parts(&parts, self.geometry);
            let end = start + P::SIZE.entry_bytes(leaf.level);
            needed += cursor.tables_in_new(leaf.level.next(), end);
        }
        needed
    }

    fn split(&mut self, leaf: &Straddled, from: u64, to: u64) -> Option<()> {
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
        for start in Self::cut_entries(leaf, from, to).into_iter().flatten() {
            let parts = self.parts(leaf, start, from, to);
            let mut cursor = Cursor::<P>::over_parts(&parts, self.geometry);
            let end = start + P::SIZE.entry_bytes(leaf.level);
            let table = self.environment.allocate(1)?.first;
            self.build(&mut cursor, table, leaf.level.next(), end)?;
            let descriptor = Descriptor::table(&self.geometry, table);
            let index = Self::index(start, leaf.level);
            self.store(leaf.table, index, descriptor, self.linking());
        }
        Some(())
    }
}
