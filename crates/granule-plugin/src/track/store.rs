//! Stores to memory that is or was a table, or that a mapping led to: what is told of each, and what hardware
//! stored to tables meanwhile.

use super::geometry::Entry;
use super::link::Link;
use super::marks::{PAGE_SHIFT, TABLE, UNMAPPED};
use super::tables::{TableId, is_link};
use super::{LINE, Late, Memory, Origin, Store, Tracker};
use crate::decode::StoreForm;
use crate::stream::Seen;
use granule_trace::{Event, Visibility};

/// Bits that kernels leave zero where they link a table, and that a page's descriptor has some of: memory
/// type, AP, SH and nG. The access flag may be a table's too (FEAT_HAFT).
const OF_LEAVES: u64 = 0xbfc;

impl<M: Memory> Tracker<'_, M> {
    /// A store to a page with a flag, or past the caches.
    pub fn store(&mut self, by: Origin, store: Store) {
        self.begin(by);
        let address = store.address;
        let bytes = u64::from(store.bytes);
        // A device's registers.
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
        if self.is_given_back(&ids, first, &words[..count]) {
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

    /// Whether a store of these words means that the tables there were given back: nothing leads to
    /// any of them, and the words are no change of a tree that is taken apart, or of a program's
    /// that waits. A list of tables that wait for their invalidation may be in their first words, or
    /// in a word that keeps the address of the table below: a walk finds no valid descriptor there.
    fn is_given_back(&self, ids: &[TableId], first: u64, words: &[u64]) -> bool {
        let mut tables = ids.iter().filter_map(|id| self.tables.get(*id)).peekable();
        tables.peek().is_some()
            && tables.all(|table| {
                let keeps = |(index, word): (usize, &u64)| {
                    let place = table.place;
                    let index = first.wrapping_sub(place.base) / 8 + index as u64;
                    let entry = |value| place.form.entry(value, place.level);
                    let told = table.told.get(index as usize).map(|it| entry(*it));
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
                                || told != Some(Entry::Invalid) && told == Some(entry(*word | 1))
                        }
                    }
                };
                table.references == 0 && !words.iter().enumerate().all(keeps)
            })
    }

    /// Whether one of these words would lead to a table where no memory is: it is no descriptor.
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

    /// One descriptor of tables is stored.
    fn store_word(&mut self, by: Origin, ids: &[TableId], address: u64, new: u64, form: StoreForm) {
        let mut changed = Vec::new();
        for id in ids {
            let Some(table) = self.tables.get(*id) else {
                continue;
            };
            let index = address.wrapping_sub(table.place.base) / 8;
            if let Some(old) = table.told.get(index as usize)
                && *old != new
            {
                changed.push((*id, table.place, index as usize, *old, table.leads()));
            }
        }
        if changed.is_empty() {
            return;
        }
        let mut is_link = false;
        for (_, place, _, _, leads) in &changed {
            if let Entry::Table(below) = place.form.entry(new, place.level)
                && *leads
            {
                is_link = true;
                self.late = Late::default();
                self.link(by, place.below(below), Link::Store(form));
                self.tell_late_barrier(by);
            }
        }
        // A line names one form: for a link the release matters, else that nothing comes between.
        let visibility = match form {
            StoreForm { release: true, .. } if is_link => Visibility::Publish,
            StoreForm { exchange: true, .. } => Visibility::Exchange,
            StoreForm { release: true, .. } => Visibility::Publish,
            _ => Visibility::Live,
        };
        self.tell(
            by,
            Event::Store {
                address,
                count: 1,
                descriptor: new,
                step: 0,
                visibility,
            },
        );
        for (id, place, index, old, leads) in changed {
            if let Some(told) = self
                .tables
                .get_mut(id)
                .and_then(|table| table.told.get_mut(index))
            {
                *told = new;
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

    /// Memory is stored to that a mapping led to before: told once.
    fn reuse(&mut self, by: Origin, address: u64, bytes: u64) {
        let flags = self.marks.flags(address);
        if flags & UNMAPPED != 0 {
            self.marks.clear(address, 1, UNMAPPED);
        }
        // A store to a table is told anyway.
        if flags & (UNMAPPED | TABLE) == UNMAPPED {
            self.flush_lines(by.cpu);
            self.marks.told(by.cpu);
            let event = Event::Reused {
                start: address,
                bytes,
            };
            self.out.push((by, Seen::Event(event)));
        }
    }

    /// An instruction that has no store of its own (DC ZVA, CPY, SET) will store to a range inside
    /// of one page, or fault. It may store to more: to all of the block of `block` bytes, a power of
    /// two, that the range is in.
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
        // The next barrier of the CPU must come here.
        self.marks.told(by.cpu);
    }

    /// Tells what an earlier instruction stored to tables.
    pub(super) fn look_at_stored(&mut self, by: Origin, address: u64, bytes: u64) {
        let ids = self.tables.at(address, bytes);
        let first = address & !7;
        let mut words = vec![0; (address + bytes - first).div_ceil(8) as usize];
        if ids.is_empty() || !self.memory.load(first, &mut words) {
            return;
        }
        let form = StoreForm::default();
        for (index, word) in words.into_iter().enumerate() {
            let at = first + index as u64 * 8;
            // More was looked at than was stored: another CPU's store may be in memory whose call is to come.
            let ids: Vec<TableId> = ids
                .iter()
                .copied()
                .filter(|id| self.tells_other(*id, at, word))
                .collect();
            if self.is_given_back(&ids, at, &[word]) {
                ids.into_iter().for_each(|id| self.free(by, id));
            } else {
                self.store_word(by, &ids, at, word, form);
            }
        }
    }

    /// Whether a word of a table is not the one that was last told.
    fn tells_other(&self, id: TableId, address: u64, word: u64) -> bool {
        self.tables.get(id).is_some_and(|table| {
            let index = address.wrapping_sub(table.place.base) / 8;
            let told = table.told.get(index as usize);
            told.is_some_and(|told| *told != word)
        })
    }

    /// Tells what hardware changed in a table since it was last looked at, but at the address that
    /// is stored to now.
    fn look_for_hardware_updates(&mut self, by: Origin, id: TableId, but: u64) {
        const ACCESSED: u64 = 1 << 10;
        const READ_ONLY: u64 = 1 << 7;
        const DBM: u64 = 1 << 51;
        let Some(table) = self.tables.get_mut(id) else {
            return;
        };
        let mut now = vec![0; table.told.len()];
        if !self.memory.load(table.place.base, &mut now) || now == *table.told {
            return;
        }
        for (index, (told, now)) in table.told.iter_mut().zip(now).enumerate() {
            let address = table.place.base + index as u64 * 8;
            let changed = *told ^ now;
            // In stage 2 the bit that hardware changes for a write is S2AP[1], which it sets.
            let by_hardware = changed & !(ACCESSED | READ_ONLY) == 0
                && *told & now & 1 != 0
                && (changed & ACCESSED == 0 || now & ACCESSED != 0)
                && (changed & READ_ONLY == 0 || now & DBM != 0);
            if changed != 0 && by_hardware && address != but {
                *told = now;
                let descriptor = now;
                let event = Event::Found {
                    address,
                    descriptor,
                };
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
