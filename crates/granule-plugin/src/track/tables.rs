//! The known tables: their places, the number of TTBRs and descriptors that lead to each, and the
//! contents that were reported. Events are emitted in `link` and `store` only.

use super::geometry::{Entry, TablePlace};
use super::marks::PAGE_SHIFT;
use std::collections::HashMap;

pub(super) type TableId = u32;

/// Bits that are zero in the address of a page with a mark in it, which is not a valid descriptor.
const LINK_ZEROS: u64 = 0xff9;

/// Returns whether a word of a table may link it in a list of free pages.
pub(super) const fn is_link(index: usize, word: u64) -> bool {
    index == 0 && word & LINK_ZEROS == 0
}

/// A table, with the contents that were last reported.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) place: TablePlace,
    /// The number of TTBRs and table descriptors that lead to it.
    pub(super) references: u32,
    /// Whether a TTBR once led to it. While none does, it may be the root of a waiting program.
    pub(super) was_root: bool,
    pub(super) reported: Box<[u64]>,
}

impl Table {
    /// Returns whether its descriptors count as references to the tables below. Those of an
    /// unlinked table do not, unless it was a root.
    pub(super) const fn leads(&self) -> bool {
        self.references > 0 || self.was_root
    }

    /// Returns whether it may be the root of a waiting program. The root of a program that ended is
    /// empty, except that its first word may be the link of a list of free pages.
    pub(super) fn waits(&self) -> bool {
        let mut used = self.reported.iter().enumerate();
        self.was_root && used.any(|(index, value)| *value != 0 && !is_link(index, *value))
    }

    pub(super) fn is_empty_root(&self) -> bool {
        self.was_root && self.reported.iter().all(|value| *value == 0)
    }

    /// Lists the tables and the leaves that it leads to.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let TablePlace { form, level, .. } = self.place;
        let entries = self.reported.iter().map(|value| form.entry(*value, level));
        entries.filter(|it| *it != Entry::Invalid).collect()
    }
}

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

    pub(super) fn place(&self, id: TableId) -> Option<TablePlace> {
        Some(self.get(id)?.place)
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.entries * 8
    }

    pub(super) fn find(&self, place: TablePlace) -> Option<TableId> {
        let ids = self.by_page.get(&(place.base >> PAGE_SHIFT))?;
        let is_it = |id: &&TableId| self.place(**id) == Some(place);
        ids.iter().find(is_it).copied()
    }

    pub(super) fn has(&self, place: TablePlace) -> bool {
        self.find(place).is_some()
    }

    pub(super) fn all(&self) -> Vec<TableId> {
        let ids = (0..).zip(&self.tables);
        ids.filter_map(|(id, table)| table.as_ref().map(|_| id))
            .collect()
    }

    /// Lists the tables that overlap a range inside of one page.
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

    /// Removes a table. Returns it, and the pages that no longer hold a table.
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

pub(super) fn pages(place: TablePlace) -> std::ops::RangeInclusive<u64> {
    place.base >> PAGE_SHIFT..=(place.base + place.bytes() - 1) >> PAGE_SHIFT
}
