//! Merging leaves into blocks and contiguous groups, for example after a split.
//!
//! A table becomes a block if its entries are leaves with consecutive outputs and the same
//! attributes. The entries of a whole, aligned group get the contiguous hint. Both change only the
//! size, under the same rules as splitting. The invalidation uses the size of the small leaves as
//! its stride: stale small entries translate alike, but the next change of the block invalidates
//! only one address and would miss them. An unlinked table is [kept](super::pending::Kept)
//! unchanged until the invalidation.
//!
//! Groups are folded after the tables, and only in tables that remain: a table that becomes a block never
//! needs the hint. A merge stores nothing to a table that it unlinked, because its mappings stay valid and
//! CPUs may still walk it; so unlinked tables wait in a list, up to 32 for one invalidation, and not in the
//! chain that unmapping threads through them.

use super::pending::Kept;
use super::piece::Leaves;
use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{BitChange, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::{BbmLevel, Change, classify};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, Kind, PhysicalAddress};

/// The result of a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Merged {
    /// The number of freed tables.
    pub tables: u64,
    /// The number of new contiguous groups.
    pub groups: u64,
}

/// The state of a merge.
struct Merging {
    /// The largest leaves to make.
    leaves: Leaves,
    merged: Merged,
    kept: Kept,
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Merges like leaves in `bytes` bytes from `start`, into leaves no larger than `leaves`
    /// allows. A block or group that would extend across an end of the range is not made.
    /// Present-invalid leaves stay as they are, and so do leaves of live tables that hardware may
    /// update (no access flag, or writable and clean).
    ///
    /// The merge uses no break-before-make, so an access never faults. On live tables blocks
    /// therefore need CPUs with level 2 of FEAT_BBM ([`set_bbm`](Self::set_bbm)). At level 1 only
    /// groups get their hint, and at level 0 nothing changes.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace).
    pub fn merge(
        &mut self,
        start: S::Input,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Merged, TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        let nothing = self.liveness == Liveness::Live && self.bbm == BbmLevel::Level0;
        if from == to || nothing {
            return Ok(Merged::default());
        }
        let mut merging = Merging {
            leaves,
            merged: Merged::default(),
            kept: Kept::NONE,
        };
        let mut at = from;
        while at < to {
            let place = self.place(at);
            let (table, level) = (place.slot.table, place.level);
            at = self.tables_from(&place, at, to);
            self.merge_upward(table, level, (from, at, to), &mut merging);
        }
        self.flush().free_kept(&mut merging.kept);
        Ok(merging.merged)
    }

    /// The end, at most `to`, of the entries of one table from `place` on of which none leads to a
    /// table.
    fn tables_from(&self, place: &Place, at: u64, to: u64) -> u64 {
        let Place { slot, level, .. } = *place;
        let end = self.table_end(at, level, to);
        if level.is_last() {
            return end;
        }
        let (first, last) = (self.index(at, level), self.index(end - 1, level));
        let is_table = |index: &usize| self.load(slot.table, *index).is_table(level);
        match (first..=last).find(is_table) {
            None => end,
            Some(table) if table == first => at,
            Some(table) => self.behind(at, level, table - first),
        }
    }

    /// Merges a table whose entries up to `at` were looked at, if the whole range is done with it,
    /// and then the table above it: smallest leaves first. A table that stays gets its groups, when
    /// its entries do not change any more. A table that becomes a block needs no groups.
    #[inline(never)]
    fn merge_upward(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        (from, at, to): (u64, u64, u64),
        merging: &mut Merging,
    ) {
        let (mut table, mut level) = (table, level);
        loop {
            let bytes = self.size().entry_bytes(level) << self.size().index_bits();
            let start = (at - 1) & !(bytes - 1);
            let end = start + bytes;
            if at != to && at != end {
                return;
            }
            let is_root = level == self.geometry.start_level();
            let is_whole = from <= start && at == end;
            let above = level.above();
            let wanted = !is_root
                && is_whole
                && above >= merging.leaves.top
                && self.geometry.leaf_allowed(above);
            let link = self.place_to(at - 1, level.above()).slot;
            if !(wanted && self.merge_table(link, above, start, table, merging)) {
                self.merge_groups(table, level, from.max(start), at, merging);
            }
            if is_root {
                return;
            }
            (table, level) = (link.table, above);
        }
    }

    /// Replaces `child` by a block at `slot`, if its entries are alike and the rules allow it.
    fn merge_table(
        &mut self,
        slot: Slot,
        level: Level,
        offset: u64,
        child: PhysicalAddress,
        merging: &mut Merging,
    ) -> bool {
        let below = level.next();
        let bytes = self.size().entry_bytes(level);
        let old = self.load(slot.table, slot.index);
        let first = self.load(child, 0);
        let output = self.geometry.address_of(first, below);
        let bits = self.geometry.attribute_bits(first, below);
        let block = Descriptor::leaf(&self.geometry, level, output, bits);
        if old.0 & Descriptor::RESTRICTIONS != 0
            || output.0 & (bytes - 1) != 0
            || !self.allows(level, old, block)
            || !self.alike(child, below, 0, self.size().entries(), first)
        {
            return false;
        }
        self.store(slot.table, slot.index, block, self.visibility());
        let small = self.size().entry_bytes(below);
        self.pending.entries(offset, offset + bytes, small);
        self.pending.unlinked(small);
        merging.merged.tables += 1;
        if merging.kept.keep(child) {
            self.flush().free_kept(&mut merging.kept);
        }
        true
    }

    /// Sets the contiguous hint on each whole group between the offsets whose entries are alike.
    fn merge_groups(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        merging: &mut Merging,
    ) {
        let group = self.size().contiguous_entries(level);
        let wanted = merging.leaves.contiguous && level >= merging.leaves.top;
        if group <= 1 || !wanted || !self.geometry.leaf_allowed(level) {
            return;
        }
        let entry = self.size().entry_bytes(level);
        let bytes = entry * group as u64;
        let mut at = (from + bytes - 1) & !(bytes - 1);
        let mut next = self.index(at, level);
        while at + bytes <= to {
            let (first, start) = (next, at);
            (next, at) = (first + group, start + bytes);
            let old = self.load(table, first);
            if old.is_contiguous() {
                continue;
            }
            let grouped = Descriptor(old.0 | Descriptor::CONTIGUOUS);
            let output = self.geometry.address_of(old, level);
            if output.0 & (bytes - 1) == 0
                && self.allows(level, old, grouped)
                && self.alike(table, level, first, group, old)
            {
                let of = BitChange::LEAVES;
                let change = BitChange {
                    of,
                    clear: 0,
                    set: Descriptor::CONTIGUOUS,
                };
                self.update(table, first, group, change);
                self.pending.entries(start, at, entry);
                merging.merged.groups += 1;
            }
        }
    }

    fn allows(&self, level: Level, old: Descriptor, new: Descriptor) -> bool {
        self.liveness == Liveness::Private
            || matches!(
                classify(&self.geometry, level, old, new, self.bbm),
                Change::StoreResized { .. }
            )
    }

    /// Whether `count` entries from `first` on are valid leaves with consecutive outputs that
    /// differ from `start`, the first one, only in the contiguous hint. Entries of live tables that
    /// hardware may update are never alike, because a merge would lose the update. Once hardware
    /// may not update an entry, it never may until software changes it. The output of `start` is aligned to
    /// that of all, so that no step carries into a bit that is not an address.
    fn alike(
        &self,
        table: PhysicalAddress,
        level: Level,
        first: usize,
        count: usize,
        start: Descriptor,
    ) -> bool {
        let step = self.size().entry_bytes(level);
        let may_be_updated = self.liveness == Liveness::Live && self.geometry.may_be_updated(start);
        if may_be_updated || start.kind(&self.geometry, level) != Kind::Leaf {
            return false;
        }
        let mut expected = start.0 & !Descriptor::CONTIGUOUS;
        (first..first + count).all(|index| {
            let same = self.load(table, index).0 & !Descriptor::CONTIGUOUS == expected;
            expected += step;
            same
        })
    }
}
