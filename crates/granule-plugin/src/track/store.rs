//! Stores to memory that is or was a table, or that was mapped: the events of each, and hardware's
//! updates of tables.

use super::geometry::Entry;
use super::link::{Link, UNSEEN};
use super::marks::{PAGE_SHIFT, TABLE, UNMAPPED};
use super::tables::{TableId, is_link};
use super::{LINE, Late, Memory, Origin, Store, Tracker};
use crate::decode::StoreForm;
use crate::stream::Seen;
use granule_trace::{Event, Visibility};

/// Bits that kernels leave zero in a table descriptor, and of which a page descriptor has some:
/// memory type, AP, SH and nG. A table descriptor may have the access flag (FEAT_HAFT).
const OF_LEAVES: u64 = 0xbfc;

impl<M: Memory> Tracker<'_, M> {
    /// Tracks a store to a page with a flag, or past the caches.
    pub fn store(&mut self, by: Origin, store: Store) {
        self.begin(by);
        let address = store.address;
        let bytes = u64::from(store.bytes);
        // The registers of a device.
        if !self.marks.has(address) {
            return;
        }
        if self.marks.is_uncached(by.cpu) {
            let line = 1 << (address % (1 << PAGE_SHIFT) / LINE);
            *self.uncached.entry(address >> PAGE_SHIFT).or_default() |= line;
        }
        self.reuse(by, address, bytes);
        if self.marks.flags(address) & TABLE == 0 {
            return;
        }
        let ids = self.tables.at(address, bytes);
        let first = address & !7;
        let mut words = [0; 3];
        let count = ((address + bytes - first).div_ceil(8) as usize).min(words.len());
        match store.words {
            Some(values) if address == first && bytes.is_multiple_of(8) => {
                words[..2].copy_from_slice(&values);
            }
            _ => {
                self.memory.load(first, &mut words[..count]);
            }
        }
        if self.lead_nowhere(&ids, first, &words[..count]) {
            ids.iter().for_each(|id| self.free_roots_that_wait(by, *id));
        }
        if self.are_freed(&ids, first, &words[..count]) {
            ids.into_iter().for_each(|id| self.free(by, id));
            return;
        }
        if self.hardware_updates {
            for id in &ids {
                self.look_for_hardware_updates(by, *id, first);
            }
        }
        for (index, word) in words[..count].iter().enumerate() {
            self.store_word(by, &ids, first + index as u64 * 8, *word, store.form);
        }
    }

    /// Returns whether a store of these words means that the tables there were freed: nothing leads
    /// to any of them, and the words do not change a tree that is being taken apart, or that of a
    /// waiting program. A list of tables that wait for their invalidation may be in their first
    /// words, or in a word that keeps the address of the table below; neither is a valid
    /// descriptor.
    fn are_freed(&self, ids: &[TableId], first: u64, words: &[u64]) -> bool {
        let mut tables = ids.iter().filter_map(|id| self.tables.get(*id)).peekable();
        tables.peek().is_some()
            && tables.all(|table| {
                let keeps = |(index, word): (usize, &u64)| {
                    let place = table.place;
                    let index = first.wrapping_sub(place.base) / 8 + index as u64;
                    let entry = |value| place.form.entry(value, place.level);
                    let reported = table.reported.get(index as usize).map(|it| entry(*it));
                    let leads_to_memory = |address| self.memory.load(address, &mut [0]);
                    match entry(*word) {
                        Entry::Table(address) => {
                            let of_leaf = *word & OF_LEAVES != 0;
                            table.waits() && !of_leaf && leads_to_memory(address)
                        }
                        Entry::Leaf(_) => false,
                        Entry::Invalid => {
                            *word == 0
                                || is_link(index as usize, *word)
                                || reported != Some(Entry::Invalid)
                                    && reported == Some(entry(*word | 1))
                        }
                    }
                };
                table.references == 0 && !words.iter().enumerate().all(keeps)
            })
    }

    /// Returns whether one of these words would lead to a table outside of memory, so that it is
    /// not a descriptor.
    fn lead_nowhere(&self, ids: &[TableId], first: u64, words: &[u64]) -> bool {
        let tables = || ids.iter().filter_map(|id| self.tables.place(*id));
        words.iter().enumerate().any(|(index, word)| {
            let address = first + index as u64 * 8;
            tables().any(|place| match place.form.entry(*word, place.level) {
                Entry::Table(below) => {
                    address.wrapping_sub(place.base) < place.bytes()
                        && !self.memory.load(below, &mut [0])
                }
                _ => false,
            })
        })
    }

    /// Tracks a store of one descriptor.
    fn store_word(&mut self, by: Origin, ids: &[TableId], address: u64, new: u64, form: StoreForm) {
        let mut changed = Vec::new();
        for id in ids {
            let Some(table) = self.tables.get(*id) else {
                continue;
            };
            let index = address.wrapping_sub(table.place.base) / 8;
            if let Some(old) = table.reported.get(index as usize)
                && *old != new
            {
                changed.push((*id, table.place, index as usize, *old, table.leads()));
            }
        }
        if changed.is_empty() {
            return;
        }
        let (mut is_link, mut descriptor) = (false, new);
        for (_, place, _, _, leads) in &changed {
            if let Entry::Table(below) = place.form.entry(new, place.level)
                && *leads
            {
                is_link = true;
                self.late = Late::default();
                if self
                    .link(by, place.below(below), Link::Store(form))
                    .is_none()
                {
                    descriptor = UNSEEN;
                }
                self.emit_late_barrier(by);
            }
        }
        // An event has one form: of a link, release is the one that matters; otherwise, exchange.
        let visibility = match form {
            StoreForm { release: true, .. } if is_link => Visibility::Publish,
            StoreForm { exchange: true, .. } => Visibility::Exchange,
            StoreForm { release: true, .. } => Visibility::Publish,
            _ => Visibility::Live,
        };
        self.emit(
            by,
            Event::Store {
                address,
                count: 1,
                descriptor,
                step: 0,
                visibility,
            },
        );
        for (id, place, index, old, leads) in changed {
            if let Some(reported) = self
                .tables
                .get_mut(id)
                .and_then(|table| table.reported.get_mut(index))
            {
                *reported = new;
            }
            match place.form.entry(old, place.level) {
                Entry::Table(below) if leads => self.unlink(place.below(below)),
                Entry::Leaf(frame) if place.form.entry(new, place.level) != Entry::Leaf(frame) => {
                    let bytes = 1 << place.form.shift(place.level);
                    self.marks.set(frame, bytes, UNMAPPED);
                }
                _ => (),
            }
        }
    }

    /// Emits the first store to memory after a mapping of it was removed.
    fn reuse(&mut self, by: Origin, address: u64, bytes: u64) {
        let flags = self.marks.flags(address);
        if flags & UNMAPPED != 0 {
            self.marks.clear(address, 1, UNMAPPED);
        }
        // A store to a table is emitted anyway.
        if flags & (UNMAPPED | TABLE) == UNMAPPED {
            self.flush_lines(by.cpu);
            self.marks.note_event(by.cpu);
            let event = Event::reused(address, bytes);
            self.out.push((by, Seen::Event(event)));
        }
    }

    /// Tracks an instruction whose stores have no callback (DC ZVA, CPY, SET): it will store to a
    /// range inside of one page, or fault. It may store to the whole block of `block` bytes, a
    /// power of two, that contains the range.
    pub fn will_store(&mut self, by: Origin, address: u64, bytes: u64, block: u64) {
        self.begin(by);
        if !self.marks.has(address) {
            return;
        }
        if self.marks.is_uncached(by.cpu) {
            let first = address % (1 << PAGE_SHIFT) / LINE;
            let last = (address % (1 << PAGE_SHIFT) + bytes.max(1) - 1) / LINE;
            let lines = (first..=last.min(63)).fold(0, |lines, line| lines | 1 << line);
            *self.uncached.entry(address >> PAGE_SHIFT).or_default() |= lines;
        }
        self.reuse(by, address, bytes);
        if self.marks.flags(address) & TABLE == 0 {
            return;
        }
        let ids = self.tables.at(address, bytes);
        let is_led_to = |id: &TableId| self.tables.get(*id).is_some_and(|it| it.references > 0);
        if !ids.is_empty() && !ids.iter().any(is_led_to) {
            ids.into_iter().for_each(|id| self.free(by, id));
            return;
        }
        let (start, bytes) = match bytes.checked_sub(block) {
            Some(_) => (address, bytes),
            None => (address & !(block - 1), block),
        };
        if let Some(cpu) = self.cpu(by.cpu) {
            cpu.stored_later.push((by, start, bytes));
        }
        // The next barrier of the CPU must be passed to the tracker.
        self.marks.note_event(by.cpu);
    }

    /// Emits the stores of an earlier instruction to tables.
    pub(super) fn check_stored(&mut self, by: Origin, address: u64, bytes: u64) {
        let ids = self.tables.at(address, bytes);
        let first = address & !7;
        let mut words = vec![0; (address + bytes - first).div_ceil(8) as usize];
        if ids.is_empty() || !self.memory.load(first, &mut words) {
            return;
        }
        let form = StoreForm::default();
        for (index, word) in words.into_iter().enumerate() {
            let at = first + index as u64 * 8;
            // The range may be larger than the store: it may have a store of another CPU whose
            // callback is still to come.
            let ids: Vec<TableId> = ids
                .iter()
                .copied()
                .filter(|id| self.differs(*id, at, word))
                .collect();
            if self.are_freed(&ids, at, &[word]) {
                ids.into_iter().for_each(|id| self.free(by, id));
            } else {
                self.store_word(by, &ids, at, word, form);
            }
        }
    }

    /// Returns whether a word of a table differs from the last reported one.
    fn differs(&self, id: TableId, address: u64, word: u64) -> bool {
        self.tables.get(id).is_some_and(|table| {
            let index = address.wrapping_sub(table.place.base) / 8;
            let reported = table.reported.get(index as usize);
            reported.is_some_and(|reported| *reported != word)
        })
    }

    /// Emits hardware's updates of a table since the last check, except at the address of the
    /// current store.
    fn look_for_hardware_updates(&mut self, by: Origin, id: TableId, but: u64) {
        const ACCESSED: u64 = 1 << 10;
        const READ_ONLY: u64 = 1 << 7;
        const DBM: u64 = 1 << 51;
        let Some(table) = self.tables.get_mut(id) else {
            return;
        };
        let mut now = vec![0; table.reported.len()];
        if !self.memory.load(table.place.base, &mut now) || now == *table.reported {
            return;
        }
        for (index, (reported, now)) in table.reported.iter_mut().zip(now).enumerate() {
            let address = table.place.base + index as u64 * 8;
            let changed = *reported ^ now;
            // In stage 2 this bit is S2AP[1], which hardware sets for a write.
            let by_hardware = changed & !(ACCESSED | READ_ONLY) == 0
                && *reported & now & 1 != 0
                && (changed & ACCESSED == 0 || now & ACCESSED != 0)
                && (changed & READ_ONLY == 0 || now & DBM != 0);
            if changed != 0 && by_hardware && address != but {
                *reported = now;
                let descriptor = now;
                let event = Event::found(address, descriptor);
                self.out.push((by, Seen::Event(event)));
            }
        }
    }

    pub(super) fn look_for_hardware_updates_everywhere(&mut self) {
        if !self.hardware_updates {
            return;
        }
        let by = Origin { cpu: 0, pc: 0 };
        for id in self.tables.all() {
            self.look_for_hardware_updates(by, id, u64::MAX);
        }
    }
}
