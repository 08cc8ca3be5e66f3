//! Blocks of tables that otherwise hold pages and contiguous groups: finding, changing, splitting and
//! merging them.
//!
//! A block becomes a table of groups by break-before-make (RDDMVT) at every level of FEAT_BBM. Others
//! fault meanwhile, which a program may: its fault waits for the lock of the space and finds the
//! pages. So no CPU takes a TLB conflict abort, and the entry that the exchange returns has every
//! update by hardware, so none is lost. A copy of one page takes the same break.
//!
//! A table becomes a block in the same way. What hardware noted in it is read after the invalidation,
//! when no CPU can reach it any more.

#![allow(unsafe_code, reason = "gives back a table that nothing ever led to")]

use super::group::{Gathered, comparable};
use super::page::Slot;
#[cfg(debug_assertions)]
use super::pending::unwinding;
use super::pending::{Invalidated, MOST_KEPT};
use super::{BitChange, FreedFrames, PageTables, TableEnvironment, TableError, Visibility};
use crate::arch::page_size::{Level, PageChoice, PageSize};
use crate::arch::{Descriptor, PhysicalAddress};

/// The level of blocks. A larger block would be a gibibyte and more.
pub(crate) const BLOCK: Level = Level::L2;

/// The content of the tables from an offset on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MappedBy {
    /// Entries of a last-level table, from this one on.
    Pages(Slot),
    /// A block, valid or present-invalid.
    Block(Slot, Descriptor),
    /// Nothing.
    Nothing,
}

/// The page, or the contiguous group, of a block that a split replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    /// Its offset.
    pub(crate) offset: u64,
    /// Its new entry, or that of the group's first page, with the hint.
    pub(crate) new: Descriptor,
}

impl Replaced {
    /// The number of pages.
    const fn count(self, size: PageSize) -> usize {
        if self.new.is_contiguous() {
            size.contiguous_entries(Level::L3)
        } else {
            1
        }
    }
}

/// A table for [`split_block`](PageTables::split_block), which nothing leads to yet.
#[must_use = "a table that is neither linked nor given back is lost"]
#[derive(Debug)]
pub(crate) struct NewTable(PhysicalAddress);

/// Tables that were unlinked, with the entries that led to them, in whose places blocks come.
#[must_use = "in the place of a broken table a block has to come"]
pub(crate) struct BrokenTables {
    tables: [(Slot, PhysicalAddress); MOST_KEPT],
    count: usize,
}

impl BrokenTables {
    pub(crate) const NONE: Self = {
        let nowhere = PhysicalAddress(0);
        let none = Slot {
            table: nowhere,
            index: 0,
        };
        Self {
            tables: [(none, nowhere); MOST_KEPT],
            count: 0,
        }
    };
}

/// A debug build panics when broken tables are dropped: no block would come in their places.
#[cfg(debug_assertions)]
impl Drop for BrokenTables {
    fn drop(&mut self) {
        assert!(
            self.count == 0 || unwinding(),
            "{} broken tables have no blocks in their places",
            self.count
        );
    }
}

impl<P: PageChoice, E: TableEnvironment> PageTables<P, E> {
    pub(crate) const fn block_bytes(&self) -> u64 {
        self.size().entry_bytes(BLOCK)
    }

    /// The mapping at `at`, and its end, at most `to`: a table, a block, or a hole.
    pub(crate) fn mapped_from(&self, at: u64, to: u64) -> (MappedBy, u64) {
        let (slot, next) = self.pages_from(at, to);
        let mapped = match slot {
            Some(slot) => MappedBy::Pages(slot),
            None => {
                let place = self.place(at);
                if place.entry.0 & BitChange::LEAVES == 0 {
                    MappedBy::Nothing
                } else {
                    MappedBy::Block(place.slot, place.entry)
                }
            }
        };
        (mapped, next)
    }

    /// The frame that a block begins with, valid or present-invalid.
    pub(super) fn block_output(&self, entry: Descriptor) -> PhysicalAddress {
        let valid = Descriptor(entry.0 | Descriptor::VALID);
        self.geometry.address_of(valid, BLOCK)
    }

    /// Changes bits of a block's entry in place without losing an update by hardware, and invalidates
    /// the TLB for the block.
    pub(crate) fn update_block(&mut self, offset: u64, slot: Slot, clear: u64, set: u64) {
        let of = Descriptor::VALID;
        let change = BitChange { of, clear, set };
        self.update(slot.table, slot.index, 1, change);
        self.flush_block(offset);
    }

    /// Invalidates the TLB for the block at `offset`, the only change of the operation so far beside
    /// entries that became valid.
    fn flush_block(&mut self, offset: u64) -> Invalidated<'_, P, E> {
        let bytes = self.block_bytes();
        let start = offset & !(bytes - 1);
        self.pending.leaves(start, start + bytes, BLOCK, bytes);
        self.flush()
    }

    /// A table for a split.
    ///
    /// # Errors
    ///
    /// [`TableError::OutOfTables`]
    pub(crate) fn new_table(&mut self) -> Result<NewTable, TableError> {
        let exhausted = TableError::OutOfTables { needed: 1 };
        if !self.reserve(1) {
            return Err(exhausted);
        }
        Ok(NewTable(self.take().ok_or(exhausted)?))
    }

    /// Gives back a table that was not needed.
    pub(crate) fn free_new(&mut self, table: NewTable) {
        // SAFETY: the page in the private field of `NewTable`, which `new_table` alone makes, came from
        // this environment, and nothing ever led to it.
        let freed = unsafe { super::FreedTable::unreachable(table.0) };
        self.environment.free(freed);
    }

    /// Splits the blocks that have one of two offsets inside, so that both are boundaries of leaves,
    /// and returns their number.
    ///
    /// # Errors
    ///
    /// [`TableError::OutOfTables`]; nothing has changed then.
    pub(crate) fn split_blocks_at(&mut self, edges: [u64; 2]) -> Result<u64, TableError> {
        let [first, second] = edges.map(|edge| self.block_with_inside(edge));
        let second = second.filter(|second| first != Some(*second));
        let needed = usize::from(first.is_some()) + usize::from(second.is_some());
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.reserve(needed) {
            return Err(exhausted);
        }
        for (offset, slot) in [first, second].into_iter().flatten() {
            let table = self.take().ok_or(exhausted)?;
            let _ = self.split_block(offset, slot, NewTable(table), &edges, None);
        }
        Ok(needed as u64)
    }

    /// The block that begins before `edge` and ends behind it.
    fn block_with_inside(&self, edge: u64) -> Option<(u64, Slot)> {
        if edge & (self.block_bytes() - 1) == 0 || edge >= self.geometry.span() {
            return None;
        }
        let place = self.place(edge);
        let is_block = !place.level.is_last() && place.entry.is_valid();
        is_block.then_some((edge & !(self.block_bytes() - 1), place.slot))
    }

    /// Makes `table` of the block at `slot`, in which `offset` lies: groups, and pages where one of
    /// `edges` cuts a group. `replaced` gives one page another frame; it is not in a group then,
    /// nor are its neighbours. Or it gives a whole group other frames. Returns those that it had.
    pub(crate) fn split_block(
        &mut self,
        offset: u64,
        slot: Slot,
        table: NewTable,
        edges: &[u64],
        replaced: Option<Replaced>,
    ) -> FreedFrames {
        let NewTable(table) = table;
        let bytes = self.block_bytes();
        let start = offset & !(bytes - 1);
        let old = self.exchange(slot.table, slot.index, Descriptor::INVALID);
        let output = self.geometry.address_of(old, BLOCK);
        let size = self.size();
        let broken = self.flush_block(start);
        let freed = replaced.map_or(FreedFrames::none(), |replaced| {
            let first = output.wrapping_add(replaced.offset - start);
            broken.frames(first, replaced.count(size) as u64)
        });
        let bits = self.geometry.attribute_bits(old, BLOCK);
        let plain = Descriptor::leaf(&self.geometry, Level::L3, output, bits);
        let grouped = Descriptor(plain.0 | Descriptor::CONTIGUOUS);
        let (how, step) = (Visibility::Private, size.bytes());
        self.fill(table, 0, size.entries(), grouped, step, how);
        let count = size.contiguous_entries(Level::L3);
        let group = self.group_bytes();
        let apart = edges
            .iter()
            .copied()
            .filter(|edge| edge & (group - 1) != 0 && edge & !(bytes - 1) == start);
        let page = replaced.filter(|replaced| !replaced.new.is_contiguous());
        for inside in apart.chain(page.map(|replaced| replaced.offset)) {
            let first = self.index(inside, Level::L3) & !(count - 1);
            let entry = Descriptor(plain.0.wrapping_add(first as u64 * step));
            self.fill(table, first, count, entry, step, how);
        }
        if let Some(replaced @ Replaced { offset, new }) = replaced {
            let (index, count) = (self.index(offset, Level::L3), replaced.count(size));
            self.fill(table, index, count, new, step, how);
        }
        let link = Descriptor::table(&self.geometry, table);
        self.store(slot.table, slot.index, link, self.linking());
        self.pending.made_valid();
        self.publish();
        freed
    }

    /// Unlinks the last-level table for `offset`, if it is full of groups that differ only in bits that hardware
    /// updates and whose frames are one aligned run. Returns whether it did. A block comes in its place by
    /// [`make_blocks`](Self::make_blocks), before anything else is done.
    pub(crate) fn break_table(&mut self, offset: u64, broken: &mut BrokenTables) -> bool {
        let above = self.place_to(offset, BLOCK);
        let (link, table) = (above.slot, self.output(above.entry));
        // A block could not be above its level.
        if above.level != BLOCK || !above.entry.is_table(BLOCK) || !self.is_like_a_block(table) {
            return false;
        }
        if broken.count == MOST_KEPT {
            self.make_blocks(broken);
        }
        let Some(place) = broken.tables.get_mut(broken.count) else {
            return false;
        };
        *place = (link, table);
        broken.count += 1;
        let bytes = self.block_bytes();
        let start = offset & !(bytes - 1);
        let how = self.visibility();
        self.store(link.table, link.index, Descriptor::INVALID, how);
        self.pending.unlinked(self.size().bytes());
        self.pending.below(BLOCK.next());
        self.pending.within(start, start + bytes);
        true
    }

    /// Makes blocks in the places of these tables, after one invalidation for all of them, and frees the tables.
    pub(crate) fn make_blocks(&mut self, broken: &mut BrokenTables) {
        let entries = self.size().entries();
        let mut invalidated = self.flush();
        for (link, table) in broken.tables.iter().copied().take(broken.count) {
            let tables = invalidated.tables();
            let mut gathered = Gathered::NONE;
            for index in 0..entries {
                gathered.add(tables.load(table, index));
            }
            let page = gathered.give(tables.load(table, 0));
            let bits = tables.geometry.attribute_bits(page, Level::L3);
            let block = Descriptor::leaf(&tables.geometry, BLOCK, tables.output(page), bits);
            tables.store(link.table, link.index, block, tables.linking());
            tables.pending.made_valid();
            invalidated.free(table);
        }
        broken.count = 0;
        self.publish();
    }

    /// Whether all entries of a last-level table together translate as one block could.
    fn is_like_a_block(&self, table: PhysicalAddress) -> bool {
        let first = self.load(table, 0);
        let output = self.output(first).0;
        if !first.is_valid() || output & (self.block_bytes() - 1) != 0 {
            return false;
        }
        let goes_on = |index: usize| {
            let entry = self.load(table, index);
            let expected = comparable(first).wrapping_add((index as u64) << self.size().shift());
            entry.is_contiguous() && comparable(entry) == expected
        };
        // The ends rule out most tables.
        let last = self.size().entries() - 1;
        goes_on(0) && goes_on(last) && (1..last).all(goes_on)
    }
}
