//! Which memory holds tables, what they hold, and what happens when they are stored to.

use super::geometry::{Entry, Place};
use super::marks::{LastStore, PAGE_SHIFT, TABLE, UNMAPPED};
use super::{LINE, Late, Memory, Origin, Store, Tracker};
use crate::decode::StoreForm;
use crate::stream::Seen;
use granule_trace::{Event, Visibility};
use std::collections::HashMap;

pub(super) type TableId = u32;

/// A table, with what was last told of its contents.
#[derive(Debug)]
struct Table {
    place: Place,
    /// How many TTBRs and table descriptors lead to it.
    references: u32,
    /// A TTBR led to it once: while no TTBR does, it may be a program's that waits.
    was_root: bool,
    told: Box<[u64]>,
}

impl Table {
    /// Whether what it leads to counts it: nothing leads to what only a table leads to that nothing leads to.
    const fn leads(&self) -> bool {
        self.references > 0 || self.was_root
    }

    /// Whether it may be the root of a program that waits. A program's that is taken apart is empty at its end.
    fn waits(&self) -> bool {
        self.was_root && self.told.iter().any(|value| *value != 0)
    }

    /// The tables and the leaves that it leads to.
    fn entries(&self) -> Vec<Entry> {
        let Place { form, level, .. } = self.place;
        let entries = self.told.iter().map(|value| form.entry(*value, level));
        entries.filter(|it| *it != Entry::Invalid).collect()
    }
}

/// Bits that are zero in the address of a page with a mark in it, which is no valid descriptor.
const LINK_ZEROS: u64 = 0xff9;

/// Bits that kernels leave zero where they link a table, and that a page's descriptor has some of: memory
/// type, AP, SH and nG. The access flag may be a table's too (FEAT_HAFT).
const OF_LEAVES: u64 = 0xbfc;

/// All tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    tables: Vec<Option<Table>>,
    free: Vec<TableId>,
    by_page: HashMap<u64, Vec<TableId>>,
    entries: u64,
}

/// What leads to a table from now on.
#[derive(Clone, Copy)]
enum Link {
    Register,
    /// A register, to a table that has other data in its page: which of them was stored to last is not
    /// known.
    Shared,
    Store(StoreForm),
}

impl Tables {
    fn get(&self, id: TableId) -> Option<&Table> {
        self.tables.get(id as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: TableId) -> Option<&mut Table> {
        self.tables.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn place(&self, id: TableId) -> Option<Place> {
        Some(self.get(id)?.place)
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.entries * 8
    }

    fn find(&self, place: Place) -> Option<TableId> {
        let ids = self.by_page.get(&(place.base >> PAGE_SHIFT))?;
        let is_it = |id: &&TableId| self.place(**id) == Some(place);
        ids.iter().find(is_it).copied()
    }

    /// Whether this is a table.
    pub(super) fn has(&self, place: Place) -> bool {
        self.find(place).is_some()
    }

    fn all(&self) -> Vec<TableId> {
        let ids = (0..).zip(&self.tables);
        ids.filter_map(|(id, table)| table.as_ref().map(|_| id))
            .collect()
    }

    /// The tables that hold some byte of a range inside of one page.
    fn at(&self, address: u64, bytes: u64) -> Vec<TableId> {
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

    fn add(&mut self, table: Table) -> TableId {
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
    fn remove(&mut self, id: TableId) -> Option<(Table, Vec<u64>)> {
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

fn pages(place: Place) -> std::ops::RangeInclusive<u64> {
    place.base >> PAGE_SHIFT..=(place.base + place.bytes() - 1) >> PAGE_SHIFT
}

/// The longest run of equal steps that begins at the first value: its length and step.
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
    /// A TTBR leads to a table.
    pub(super) fn link_root(&mut self, by: Origin, place: Place) -> Option<TableId> {
        let id = self.link(by, place, Link::Register)?;
        self.tables.get_mut(id)?.was_root = true;
        Some(id)
    }

    /// Something leads to a table. A table that is new here is told, with all below it.
    fn link(&mut self, by: Origin, place: Place, link: Link) -> Option<TableId> {
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
        let mut told = vec![0; place.entries as usize].into_boxed_slice();
        if !self.memory.load(place.base, &mut told) {
            self.miss(by, "tables outside of RAM");
            return None;
        }
        self.free_what_waits(by, place);
        let below: Vec<u64> = told
            .iter()
            .filter_map(|value| match place.form.entry(*value, place.level) {
                Entry::Table(address) => Some(address),
                _ => None,
            })
            .collect();
        let id = self.tables.add(Table {
            place,
            references: 1,
            was_root: false,
            told: told.clone(),
        });
        self.marks.set(place.base, place.bytes(), TABLE);
        self.marks.clear(place.base, place.bytes(), UNMAPPED);
        for address in below {
            self.link(by, place.below(address), link);
        }
        let (start, bytes) = (place.base, place.bytes());
        self.tell(by, Event::Obtained { start, bytes });
        let is_page = place.bytes() >= 1 << PAGE_SHIFT;
        self.tell_contents(by, start, &told, if is_page { link } else { Link::Shared });
        Some(id)
    }

    /// Tells what a table holds that is linked now, as it was stored: before or after a barrier,
    /// through or past the caches.
    fn tell_contents(&mut self, by: Origin, base: u64, values: &[u64], link: Link) {
        let mut at = 0;
        while let Some(rest) = values.get(at..).filter(|rest| !rest.is_empty()) {
            let address = base + at as u64 * 8;
            // Stamps are of pages.
            let left = ((1 << PAGE_SHIFT) - address % (1 << PAGE_SHIFT)) / 8;
            let page = &rest[..rest.len().min(left as usize)];
            at += page.len();
            let all = self.stored_how(by, address, link).1 != Visibility::Earlier;
            if all && self.was_cleared(by, address, link) {
                // The page was cleared some time ago, and something was stored to it since.
                self.tell_run(by, address, (page.len(), 0, 0), Visibility::Earlier);
                self.tell_page(by, address, page, link, true);
            } else {
                self.tell_page(by, address, page, link, false);
            }
        }
    }

    /// Whether a page was cleared, through the caches, by stores that come before the link.
    fn was_cleared(&self, by: Origin, address: u64, link: Link) -> bool {
        let last = self.marks.last_zero(address);
        let uncached = self.uncached.contains_key(&(address >> PAGE_SHIFT));
        !uncached && last.cpu.is_some() && Self::is_ordered(by, last, link)
    }

    /// Tells what a page holds, or only what is not zero.
    fn tell_page(&mut self, by: Origin, base: u64, values: &[u64], link: Link, nonzero: bool) {
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
            // A run ends where something was stored in another way.
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
            self.tell_run(by, address, (count, rest[0], step), visibility);
            at += count;
        }
    }

    fn tell_run(
        &mut self,
        by: Origin,
        address: u64,
        (count, descriptor, step): (usize, u64, u64),
        visibility: Visibility,
    ) {
        self.tell(
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

    /// The CPU that stored to a line of memory that becomes a table, and how the store relates to
    /// the link.
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

    /// Whether a store comes before a link for everybody who sees the link.
    fn is_ordered(by: Origin, last: LastStore, link: Link) -> bool {
        let own = last.cpu.is_none_or(|cpu| cpu == by.cpu);
        match link {
            Link::Register => last.completed,
            Link::Shared => true,
            Link::Store(form) => last.completed || own && (last.ordered || form.release),
        }
    }

    /// A TTBR leads to a table no more.
    pub(super) fn leave(&mut self, id: TableId) {
        if let Some(table) = self.tables.get_mut(id) {
            table.references = table.references.saturating_sub(1);
        }
    }

    /// A descriptor leads to a table no more.
    fn unlink(&mut self, place: Place) {
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

    /// A table was given back: it is stored to while nothing leads to it.
    fn free(&mut self, by: Origin, id: TableId) {
        let Some((table, emptied)) = self.tables.remove(id) else {
            return;
        };
        for page in emptied {
            self.marks.clear(page << PAGE_SHIFT, 1, TABLE);
        }
        let place = table.place;
        let (start, bytes) = (place.base, place.bytes());
        self.tell(by, Event::Freed { start, bytes });
        if !table.leads() {
            return;
        }
        for entry in table.entries() {
            if let Entry::Table(address) = entry {
                self.unlink(place.below(address));
            }
        }
    }

    /// Tables were given back where another one is now, if nothing leads to them.
    fn free_what_waits(&mut self, by: Origin, place: Place) {
        let end = place.base + place.bytes();
        for page in pages(place) {
            let start = (page << PAGE_SHIFT).max(place.base);
            for id in self
                .tables
                .at(start, end.min((page + 1) << PAGE_SHIFT) - start)
            {
                if self.tables.get(id).is_some_and(|it| it.references == 0) {
                    self.free(by, id);
                }
            }
        }
    }

    /// All tables are given back.
    pub(super) fn free_all(&mut self, by: Origin) {
        for id in self.tables.all() {
            self.free(by, id);
        }
    }

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
                                || index == 0 && *word & LINK_ZEROS == 0
                                || told != Some(Entry::Invalid) && told == Some(entry(*word | 1))
                        }
                    }
                };
                table.references == 0 && !words.iter().enumerate().all(keeps)
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
        for id in 0..self.tables.tables.len() as TableId {
            self.look_for_hardware_updates(by, id, u64::MAX);
        }
    }
}
