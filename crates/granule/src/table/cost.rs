//! Counting what the second pass of each operation does. The entries are those of the tree before
//! the operation, so a leaf that an edge splits counts as the leaves that it becomes.

use super::pending::Pending;
use super::plan::Cursor;
use super::split::{Cut, Straddled};
use super::stage::{Stage, Stage1};
use super::{BitChange, Leaves, Liveness, PageTables, TableEnvironment, TableError, TlbOps, flush};
use crate::arch::page_size::{Level, Page};
use crate::arch::tlbi::{TlbCapabilities, TlbiOp};
use crate::arch::{Descriptor, Kind, PhysicalAddress, Regime};

/// What an operation costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cost {
    /// The tables that it needs: those it reserves and links.
    pub tables: u64,
    /// The tables that it frees.
    pub freed: u64,
    /// Its stores of descriptors.
    pub stores: u64,
    /// Its TLBI instructions.
    pub tlbi: u64,
    /// Its DSBs.
    pub dsb: u64,
    /// Its ISBs.
    pub isb: u64,
}

/// The operations of a tree, none of which changes anything: [`PageTables::dry_run`].
///
/// Each method has the arguments of the operation of its name. It returns the error that the
/// operation would return, or its cost. The allocator is not asked, so the error is never
/// [`TableError::OutOfTables`]. On live tables hardware may still update entries before the real
/// operation, which can save it a step.
#[derive(Debug)]
pub struct DryRun<'t, P: Page, E, S: Stage = Stage1>(pub(super) &'t PageTables<P, E, S>);

/// The state of a dry run.
pub(super) struct Run {
    pub(super) cost: Cost,
    pub(super) pending: Pending,
    /// The leaves that the edges of the range split.
    split: [Option<Straddled>; 2],
}

impl Run {
    pub(super) const NEW: Self = Self {
        cost: Cost {
            tables: 0,
            freed: 0,
            stores: 0,
            tlbi: 0,
            dsb: 0,
            isb: 0,
        },
        pending: Pending::NOTHING,
        split: [None; 2],
    };

    /// Whether the entry that begins at `start` becomes a table.
    fn is_cut(&self, start: u64) -> bool {
        let mut leaves = self.split.iter().flatten();
        leaves.any(|leaf| leaf.cut_entries().any(|cut| cut == start))
    }
}

/// Counts instructions and issues none.
struct Counting<'r> {
    can: &'r TlbCapabilities,
    cost: &'r mut Cost,
}

impl TlbOps for Counting<'_> {
    fn capabilities(&self) -> &TlbCapabilities {
        self.can
    }
    fn dsb_ishst(&mut self) {
        self.cost.dsb += 1;
    }
    fn dsb_ish(&mut self) {
        self.cost.dsb += 1;
    }
    fn isb(&mut self) {
        self.cost.isb += 1;
    }
    fn tlbi(&mut self, _regime: Regime, _op: TlbiOp) {
        self.cost.tlbi += 1;
    }
}

/// Leaves of one level that follow each other between two offsets.
#[derive(Clone, Copy)]
pub(super) struct LeafRun {
    pub(super) level: Level,
    pub(super) from: u64,
    pub(super) to: u64,
    /// The entry that they are, or are parts of, and its level.
    pub(super) entry: Descriptor,
    pub(super) entry_level: Level,
}

impl<P: Page, E: TableEnvironment, S: Stage> DryRun<'_, P, E, S> {
    /// The stores into existing tables of a map. Every entry of a new table is stored once.
    pub(super) fn stores_in(
        &self,
        cursor: &mut Cursor<'_, P, S>,
        table: PhysicalAddress,
        level: Level,
        end: u64,
    ) -> u64 {
        let bytes = P::SIZE.entry_bytes(level);
        let mut stores = 0;
        while cursor.at < end {
            let at = cursor.at;
            if level.is_last() {
                let to = cursor.to.min(end);
                stores += (to - at) >> P::SIZE.shift();
                cursor.done_to(to);
                continue;
            }
            let entry_end = (at & !(bytes - 1)) + bytes;
            let entry = self.entry(table, at, level);
            if entry.is_table(level) {
                let below = self.0.geometry.address_of(entry, level);
                stores += self.stores_in(cursor, below, level.next(), entry_end);
            } else {
                stores += 1;
                while cursor.at < entry_end {
                    cursor.done_to(cursor.to.min(entry_end));
                }
            }
        }
        stores
    }

    fn entry(&self, table: PhysicalAddress, offset: u64, level: Level) -> Descriptor {
        self.0
            .load(table, PageTables::<P, E, S>::index(offset, level))
    }

    /// New tables: every entry of each is stored once.
    pub(super) fn add_tables(&self, run: &mut Run, tables: usize) {
        run.cost.tables += tables as u64;
        run.cost.stores += (tables * P::SIZE.entries()) as u64;
    }

    /// The split at the edges of a change.
    pub(super) fn split(
        &self,
        run: &mut Run,
        from: u64,
        to: u64,
        change: BitChange,
    ) -> Result<(), TableError> {
        let cut = Cut { from, to, change };
        let (leaves, needed) = self.0.plan_split(&cut)?;
        self.add_tables(run, needed);
        for leaf in leaves.iter().flatten().filter(|leaf| leaf.contiguous) {
            self.clear_hint(run, leaf.table, leaf.level, leaf.start);
        }
        for leaf in leaves.iter().flatten() {
            for start in leaf.cut_entries() {
                run.cost.stores += 1;
                if self.0.liveness == Liveness::Live {
                    let old = self.entry(leaf.table, start, leaf.level);
                    cut.made_table::<P>(&mut run.pending, old, leaf.level, start);
                }
            }
        }
        run.split = leaves;
        Ok(())
    }

    /// Clearing the hint of the group at offset `start`.
    fn clear_hint(&self, run: &mut Run, table: PhysicalAddress, level: Level, start: u64) {
        let tables = self.0;
        let first = PageTables::<P, E, S>::index(start, level);
        let count = P::SIZE.contiguous_entries(level);
        run.cost.stores += count as u64;
        if tables.may_be_updated(table, first, count) {
            let entry = P::SIZE.entry_bytes(level);
            let end = start + entry * count as u64;
            run.pending.entries(start, end, entry);
            self.flush(run, true);
        }
        let gathering = tables.gathering(table, first, count);
        for index in first..first + count {
            let member = tables.load(table, index);
            if gathering(member).apply(member) != member {
                run.cost.stores += 1;
                if member.is_valid() {
                    run.pending.made_valid();
                }
            }
        }
    }

    /// Calls `found` for the whole leaves between two offsets, as they are after the split.
    pub(super) fn all_leaves(
        &self,
        run: &mut Run,
        from: u64,
        to: u64,
        found: &mut dyn FnMut(&mut Run, LeafRun),
    ) {
        let level = self.0.geometry.start_level();
        for (root, from, to) in self.0.roots(from, to) {
            self.leaves(run, root, level, from, to, found);
        }
    }

    /// As [`all_leaves`](Self::all_leaves), in one table.
    fn leaves(
        &self,
        run: &mut Run,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        found: &mut dyn FnMut(&mut Run, LeafRun),
    ) {
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            let start = at & !(bytes - 1);
            let next = to.min(start + bytes);
            let entry = self.entry(table, at, level);
            match entry.kind(&self.0.geometry, level) {
                Kind::Table => {
                    let below = self.0.geometry.address_of(entry, level);
                    self.leaves(run, below, level.next(), at, next, found);
                }
                Kind::Leaf | Kind::PresentInvalid => {
                    let leaves = LeafRun {
                        level,
                        from: at,
                        to: next,
                        entry: self.gathered(run, table, start, level, entry),
                        entry_level: level,
                    };
                    if next - at == bytes {
                        found(run, leaves);
                    } else if run.is_cut(start) {
                        Self::parts(run, level.next(), leaves, found);
                    }
                }
                Kind::Invalid => {}
            }
            at = next;
        }
    }

    /// The entry after its group was split.
    fn gathered(
        &self,
        run: &Run,
        table: PhysicalAddress,
        start: u64,
        level: Level,
        entry: Descriptor,
    ) -> Descriptor {
        let count = P::SIZE.contiguous_entries(level);
        let index = PageTables::<P, E, S>::index(start, level);
        let first = index & !(count - 1);
        let mut split = run.split.iter().flatten();
        let group = split.any(|leaf| {
            let leaf_first = PageTables::<P, E, S>::index(leaf.start, level);
            leaf.contiguous && leaf.table == table && leaf_first == first
        });
        if group {
            self.0.gathering(table, first, count)(entry).apply(entry)
        } else {
            entry
        }
    }

    /// Calls `found` for the leaves of a part of a split leaf: the largest of `level` and below.
    fn parts(run: &mut Run, level: Level, part: LeafRun, found: &mut dyn FnMut(&mut Run, LeafRun)) {
        let mask = P::SIZE.entry_bytes(level) - 1;
        let from = (part.from + mask) & !mask;
        let to = part.to & !mask;
        if from < to {
            let whole = LeafRun {
                level,
                from,
                to,
                ..part
            };
            found(run, whole);
        }
        let ends = if from < to {
            [(part.from, from), (to, part.to)]
        } else if from == to {
            [(part.from, from), (from, part.to)]
        } else {
            // Inside one entry.
            [(part.from, part.to), (part.to, part.to)]
        };
        for (from, to) in ends {
            if from < to {
                Self::parts(run, level.next(), LeafRun { from, to, ..part }, found);
            }
        }
    }

    /// Unmapping between two offsets of `table`. Returns whether an entry there is still in use.
    pub(super) fn unmap_in(
        &self,
        run: &mut Run,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
    ) -> bool {
        let tables = self.0;
        let bytes = P::SIZE.entry_bytes(level);
        if level.is_last() {
            let mut index = PageTables::<P, E, S>::index(from, level);
            let end = index + ((to - from) >> P::SIZE.shift()) as usize;
            let mut mapped = 0;
            while let Some(found) = tables.next_mapped(table, index, end) {
                mapped += 1;
                index = found + 1;
            }
            if mapped > 0 {
                run.cost.stores += mapped;
                run.pending.leaves(from, to, level, bytes);
            }
            return false;
        }
        let mut in_use = false;
        let mut at = from;
        while at < to {
            let start = at & !(bytes - 1);
            let next = to.min(start + bytes);
            let entry = self.entry(table, at, level);
            match entry.kind(&tables.geometry, level) {
                Kind::Invalid => {}
                Kind::Leaf | Kind::PresentInvalid if next - at == bytes => {
                    run.cost.stores += 1;
                    if entry.is_valid() {
                        run.pending.leaves(at, next, level, bytes);
                    }
                }
                Kind::Leaf | Kind::PresentInvalid => {
                    // The leaf is a table by then, and the part outside the range stays.
                    in_use = true;
                    let part = LeafRun {
                        level,
                        from: at,
                        to: next,
                        entry,
                        entry_level: level,
                    };
                    Self::parts(run, level.next(), part, &mut |run, leaves| {
                        let LeafRun {
                            level, from, to, ..
                        } = leaves;
                        let bytes = P::SIZE.entry_bytes(level);
                        run.cost.stores += (to - from) / bytes;
                        if entry.is_valid() || level.is_last() {
                            run.pending.leaves(from, to, level, bytes);
                        }
                    });
                }
                Kind::Table => {
                    let below = tables.geometry.address_of(entry, level);
                    if next - at == bytes {
                        run.cost.stores += 1;
                        self.unlink(run, below, level.next(), at, bytes);
                    } else {
                        let inside = self.unmap_in(run, below, level.next(), at, next);
                        if inside || self.is_used_outside(below, level.next(), at, next) {
                            in_use = true;
                        } else {
                            run.cost.stores += 1;
                            self.chain(run, bytes);
                        }
                    }
                }
            }
            at = next;
        }
        in_use
    }

    /// Whether a table has an entry in use outside two offsets.
    fn is_used_outside(&self, table: PhysicalAddress, level: Level, from: u64, to: u64) -> bool {
        let first = PageTables::<P, E, S>::index(from, level);
        let behind = PageTables::<P, E, S>::index(to - 1, level) + 1;
        let rest = P::SIZE.entries() - behind;
        self.0.find_mapped(table, 0, first).is_some()
            || self.0.find_mapped(table, behind, rest).is_some()
    }

    /// Unlinking a table and all tables below it.
    fn unlink(&self, run: &mut Run, table: PhysicalAddress, level: Level, offset: u64, span: u64) {
        let bytes = P::SIZE.entry_bytes(level);
        if level.is_last() {
            run.pending.leaves(offset, offset + span, level, bytes);
        } else {
            for at in (offset..offset + span).step_by(bytes as usize) {
                let entry = self.entry(table, at, level);
                match entry.kind(&self.0.geometry, level) {
                    Kind::Leaf => run.pending.leaves(at, at + bytes, level, bytes),
                    Kind::Table => {
                        let below = self.0.geometry.address_of(entry, level);
                        self.unlink(run, below, level.next(), at, bytes);
                    }
                    Kind::Invalid | Kind::PresentInvalid => {}
                }
            }
        }
        self.chain(run, span);
    }

    /// One table is unlinked, and waits in the chain.
    fn chain(&self, run: &mut Run, span: u64) {
        run.cost.stores += 1;
        run.cost.freed += 1;
        run.pending.unlinked(span);
    }

    /// Splitting the leaves that are too large.
    pub(super) fn limit_in(
        &self,
        run: &mut Run,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        leaves: Leaves,
    ) {
        let tables = self.0;
        let bytes = P::SIZE.entry_bytes(level);
        let group = bytes * P::SIZE.contiguous_entries(level) as u64;
        let mut at = from;
        while at < to {
            let start = at & !(bytes - 1);
            let next = to.min(start + bytes);
            let entry = self.entry(table, at, level);
            match entry.kind(&tables.geometry, level) {
                Kind::Table => {
                    let below = tables.geometry.address_of(entry, level);
                    self.limit_in(run, below, level.next(), at, next, leaves);
                }
                Kind::Leaf | Kind::PresentInvalid
                    if PageTables::<P, E, S>::too_large(entry, level, leaves) =>
                {
                    let group_start = start & !(group - 1);
                    // The hint goes with the first member in the range.
                    if entry.is_contiguous() && (start == group_start || at == from) {
                        self.clear_hint(run, table, level, group_start);
                        if entry.is_valid() {
                            let end = group_start + group;
                            run.pending.entries(group_start, end, bytes);
                        }
                    }
                    if level < leaves.top {
                        run.cost.stores += 1;
                        run.pending.split();
                        if entry.is_valid() {
                            run.pending.entries(start, start + bytes, bytes);
                        }
                    }
                }
                Kind::Invalid | Kind::Leaf | Kind::PresentInvalid => {}
            }
            at = next;
        }
    }

    /// The barriers and TLBIs for the changes so far. `now`: they are not left to the caller.
    pub(super) fn flush(&self, run: &mut Run, now: bool) {
        let tables = self.0;
        let pending = core::mem::replace(&mut run.pending, Pending::NOTHING);
        if tables.liveness == Liveness::Live {
            if pending.is_stale() && (now || !tables.defers(&pending)) {
                let what = tables.invalidation(&pending);
                flush::invalidate(&mut self.counting(run), &tables.geometry, &what);
            } else if pending.is_stale() || pending.has_new() {
                flush::publish(&mut self.counting(run));
            }
        }
        pending.flushed();
    }

    /// The instructions of this tree, counted.
    fn counting<'r>(&'r self, run: &'r mut Run) -> Counting<'r> {
        Counting {
            can: self.0.environment.capabilities(),
            cost: &mut run.cost,
        }
    }
}
