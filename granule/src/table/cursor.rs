//! A cursor over pages: single-page operations on neighbours without a walk from the root for each.
//!
//! The cursor only keeps its place. What it does at the place is in
//! [`one_page`](super::one_page), or in the general operations where that does not apply.

use super::page::Slot;
use super::piece::Leaves;
use super::unmap::EmptyTables;
use super::{Holes, PageTables, PermissionChange, TableEnvironment, TableError};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Attributes, PhysicalAddress, VirtualAddress};

/// A place in [`PageTables`] that moves from page to page ([`PageTables::cursor`]).
///
/// Each operation is that of the tables for the one page at the place, with the same barriers and
/// TLBIs before it returns, and moves the place to the next page. After an error the tables are
/// unchanged and the place stays.
#[derive(Debug)]
pub struct PageCursor<'t, P: Page, E> {
    tables: &'t mut PageTables<P, E>,
    /// The offset of the page at the place.
    at: u64,
    /// The entry of that page, once it was looked up. The cursor has the tables to itself, so the
    /// entry stays where it is until an operation of the tables frees or adds a table.
    slot: Option<Slot>,
}

impl<P: Page, E: TableEnvironment> PageTables<P, E> {
    /// A cursor at the page of `start`.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace).
    pub fn cursor(&mut self, start: VirtualAddress) -> Result<PageCursor<'_, P, E>, TableError> {
        let (at, _) = self.offsets(start, P::SIZE.bytes())?;
        let (tables, slot) = (self, None);
        Ok(PageCursor { tables, at, slot })
    }
}

impl<P: Page, E: TableEnvironment> PageCursor<'_, P, E> {
    /// The address of the page at the place.
    #[must_use]
    pub const fn address(&self) -> VirtualAddress {
        self.tables.address(self.at)
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
        attributes: Attributes,
    ) -> Result<(), TableError> {
        let done = match self.find() {
            Some(slot) => self.tables.map_slot(slot, output, attributes),
            None => false,
        };
        if !done {
            self.generally(|tables, start, bytes| {
                tables.map(start, output, bytes, attributes, Leaves::PAGES)
            })?;
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
    pub fn protect(&mut self, change: PermissionChange, holes: Holes) -> Result<(), TableError> {
        let bits = change.bits(self.tables.geometry.regime());
        let done = match self.find() {
            Some(slot) => self.tables.change_slot(self.at, slot, bits),
            None => false,
        };
        if !done {
            self.generally(|tables, start, bytes| tables.protect(start, bytes, change, holes))?;
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
        let done = match self.find() {
            Some(slot) => self.tables.unmap_slot(self.at, slot, empty),
            None => false,
        };
        if !done {
            self.generally(|tables, start, bytes| tables.unmap_range(start, bytes, empty))?;
        }
        self.advance();
        Ok(())
    }

    /// Moves to the next page. Behind the last page every operation fails with
    /// [`TableError::OutsideSpace`].
    #[inline]
    pub fn advance(&mut self) {
        let span = self.tables.geometry.span();
        self.at = span.min(self.at + P::SIZE.bytes());
        if let Some(slot) = &mut self.slot {
            slot.index += 1;
            // A root of the last level may end before its page does.
            if slot.index == P::SIZE.entries() || self.at == span {
                self.slot = None;
            }
        }
    }

    /// Moves to the page of `address`.
    ///
    /// # Errors
    ///
    /// As for [`PageTables::cursor`].
    pub fn move_to(&mut self, address: VirtualAddress) -> Result<(), TableError> {
        let (at, _) = self.tables.offsets(address, P::SIZE.bytes())?;
        let table = |offset| offset >> P::SIZE.level_shift(Level::L2);
        self.slot = match self.slot {
            Some(slot) if table(at) == table(self.at) => Some(Slot {
                index: PageTables::<P, E>::index(at, Level::L3),
                ..slot
            }),
            _ => None,
        };
        self.at = at;
        Ok(())
    }

    /// The entry of the page, looked up if the cursor came from another table.
    #[inline]
    fn find(&mut self) -> Option<Slot> {
        if self.slot.is_none() {
            self.look_up();
        }
        self.slot
    }

    #[inline(never)]
    fn look_up(&mut self) {
        if self.at < self.tables.geometry.span() {
            self.slot = self.tables.slot_of(self.at);
        }
    }

    /// Does an operation of the tables for the page, and forgets the entry, whose table it may
    /// free.
    #[inline(never)]
    fn generally(
        &mut self,
        operation: impl FnOnce(&mut PageTables<P, E>, VirtualAddress, u64) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        self.slot = None;
        let start = self.address();
        operation(self.tables, start, P::SIZE.bytes())
    }
}
