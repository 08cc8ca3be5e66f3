//! A cursor over pages: single-page operations on neighbours without a walk from the root for each.
//!
//! The cursor only keeps its place. What it does at the place is in [`near`](super::near), or in the
//! general operations where that does not apply.

use super::near::Done;
use super::piece::Leaves;
use super::stage::{Stage, Stage1};
use super::unmap::{CLEAR, EmptyTables};
use super::walk::{Place, Slot};
use super::{Holes, PageTables, TableEnvironment, TableError};
use crate::arch::PhysicalAddress;
use crate::arch::page_size::{Level, PageChoice};

/// A place in [`PageTables`] that moves from page to page ([`PageTables::cursor`]).
///
/// Each operation is that of the tables for the one page at the place, with the same barriers and
/// TLBIs before it returns, and moves the place to the next page. After an error the tables are
/// unchanged and the place stays.
#[derive(Debug)]
pub struct PageCursor<'t, P: PageChoice, E, S: Stage = Stage1> {
    tables: &'t mut PageTables<P, E, S>,
    /// The offset of the page at the place.
    at: u64,
    /// The last-level table that was looked up last. The cursor has the tables to itself, so it
    /// stays where it is until an operation of the tables frees or adds a table.
    table: PhysicalAddress,
    /// The end of the offsets for which that table is known, or 0.
    known: u64,
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// A cursor at the page of `start`.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace).
    pub fn cursor(&mut self, start: S::Input) -> Result<PageCursor<'_, P, E, S>, TableError> {
        let (at, _) = self.offsets(start, self.size().bytes())?;
        Ok(PageCursor {
            tables: self,
            at,
            table: PhysicalAddress(0),
            known: 0,
        })
    }

    /// The last-level table for an offset and the end of the offsets that it translates; 0 if there
    /// is none.
    #[inline(never)]
    fn look_up(&self, at: u64) -> (PhysicalAddress, u64) {
        let span = self.geometry.span();
        if at >= span {
            return (PhysicalAddress(0), 0);
        }
        let place = self.place(at);
        if place.level.is_last() {
            let end = self.table_end(at, place.level, span);
            (place.slot.table, end)
        } else {
            (PhysicalAddress(0), 0)
        }
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageCursor<'_, P, E, S> {
    /// The address of the page at the place.
    #[must_use]
    pub fn address(&self) -> S::Input {
        S::input(self.tables.address(self.at))
    }

    /// Maps the page to `output`: [`PageTables::map`].
    ///
    /// # Errors
    ///
    /// As for [`PageTables::map`].
    #[inline]
    pub fn map(
        &mut self,
        output: PhysicalAddress,
        attributes: S::Attributes,
    ) -> Result<(), TableError> {
        let bits = S::encode(&attributes, &self.tables.geometry);
        let page = self.find();
        if !page.is_some_and(|page| self.tables.map_entry(&page, output, bits)) {
            self.known = 0;
            let (start, bytes) = (self.address(), self.tables.size().bytes());
            self.tables
                .map_range(start, output, bytes, bits, Leaves::PAGES)?;
        }
        self.advance();
        Ok(())
    }

    /// Changes the page's permissions: [`PageTables::protect`].
    ///
    /// # Errors
    ///
    /// As for [`PageTables::protect`].
    #[inline]
    pub fn protect(&mut self, change: S::PermissionChange, holes: Holes) -> Result<(), TableError> {
        let bits = S::bits(change, &self.tables.geometry);
        let (at, page) = (self.at, self.find());
        let mut change = |page| self.tables.change_entry(&page, at, bits, EmptyTables::Keep);
        if page.is_none_or(|page| change(page) == Done::No) {
            self.known = 0;
            let (start, bytes) = (self.address(), self.tables.size().bytes());
            self.tables.change(start, bytes, bits, holes)?;
        }
        self.advance();
        Ok(())
    }

    /// Unmaps the page: [`PageTables::unmap`], or
    /// [`unmap_keeping_tables`](PageTables::unmap_keeping_tables).
    ///
    /// # Errors
    ///
    /// As for [`PageTables::unmap`].
    #[inline]
    pub fn unmap(&mut self, empty: EmptyTables) -> Result<(), TableError> {
        let (at, page) = (self.at, self.find());
        match page.map(|page| self.tables.change_entry(&page, at, CLEAR, empty)) {
            Some(Done::Yes) => {}
            Some(Done::YesAndFreed) => self.known = 0,
            Some(Done::No) | None => {
                self.known = 0;
                let start = self.address();
                self.tables
                    .unmap_range(start, self.tables.size().bytes(), empty)?;
            }
        }
        self.advance();
        Ok(())
    }

    /// Moves to the next page. Behind the last page every operation fails with
    /// [`TableError::OutsideSpace`].
    #[inline]
    pub fn advance(&mut self) {
        // A known table ends at the end of the half at the latest.
        self.at += self.tables.size().bytes();
        if self.at >= self.known {
            self.known = 0;
            self.at = self.at.min(self.tables.geometry.span());
        }
    }

    /// Moves to the page of `address`.
    ///
    /// # Errors
    ///
    /// As for [`PageTables::cursor`].
    pub fn move_to(&mut self, address: S::Input) -> Result<(), TableError> {
        let (at, _) = self.tables.offsets(address, self.tables.size().bytes())?;
        let table = |offset| offset >> self.tables.size().level_shift(Level::L2);
        if table(at) != table(self.at) {
            self.known = 0;
        }
        self.at = at;
        Ok(())
    }

    /// The entry of the page, looked up if its table is not known.
    #[inline(always)]
    fn find(&mut self) -> Option<Place> {
        if self.known == 0 {
            (self.table, self.known) = self.tables.look_up(self.at);
            if self.known == 0 {
                return None;
            }
        }
        let (table, level) = (self.table, Level::L3);
        let index = self.tables.index(self.at, level);
        let entry = self.tables.load(table, index);
        let slot = Slot { table, index };
        Some(Place { slot, level, entry })
    }
}
