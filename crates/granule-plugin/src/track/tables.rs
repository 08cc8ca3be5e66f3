//! The tables that are known: where they are, how many TTBRs and descriptors lead to each, and what was told of
//! their contents. Nothing here tells an event: `link` and `store` do.

use super::geometry::{Entry, Place};
use super::marks::PAGE_SHIFT;
use std::collections::HashMap;

pub(super) type TableId = u32;

/// Bits that are zero in the address of a page with a mark in it, which is no valid descriptor.
const LINK_ZEROS: u64 = 0xff9;

/// Whether a word of a table may link it in a list of free pages.
pub(super) const fn is_link(index: usize, word: u64) -> bool {
    index == 0 && word & LINK_ZEROS == 0
}

/// A table, with what was last told of its contents.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) place: Place,
    /// How many TTBRs and table descriptors lead to it.
    pub(super) references: u32,
    /// A TTBR led to it once: while no TTBR does, it may be a program's that waits.
    pub(super) was_root: bool,
    pub(super) told: Box<[u64]>,
}

impl Table {
    /// Whether what it leads to counts it: nothing leads to what only a table leads to that nothing leads to.
    pub(super) const fn leads(&self) -> bool {
        self.references > 0 || self.was_root
    }

    /// Whether it may be the root of a program that waits. A program's that is taken apart is empty at its end,
    /// and in its first word may be the link of a list of free pages.
    pub(super) fn waits(&self) -> bool {
        let mut used = self.told.iter().enumerate();
        self.was_root && used.any(|(index, value)| *value != 0 && !is_link(index, *value))
    }

    /// Whether it is a root in which nothing is mapped.
    pub(super) fn is_empty_root(&self) -> bool {
        self.was_root && self.told.iter().all(|value| *value == 0)
    }

    /// The tables and the leaves that it leads to.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let Place { form, level, .. } = self.place;
        let entries = self.told.iter().map(|value| form.entry(*value, level));
        entries.filter(|it| *it != Entry::Invalid).collect()
    }
}

/// All tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    tables: Vec<Option<Table>>,
    free: Vec<TableId>,
    by_page: HashMap<u64, Vec<TableId>>,
    entries: u64,
}

impl Tables {
    pub(super) fn get(&self, id: TableId) -> Option<&Table> {
        self.tables.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: TableId) -> Option<&mut Table> {
        self.tables.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn place(&self, id: TableId) -> Option<Place> {
        Some(self.get(id)?.place)
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.entries * 8
    }

    pub(super) fn find(&self, place: Place) -> Option<TableId> {
        let ids = self.by_page.get(&(place.base >> PAGE_SHIFT))?;
        let is_it = |id: &&TableId| self.place(**id) == Some(place);
        ids.iter().find(is_it).copied()
    }

    /// Whether this is a table.
    pub(super) fn has(&self, place: Place) -> bool {
        self.find(place).is_some()
    }

    pub(super) fn all(&self) -> Vec<TableId> {
        let ids = (0..).zip(&self.tables);
        ids.filter_map(|(id, table)| table.as_ref().map(|_| id))
            .collect()
    }

    /// The tables that hold some byte of a range inside of one page.
    pub(super) fn at(&self, address: u64, bytes: u64) -> Vec<TableId> {
        let Some(ids) = self.by_page.get(&(address >> PAGE_SHIFT)) else {
            return Vec::new();
        };
        let overlaps = |id: &TableId| {
            self.get(*id).is_some_and(|table| {
                address < table.place.base + table.place.bytes()
                    && address + bytes > table.place.base
            })
        };
        ids.iter().copied().filter(overlaps).collect()
    }

    pub(super) fn add(&mut self, table: Table) -> TableId {
        let place = table.place;
        self.entries += u64::from(place.entries);
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.tables.push(None);
                (self.tables.len() - 1) as TableId
            }
        };
        if let Some(slot) = self.tables.get_mut(id as usize) {
            *slot = Some(table);
        }
        for page in pages(place) {
            self.by_page.entry(page).or_default().push(id);
        }
        id
    }

    /// Forgets a table. Returns it, and the pages that hold no table any more.
    pub(super) fn remove(&mut self, id: TableId) -> Option<(Table, Vec<u64>)> {
        let table = self.tables.get_mut(id as usize)?.take()?;
        self.free.push(id);
        self.entries -= u64::from(table.place.entries);
        let mut emptied = Vec::new();
        for page in pages(table.place) {
            if let Some(ids) = self.by_page.get_mut(&page) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.by_page.remove(&page);
                    emptied.push(page);
                }
            }
        }
        Some((table, emptied))
    }
}

pub(super) fn pages(place: Place) -> std::ops::RangeInclusive<u64> {
    place.base >> PAGE_SHIFT..=(place.base + place.bytes() - 1) >> PAGE_SHIFT
}
