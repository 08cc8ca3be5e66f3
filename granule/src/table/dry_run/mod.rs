//! What an operation would do, without doing it: its error, or its cost.
//!
//! Errors and tables come from the first pass that the operation itself makes. The other counts
//! follow its second pass over the same entries, in [`count`]. Nothing here stores, allocates or
//! issues an instruction.

mod count;

use crate::arch::bbm::Change;
use crate::arch::page_size::Page;
use crate::arch::tlbi;
use crate::arch::{Attributes, PhysicalAddress, VirtualAddress};
use crate::table::change_attributes::{AttributeChange, dirty_bits};
use crate::table::frames::Frames;
use crate::table::pending::Pending;
use crate::table::piece::{Leaves, Piece};
use crate::table::plan::Cursor;
use crate::table::present_invalid::{SET_INVALID, SET_VALID};
use crate::table::protect::{Holes, PermissionChange};
use crate::table::split::Straddled;
use crate::table::unmap::CLEAR;
use crate::table::{BitChange, Liveness, PageTables, TableEnvironment, TableError};
use count::LeafRun;

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
pub struct DryRun<'t, P: Page, E>(&'t PageTables<P, E>);

impl<P: Page, E: TableEnvironment> PageTables<P, E> {
    /// The operations of this tree, to ask what each would do.
    pub const fn dry_run(&self) -> DryRun<'_, P, E> {
        DryRun(self)
    }
}

/// The state of a dry run.
struct Run {
    cost: Cost,
    pending: Pending,
    /// The leaves that the edges of the range split.
    split: [Option<Straddled>; 2],
}

impl Run {
    const NEW: Self = Self {
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

impl<P: Page, E: TableEnvironment> DryRun<'_, P, E> {
    /// [`PageTables::map`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn map(
        &self,
        start: VirtualAddress,
        output: PhysicalAddress,
        bytes: u64,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Result<Cost, TableError> {
        self.map_pieces(&[Piece {
            start,
            output,
            bytes,
            attributes,
            leaves,
        }])
    }

    /// [`PageTables::map_pieces`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn map_pieces(&self, pieces: &[Piece]) -> Result<Cost, TableError> {
        self.0.check_pieces(pieces)?;
        let geometry = self.0.geometry;
        self.map_cursor(Cursor::new(pieces, geometry, (0, geometry.span())))
    }

    /// [`PageTables::map_frames`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn map_frames(
        &self,
        start: VirtualAddress,
        frames: Frames<'_>,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Result<Cost, TableError> {
        self.map_cursor(self.0.over_frames(start, frames, attributes, leaves)?)
    }

    /// [`PageTables::unmap`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn unmap(&self, start: VirtualAddress, bytes: u64) -> Result<Cost, TableError> {
        let tables = self.0;
        let (from, to) = tables.offsets(start, bytes)?;
        let mut run = Run::NEW;
        if from < to {
            self.split(&mut run, from, to, CLEAR)?;
            let level = tables.geometry.start_level();
            self.unmap_in(&mut run, tables.root, level, from, to);
            if run.pending.has_unlinked() {
                run.pending.range(from, to);
            }
        }
        Ok(self.flushed(run))
    }

    /// [`PageTables::protect`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn protect(
        &self,
        start: VirtualAddress,
        bytes: u64,
        change: PermissionChange,
        holes: Holes,
    ) -> Result<Cost, TableError> {
        let change = change.bits(self.0.geometry.regime());
        self.change(start, bytes, change, holes)
    }

    /// [`PageTables::change_attributes`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn change_attributes(
        &self,
        start: VirtualAddress,
        bytes: u64,
        change: AttributeChange,
        holes: Holes,
    ) -> Result<Cost, TableError> {
        self.change(start, bytes, change.bits(&self.0.geometry), holes)
    }

    /// [`PageTables::set_dirty`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn set_dirty(
        &self,
        start: VirtualAddress,
        bytes: u64,
        dirty: bool,
        holes: Holes,
    ) -> Result<Cost, TableError> {
        self.change(start, bytes, dirty_bits(dirty), holes)
    }

    /// [`PageTables::set_invalid`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn set_invalid(&self, start: VirtualAddress, bytes: u64) -> Result<Cost, TableError> {
        self.change(start, bytes, SET_INVALID, Holes::Refuse)
    }

    /// [`PageTables::set_valid`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn set_valid(&self, start: VirtualAddress, bytes: u64) -> Result<Cost, TableError> {
        self.change(start, bytes, SET_VALID, Holes::Refuse)
    }

    /// [`PageTables::limit_leaves`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn limit_leaves(
        &self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Cost, TableError> {
        let tables = self.0;
        let (from, to) = tables.offsets(start, bytes)?;
        let level = tables.geometry.start_level();
        let needed = tables.tables_to_limit(tables.root, level, from, to, leaves)?;
        let mut run = Run::NEW;
        self.add_tables(&mut run, needed);
        self.limit_in(&mut run, tables.root, level, from, to, leaves);
        Ok(self.flushed(run))
    }

    fn map_cursor(&self, cursor: Cursor<'_, P>) -> Result<Cost, TableError> {
        let tables = self.0;
        let (root, level) = (tables.root, tables.geometry.start_level());
        let end = tables.geometry.span();
        let needed = tables.missing(&mut cursor.clone(), root, level, end)?;
        let mut run = Run::NEW;
        self.add_tables(&mut run, needed);
        run.cost.stores += self.stores_in(&mut { cursor }, root, level, end);
        run.pending.made_valid();
        Ok(self.flushed(run))
    }

    fn change(
        &self,
        start: VirtualAddress,
        bytes: u64,
        change: BitChange,
        holes: Holes,
    ) -> Result<Cost, TableError> {
        let tables = self.0;
        let (from, to) = tables.offsets(start, bytes)?;
        let (root, level) = (tables.root, tables.geometry.start_level());
        let mut run = Run::NEW;
        if from == to || change.clear | change.set == 0 {
            return Ok(self.flushed(run));
        }
        if holes == Holes::Refuse {
            tables.check_mapped(root, level, from, to)?;
        }
        self.split(&mut run, from, to, change)?;
        if tables.one_by_one(change) {
            let mut broken = false;
            self.leaves(&mut run, root, level, from, to, &mut |run, leaves| {
                let LeafRun {
                    level, from, to, ..
                } = leaves;
                let entry = P::SIZE.entry_bytes(level);
                let count = (to - from) / entry;
                match tables.way(leaves.entry_level, leaves.entry, change) {
                    Change::Nothing => {}
                    Change::Store => {
                        run.cost.stores += count;
                        if leaves.entry.is_valid() {
                            run.pending.made_valid();
                        }
                    }
                    Change::BreakBeforeMake => {
                        run.cost.stores += 2 * count;
                        run.pending.leaves(from, to, level, entry);
                        broken = true;
                    }
                    Change::StoreThenInvalidate | Change::StoreResized { .. } => {
                        run.cost.stores += count;
                        run.pending.leaves(from, to, level, entry);
                    }
                }
            });
            if broken {
                self.flush(&mut run, true);
                run.pending.made_valid();
            }
        } else {
            self.leaves(&mut run, root, level, from, to, &mut |run, leaves| {
                if change.concerns(leaves.entry) {
                    let entry = P::SIZE.entry_bytes(leaves.level);
                    run.cost.stores += (leaves.to - leaves.from) / entry;
                    run.pending.changed(change, entry);
                }
            });
            run.pending.within(from, to);
        }
        Ok(self.flushed(run))
    }

    /// The barriers and TLBIs for the changes so far. `now`: they are not left to the caller.
    fn flush(&self, run: &mut Run, now: bool) {
        let tables = self.0;
        let pending = core::mem::replace(&mut run.pending, Pending::NOTHING);
        if tables.liveness == Liveness::Live {
            if pending.is_stale() && (now || !tables.defers(&pending)) {
                let can = tables.environment.capabilities();
                let what = tables.invalidation(&pending);
                let mut operations = 0;
                tlbi::plan(&what, &tables.geometry, can, |_| operations += 1);
                let rounds = 1 + u64::from(can.repeat);
                run.cost.tlbi += operations * rounds;
                run.cost.dsb += 1 + rounds;
                run.cost.isb += 1;
            } else if pending.is_stale() || pending.has_new() {
                run.cost.dsb += 1;
                run.cost.isb += 1;
            }
        }
        pending.flushed();
    }

    /// The cost, with the flush at the end.
    fn flushed(&self, mut run: Run) -> Cost {
        self.flush(&mut run, false);
        run.cost
    }
}
