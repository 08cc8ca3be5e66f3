//! Linking and freeing of tables. Memory becomes a table when a TTBR or a descriptor leads to it;
//! its contents are reported then, as they were stored. It is freed when it is stored to while
//! nothing leads to it.

use super::geometry::{Entry, TablePlace};
use super::marks::{LastStore, PAGE_SHIFT, TABLE, UNMAPPED};
use super::tables::{Table, TableId, pages};
use super::{LINE, Memory, Origin, Tracker};
use crate::decode::StoreForm;
use granule_trace::{Event, Visibility};
use std::collections::HashSet;
use std::sync::atomic::{Ordering::SeqCst, fence};

/// The descriptor that is reported in place of one that leads to a table outside of memory: nobody sees what is
/// stored there, so nothing is said of its addresses.
pub(super) const UNSEEN: u64 = 0;

/// The new reference to a table.
#[derive(Clone, Copy)]
pub(super) enum Link {
    Register,
    /// A register, to a table that shares its page with other data, so that the last store to the
    /// page may not be to the table.
    Shared,
    Store(StoreForm),
}

/// Returns the length and step of the longest run of equal steps from the first value on.
fn run(values: &[u64]) -> (usize, u64) {
    let [first, second, ..] = values else {
        return (values.len(), 0);
    };
    let step = second.wrapping_sub(*first);
    let rest = values
        .windows(2)
        .take_while(|pair| pair[1].wrapping_sub(pair[0]) == step);
    (1 + rest.count(), step)
}

impl<M: Memory> Tracker<'_, M> {
    /// Links a table from a TTBR.
    pub(super) fn link_root(&mut self, by: Origin, place: TablePlace) -> Option<TableId> {
        let id = self.link(by, place, Link::Register)?;
        self.tables.get_mut(id)?.was_root = true;
        Some(id)
    }

    /// Adds a reference to a table. Reports a new table with all tables below it.
    pub(super) fn link(&mut self, by: Origin, place: TablePlace, link: Link) -> Option<TableId> {
        if let Some(id) = self.tables.find(place) {
            let table = self.tables.get_mut(id)?;
            let led = table.leads();
            table.references += 1;
            let entries = if led { Vec::new() } else { table.entries() };
            for entry in entries {
                if let Entry::Table(address) = entry {
                    self.link(by, place.below(address), link);
                }
            }
            return Some(id);
        }
        self.free_what_waits(by, place);
        // Another CPU may already store to the table. Its store is either in memory before the
        // load, or it reads the mark and calls the tracker.
        self.marks.set(place.base, place.bytes(), TABLE);
        fence(SeqCst);
        let mut contents = vec![0; place.entries as usize].into_boxed_slice();
        if !self.memory.load(place.base, &mut contents) {
            self.miss(by, "tables outside of RAM");
            return None;
        }
        let below: Vec<(usize, u64)> = (0..)
            .zip(contents.iter())
            .filter_map(
                |(index, value)| match place.form.entry(*value, place.level) {
                    Entry::Table(address) => Some((index, address)),
                    _ => None,
                },
            )
            .collect();
        let id = self.tables.add(Table {
            place,
            references: 1,
            was_root: false,
            reported: contents.clone(),
        });
        self.marks.clear(place.base, place.bytes(), UNMAPPED);
        for (index, address) in below {
            if self.link(by, place.below(address), link).is_none() {
                contents[index] = UNSEEN;
            }
        }
        let (start, bytes) = (place.base, place.bytes());
        self.emit(by, Event::Obtained { start, bytes });
        let is_page = place.bytes() >= 1 << PAGE_SHIFT;
        let link = if is_page { link } else { Link::Shared };
        self.report_contents(by, start, &contents, link);
        Some(id)
    }

    /// Reports the contents of a new table as they were stored: before or after a barrier, through
    /// or past the caches.
    fn report_contents(&mut self, by: Origin, base: u64, values: &[u64], link: Link) {
        let mut at = 0;
        while let Some(rest) = values.get(at..).filter(|rest| !rest.is_empty()) {
            let address = base + at as u64 * 8;
            // Each page has one stamp.
            let left = ((1 << PAGE_SHIFT) - address % (1 << PAGE_SHIFT)) / 8;
            let page = &rest[..rest.len().min(left as usize)];
            at += page.len();
            let all = self.stored_how(by, address, link).1 != Visibility::Earlier;
            if all && self.was_cleared(by, address, link) {
                // The page was cleared before, and stored to since.
                self.report_run(by, address, (page.len(), 0, 0), Visibility::Earlier);
                self.report_page(by, address, page, link, true);
            } else {
                self.report_page(by, address, page, link, false);
            }
        }
    }

    /// Returns whether a page was cleared, through the caches, by stores that are ordered before
    /// the link.
    fn was_cleared(&self, by: Origin, address: u64, link: Link) -> bool {
        let last = self.marks.last_zero(address);
        let uncached = self.uncached.contains_key(&(address >> PAGE_SHIFT));
        !uncached && last.cpu.is_some() && Self::is_ordered(by, last, link)
    }

    /// Reports the contents of a page, or only those that are not zero.
    fn report_page(&mut self, by: Origin, base: u64, values: &[u64], link: Link, nonzero: bool) {
        const WORDS: usize = LINE as usize / 8;
        let mut at = 0;
        while let Some(rest) = values.get(at..).filter(|rest| !rest.is_empty()) {
            let address = base + at as u64 * 8;
            if nonzero && rest[0] == 0 {
                at += 1;
                continue;
            }
            let linker = by;
            let (by, visibility) = self.stored_how(by, address, link);
            if visibility == Visibility::Live {
                let last = self.marks.last_store(address);
                let is_completed = Self::is_ordered(linker, last, link);
                self.late.completed |= is_completed;
                self.late.others |= !is_completed;
            }
            // A run ends where a line was stored in another way.
            let (mut count, step) = run(rest);
            if nonzero {
                let zero = rest.iter().position(|value| *value == 0);
                count = count.min(zero.unwrap_or(count));
            }
            let mut next = WORDS - (address / 8) as usize % WORDS;
            while next < count {
                if self.stored_how(linker, address + next as u64 * 8, link) != (by, visibility) {
                    count = next;
                }
                next += WORDS;
            }
            self.report_run(by, address, (count, rest[0], step), visibility);
            at += count;
        }
    }

    fn report_run(
        &mut self,
        by: Origin,
        address: u64,
        (count, descriptor, step): (usize, u64, u64),
        visibility: Visibility,
    ) {
        self.emit(
            by,
            Event::Store {
                address,
                count: count as u32,
                descriptor,
                step: if count == 1 { 0 } else { step },
                visibility,
            },
        );
    }

    /// Returns the CPU that stored to a line of memory that becomes a table, and the order of the
    /// store and the link.
    fn stored_how(&self, by: Origin, address: u64, link: Link) -> (Origin, Visibility) {
        let line = 1 << (address % (1 << PAGE_SHIFT) / LINE);
        let lines = self.uncached.get(&(address >> PAGE_SHIFT));
        if lines.is_some_and(|lines| lines & line != 0) {
            return (by, Visibility::Live);
        }
        let last = self.marks.last_store(address);
        match last.cpu {
            Some(cpu) if !Self::is_ordered(by, last, link) => {
                (Origin { cpu, ..by }, Visibility::Live)
            }
            _ => (by, Visibility::Earlier),
        }
    }

    /// Returns whether a store is ordered before a link for every observer of the link.
    fn is_ordered(by: Origin, last: LastStore, link: Link) -> bool {
        let own = last.cpu.is_none_or(|cpu| cpu == by.cpu);
        match link {
            Link::Register => last.completed,
            Link::Shared => true,
            Link::Store(form) => last.completed || own && (last.ordered || form.release),
        }
    }

    /// Removes the reference of a TTBR to a table.
    pub(super) fn leave(&mut self, id: TableId) {
        if let Some(table) = self.tables.get_mut(id) {
            table.references = table.references.saturating_sub(1);
        }
    }

    /// Removes the reference of a descriptor to a table.
    pub(super) fn unlink(&mut self, place: TablePlace) {
        let Some(id) = self.tables.find(place) else {
            return;
        };
        self.leave(id);
        let entries = match self.tables.get(id) {
            Some(table) if table.references == 0 => table.entries(),
            _ => return,
        };
        let leads = self.tables.get(id).is_some_and(Table::leads);
        for entry in entries {
            match entry {
                Entry::Leaf(address) => {
                    self.marks
                        .set(address, 1 << place.form.shift(place.level), UNMAPPED);
                }
                Entry::Table(address) if !leads => self.unlink(place.below(address)),
                _ => (),
            }
        }
    }

    fn take_out(&mut self, id: TableId) -> Option<Table> {
        let (table, emptied) = self.tables.remove(id)?;
        for page in emptied {
            self.marks.clear(page << PAGE_SHIFT, 1, TABLE);
        }
        Some(table)
    }

    /// Removes a table of this shape without an event.
    fn forget(&mut self, id: TableId) {
        let _ = self.take_out(id);
    }

    /// Frees a table, which is stored to while nothing leads to it.
    pub(super) fn free(&mut self, by: Origin, id: TableId) {
        let Some(table) = self.take_out(id) else {
            return;
        };
        let place = table.place;
        let (start, bytes) = (place.base, place.bytes());
        // An empty root is shared by programs of every page size: it may still be a table of
        // another size.
        if !self.leads_to_part(place) {
            self.emit(by, Event::Freed { start, bytes });
        }
        if !table.leads() {
            return;
        }
        for entry in table.entries() {
            if let Entry::Table(address) = entry {
                self.unlink(place.below(address));
            }
        }
    }

    fn leads_to_part(&self, place: TablePlace) -> bool {
        let end = place.base + place.bytes();
        pages(place).any(|page| {
            let start = (page << PAGE_SHIFT).max(place.base);
            let part = end.min((page + 1) << PAGE_SHIFT) - start;
            let ids = self.tables.at(start, part);
            let mut tables = ids.into_iter().filter_map(|id| self.tables.get(id));
            tables.any(|table| table.references > 0)
        })
    }

    /// Frees the tables in the place of a new one, if nothing leads to them. An empty root that
    /// gets another shape by another page size is not freed: a CPU may walk it until its next ISB.
    fn free_what_waits(&mut self, by: Origin, place: TablePlace) {
        let end = place.base + place.bytes();
        for page in pages(place) {
            let start = (page << PAGE_SHIFT).max(place.base);
            for id in self
                .tables
                .at(start, end.min((page + 1) << PAGE_SHIFT) - start)
            {
                match self.tables.get(id) {
                    Some(table) if table.references > 0 => (),
                    Some(table) if table.is_empty_root() => self.forget(id),
                    Some(_) => self.free(by, id),
                    None => (),
                }
            }
        }
    }

    /// Frees the roots of waiting programs whose trees contain a table that was freed without being
    /// unlinked, as by a kernel that leaves for the next one. They stay if a CPU may walk the
    /// table.
    pub(super) fn free_roots_that_wait(&mut self, by: Origin, id: TableId) {
        let walked = self.cpus.iter().flat_map(|cpu| cpu.roots);
        if walked.flatten().any(|root| self.leads_to(root, id)) {
            return;
        }
        for root in self.tables.all() {
            let waits = self
                .tables
                .get(root)
                .is_some_and(|table| table.references == 0 && table.was_root);
            if root != id && waits && self.leads_to(root, id) {
                self.free(by, root);
            }
        }
    }

    /// Returns whether a walk from one table may reach another one.
    fn leads_to(&self, from: TableId, to: TableId) -> bool {
        let (mut seen, mut open) = (HashSet::from([from]), vec![from]);
        while let Some(table) = open.pop() {
            if table == to {
                return true;
            }
            let Some(table) = self.tables.get(table) else {
                continue;
            };
            let below = table.entries().into_iter().filter_map(|entry| match entry {
                Entry::Table(address) => self.tables.find(table.place.below(address)),
                _ => None,
            });
            open.extend(below.filter(|id| seen.insert(*id)));
        }
        false
    }

    /// Frees all tables.
    pub(super) fn free_all(&mut self, by: Origin) {
        for id in self.tables.all() {
            self.free(by, id);
        }
    }
}
