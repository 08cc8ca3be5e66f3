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
use super::protect::Holes;
use super::stage::Stage;
use super::unmap::CLEAR;
use super::{BitChange, PageTables, TableEnvironment, TableError};
use crate::arch::PhysicalAddress;
use crate::arch::bbm::Change;
use crate::arch::page_size::Page;

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// The operations of this tree, to ask what each would do.
    pub const fn dry_run(&self) -> DryRun<'_, P, E, S> {
        DryRun(self)
    }
}

impl<P: Page, E: TableEnvironment, S: Stage> DryRun<'_, P, E, S> {
    /// [`PageTables::map`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn map(
        &self,
        start: S::Input,
        output: PhysicalAddress,
        bytes: u64,
        attributes: S::Attributes,
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
    pub fn map_pieces(
        &self,
        pieces: &[Piece<S::Input, S::Attributes>],
    ) -> Result<Cost, TableError> {
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
        start: S::Input,
        frames: Frames<'_>,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Result<Cost, TableError> {
        self.map_cursor(self.0.over_frames(start, frames, attributes, leaves)?)
    }

    /// [`PageTables::unmap`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn unmap(&self, start: S::Input, bytes: u64) -> Result<Cost, TableError> {
        let tables = self.0;
        let (from, to) = tables.offsets(start, bytes)?;
        let mut run = Run::NEW;
        if from < to {
            self.split(&mut run, from, to, CLEAR)?;
            let level = tables.geometry.start_level();
            for (root, from, to) in tables.roots(from, to) {
                self.unmap_in(&mut run, root, level, from, to);
            }
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
        start: S::Input,
        bytes: u64,
        change: S::PermissionChange,
        holes: Holes,
    ) -> Result<Cost, TableError> {
        let change = S::bits(change, &self.0.geometry);
        self.change(start, bytes, change, holes)
    }

    /// [`PageTables::change_attributes`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn change_attributes(
        &self,
        start: S::Input,
        bytes: u64,
        change: AttributeChange<S::Memory>,
        holes: Holes,
    ) -> Result<Cost, TableError> {
        self.change(start, bytes, change.bits::<S>(&self.0.geometry), holes)
    }

    /// [`PageTables::set_dirty`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn set_dirty(
        &self,
        start: S::Input,
        bytes: u64,
        dirty: bool,
        holes: Holes,
    ) -> Result<Cost, TableError> {
        self.change(start, bytes, dirty_bits(&self.0.geometry, dirty), holes)
    }

    /// [`PageTables::set_invalid`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn set_invalid(&self, start: S::Input, bytes: u64) -> Result<Cost, TableError> {
        self.change(start, bytes, SET_INVALID, Holes::Refuse)
    }

    /// [`PageTables::set_valid`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn set_valid(&self, start: S::Input, bytes: u64) -> Result<Cost, TableError> {
        self.change(start, bytes, SET_VALID, Holes::Refuse)
    }

    /// [`PageTables::limit_leaves`].
    ///
    /// # Errors
    ///
    /// As for that method, except [`TableError::OutOfTables`].
    pub fn limit_leaves(
        &self,
        start: S::Input,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Cost, TableError> {
        let tables = self.0;
        let (from, to) = tables.offsets(start, bytes)?;
        let level = tables.geometry.start_level();
        let mut needed = 0;
        for (root, from, to) in tables.roots(from, to) {
            needed += tables.tables_to_limit(root, level, from, to, leaves)?;
        }
        let mut run = Run::NEW;
        self.add_tables(&mut run, needed);
        for (root, from, to) in tables.roots(from, to) {
            self.limit_in(&mut run, root, level, from, to, leaves);
        }
        Ok(self.flushed(run))
    }

    fn map_cursor(&self, cursor: Cursor<'_, P, S>) -> Result<Cost, TableError> {
        let tables = self.0;
        let (level, span) = (tables.geometry.start_level(), tables.geometry.span());
        let needed = tables.missing_in_all(&mut cursor.clone())?;
        let mut run = Run::NEW;
        self.add_tables(&mut run, needed);
        let mut cursor = cursor;
        while cursor.at < span {
            let (root, end) = (tables.root_of(cursor.at), tables.root_end(cursor.at, span));
            run.cost.stores += self.stores_in(&mut cursor, root, level, end);
        }
        run.pending.made_valid();
        Ok(self.flushed(run))
    }

    fn change(
        &self,
        start: S::Input,
        bytes: u64,
        change: BitChange,
        holes: Holes,
    ) -> Result<Cost, TableError> {
        let tables = self.0;
        let (from, to) = tables.offsets(start, bytes)?;
        let mut run = Run::NEW;
        if from == to || change.clear | change.set == 0 {
            return Ok(self.flushed(run));
        }
        if holes == Holes::Refuse {
            let level = tables.geometry.start_level();
            for (root, from, to) in tables.roots(from, to) {
                tables.check_mapped(root, level, from, to)?;
            }
        }
        if tables.is_live() && !tables.alters(from, to, change) {
            return Ok(self.flushed(run));
        }
        self.split(&mut run, from, to, change)?;
        if tables.one_by_one(change) {
            let mut broken = false;
            self.all_leaves(&mut run, from, to, &mut |run, leaves| {
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
            self.all_leaves(&mut run, from, to, &mut |run, leaves| {
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
