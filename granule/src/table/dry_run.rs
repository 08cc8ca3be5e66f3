//! What an operation would do, without doing it: its error, or its cost.
//!
//! Errors and tables come from the first pass that the operation itself makes. The other counts
//! follow its second pass over the same entries, in [`cost`](super::cost). Nothing here stores, allocates or
//! issues an instruction.

use super::change_attributes::{AttributeChange, dirty_bits};
use super::cost::{Cost, DryRun, LeafRun, Run};
use super::frames::Frames;
use super::piece::{Leaves, Piece};
use super::plan::Cursor;
use super::present_invalid::{SET_INVALID, SET_VALID};
use super::protect::{Holes, PermissionChange};
use super::unmap::CLEAR;
use super::{BitChange, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::Change;
use crate::arch::page_size::Page;
use crate::arch::{Attributes, PhysicalAddress, VirtualAddress};

impl<P: Page, E: TableEnvironment> PageTables<P, E> {
    /// The operations of this tree, to ask what each would do.
    pub const fn dry_run(&self) -> DryRun<'_, P, E> {
        DryRun(self)
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

    /// The cost, with the flush at the end.
    fn flushed(&self, mut run: Run) -> Cost {
        self.flush(&mut run, false);
        run.cost
    }
}
