//! A machine of the judge's own: memory, the trees that CPUs walk, and the entries that TLBs may hold
//! although the tables no longer have them.
//!
//! It shares no code with the model that `granule check` uses, and it reports nothing: it only
//! keeps what may be used. It models EL1&0 with 48-bit output addresses, and no caches.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use granule_trace::{BarrierKind, Event, System, Visibility};

use super::entry::{Entry, NOT_GLOBAL};
use super::tlb::{Tlbi, Wait};

const ALL: (u64, u64) = (0, u64::MAX);
const VALID: u64 = 1;
const ACCESSED: u64 = 1 << 10;

/// Where a walk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) upper: bool,
    base: u64,
    pub(super) asid: Option<u16>,
    pub(super) page_shift: u32,
    va_bits: u32,
    hardware: bool,
}

/// A tree that some CPU walks, or may hold entries of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    pub(super) root: Root,
    pub(super) walking: u64,
    pub(super) holders: u64,
}

/// A table's place in a tree: the first address that it translates, and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TreePlace {
    tree: usize,
    va: u64,
    level: u8,
}

#[derive(Clone, Debug)]
struct Table {
    bytes: u64,
    places: Vec<TreePlace>,
}

/// An entry that TLBs may hold and the tables no longer have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stale {
    pub(super) entry: Entry,
    pub(super) cpus: u64,
    /// Until when a walker may still read it.
    pub(super) wait: Wait,
}

/// An entry that became valid, and the CPU that stored it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct New {
    pub(super) location: u64,
    pub(super) entry: Entry,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cpu {
    tcr: u64,
    ttbr: [u64; 2],
    on: bool,
    pub(super) trees: [Option<usize>; 2],
    /// Trees that it walked before a register write without an ISB since.
    pub(super) left: Vec<usize>,
    tlbis: Vec<Tlbi>,
    /// Entries removed from its TLB that instructions under way may use until its ISB.
    pub(super) draining: Vec<Entry>,
    /// Entries that it made valid since its last DSB, and since its last ISB.
    pub(super) unseen: Vec<New>,
    pub(super) unfetched: Vec<New>,
}

/// The machine, with its memory.
#[derive(Clone, Debug)]
pub struct Machine {
    memory: HashMap<u64, Box<[u64; 512]>>,
    tables: BTreeMap<u64, Table>,
    pub(super) trees: Vec<Option<Tree>>,
    pub(super) stale: Vec<Stale>,
    pub(super) cpus: Vec<Cpu>,
    /// The pages with stores that a link need not come after, with the CPUs that stored.
    unordered: BTreeMap<u64, BTreeSet<u32>>,
    /// Pages that were linked so: a walker may find what they held before.
    pub(super) garbage: BTreeSet<u64>,
    /// The trace's kernel unmaps its own addresses lazily: their memory may be used again meanwhile.
    pub lazy: bool,
    /// The trace's kernel takes a fault on an entry that a CPU does not find yet, or finds with fewer
    /// permissions, and goes on.
    pub spurious: bool,
    step: u64,
}

impl Machine {
    /// A machine that was just switched on.
    #[must_use]
    pub fn new(cpus: u32) -> Self {
        Self {
            memory: HashMap::new(),
            tables: BTreeMap::new(),
            trees: Vec::new(),
            stale: Vec::new(),
            cpus: vec![Cpu::default(); cpus as usize],
            unordered: BTreeMap::new(),
            garbage: BTreeSet::new(),
            lazy: false,
            spurious: false,
            step: 0,
        }
    }

    pub(super) fn load(&self, location: u64) -> u64 {
        let page = self.memory.get(&(location >> 12));
        page.map_or(0, |page| page[(location >> 3) as usize % 512])
    }

    fn set(&mut self, location: u64, raw: u64) {
        let page = self.memory.entry(location >> 12);
        page.or_insert_with(|| Box::new([0; 512]))[(location >> 3) as usize % 512] = raw;
    }

    pub fn apply(&mut self, cpu: u32, event: &Event) {
        self.step += 1;
        match *event {
            Event::Store {
                address,
                count,
                descriptor,
                step,
                visibility,
            } => {
                for index in 0..u64::from(count) {
                    let raw = descriptor.wrapping_add(step.wrapping_mul(index));
                    self.store(cpu, address + 8 * index, raw, visibility);
                }
            }
            Event::Update {
                address,
                count,
                change,
                visibility,
            } => {
                for location in (0..u64::from(count)).map(|index| address + 8 * index) {
                    let old = self.load(location);
                    if old & change.of != 0 {
                        let raw = (old & !change.clear) | change.set;
                        self.store(cpu, location, raw, visibility);
                    }
                }
            }
            Event::Found {
                address,
                descriptor,
            } => self.set(address, descriptor),
            Event::Freed { start, bytes } => self.drop_trees(start, bytes),
            Event::User => self.isb(cpu),
            Event::Barrier(barrier) => match barrier.kind {
                BarrierKind::Isb => self.isb(cpu),
                BarrierKind::Dsb => self.dsb(cpu, barrier.option),
                _ => self.order(cpu),
            },
            Event::System(system, value) if system.is_tlbi() => {
                if let Some(tlbi) =
                    Tlbi::read(system, value, self.cpus[cpu as usize].has_ds(), self.step)
                {
                    self.cpus[cpu as usize].tlbis.push(tlbi);
                }
            }
            Event::System(system, value) => self.register(cpu, system, value),
            _ => {}
        }
    }

    fn isb(&mut self, cpu: u32) {
        let now = self.step;
        let state = &mut self.cpus[cpu as usize];
        state.draining.clear();
        state.unfetched.clear();
        for tree in std::mem::take(&mut state.left) {
            let current = self.cpus[cpu as usize].trees.contains(&Some(tree));
            if let (Some(tree), false) = (&mut self.trees[tree], current) {
                tree.walking &= !(1 << cpu);
            }
        }
        for stale in &mut self.stale {
            stale.wait.over(Wait::Isb(cpu), now);
        }
    }

    /// Orders the stores of a CPU before its later ones.
    fn order(&mut self, cpu: u32) {
        self.unordered.retain(|_, cpus| {
            cpus.remove(&cpu);
            !cpus.is_empty()
        });
    }

    fn dsb(&mut self, cpu: u32, option: u8) {
        let now = self.step;
        let local = option >> 2 == 1 && self.cpus.len() > 1;
        if !local {
            self.order(cpu);
            self.cpus[cpu as usize].unseen.clear();
            for stale in &mut self.stale {
                stale.wait.over(Wait::Dsb(cpu), now);
            }
        }
        if option & 1 == 0 {
            return;
        }
        let tlbis = std::mem::take(&mut self.cpus[cpu as usize].tlbis);
        let (done, waiting): (Vec<_>, Vec<_>) =
            tlbis.into_iter().partition(|one| one.local || !local);
        self.cpus[cpu as usize].tlbis = waiting;
        for tlbi in done {
            self.complete(cpu, &tlbi);
        }
    }

    fn complete(&mut self, cpu: u32, tlbi: &Tlbi) {
        let mask = if tlbi.local { 1 << cpu } else { u64::MAX };
        let own = &mut self.cpus[cpu as usize].draining;
        self.stale.retain_mut(|stale| {
            if tlbi.removes(&stale.entry) && stale.wait.is_before(tlbi.issued) {
                if stale.cpus & mask & (1 << cpu) != 0 && own.len() < 4096 {
                    own.push(stale.entry);
                }
                stale.cpus &= !mask;
            }
            stale.cpus != 0
        });
        for tree in self.trees.iter_mut().flatten() {
            if tlbi.removes_tree(tree.root.asid) {
                tree.holders &= tree.walking | !mask;
            }
        }
    }

    /// A register write: the CPU may walk other trees.
    fn register(&mut self, cpu: u32, system: System, value: u64) {
        let state = &mut self.cpus[cpu as usize];
        match system {
            System::TCR_EL1 => state.tcr = value,
            System::TTBR0_EL1 => state.ttbr[0] = value,
            System::TTBR1_EL1 => state.ttbr[1] = value,
            System::SCTLR_EL1 => state.on = value & 1 != 0,
            _ => return,
        }
        for half in 0..2 {
            let root = self.cpus[cpu as usize].root(half == 1);
            self.enter(cpu, half, root);
        }
    }

    fn enter(&mut self, cpu: u32, half: usize, root: Option<Root>) {
        let bit = 1 << cpu;
        let old = self.cpus[cpu as usize].trees[half];
        let known = |tree: &Option<Tree>| tree.map(|tree| tree.root) == root && root.is_some();
        let new = self.trees.iter().position(known);
        if old == new && (new.is_some() || root.is_none()) {
            return;
        }
        self.cpus[cpu as usize].left.extend(old);
        let Some(root) = root else {
            self.cpus[cpu as usize].trees[half] = None;
            return;
        };
        let new = new.unwrap_or_else(|| {
            self.trees.push(Some(Tree {
                root,
                walking: 0,
                holders: 0,
            }));
            let tree = self.trees.len() - 1;
            let bytes = root.top_entries() * 8;
            self.link(tree, root.base, bytes, root.first(), root.start_level());
            tree
        });
        // Its entries of other trees under the same ASID are stale from here on.
        for other in 0..self.trees.len() {
            let Some(tree) = self.trees[other] else {
                continue;
            };
            let same = tree.root.upper == root.upper && tree.root.asid == root.asid;
            if other != new && same && tree.holders & bit != 0 {
                let wait = Wait::Isb(cpu);
                let stale = self.entries_of(other).into_iter();
                let stale = stale.map(|entry| Stale {
                    entry,
                    cpus: bit,
                    wait,
                });
                self.stale.extend(stale.collect::<Vec<_>>());
                if let Some(tree) = &mut self.trees[other] {
                    tree.holders &= !bit;
                }
            }
        }
        self.cpus[cpu as usize].trees[half] = Some(new);
        if let Some(tree) = &mut self.trees[new] {
            tree.walking |= bit;
            tree.holders |= bit;
        }
        if !self.stale.is_empty() {
            for entry in self.entries_of(new) {
                self.cancel(&entry);
            }
        }
    }

    /// Trees whose top table is given back: what is left in them is stale where it was held.
    fn drop_trees(&mut self, start: u64, bytes: u64) {
        for index in 0..self.trees.len() {
            let Some(tree) = self.trees[index] else {
                continue;
            };
            if tree.walking != 0 || !(start..start + bytes).contains(&tree.root.base) {
                continue;
            }
            let wait = Wait::Over(self.step);
            for entry in self.entries_of(index) {
                self.stale.push(Stale {
                    entry,
                    cpus: tree.holders,
                    wait,
                });
            }
            self.unlink(index, tree.root.base, tree.root.start_level());
            self.trees[index] = None;
            self.stale.retain(|stale| stale.cpus != 0);
        }
    }

    /// A table becomes part of a tree, with all below it.
    fn link(&mut self, tree: usize, base: u64, bytes: u64, va: u64, level: u8) {
        let place = TreePlace { tree, va, level };
        let empty = || Table {
            bytes,
            places: Vec::new(),
        };
        self.tables
            .entry(base)
            .or_insert_with(empty)
            .places
            .push(place);
        for page in base >> 12..=(base + bytes - 1) >> 12 {
            if self.unordered.contains_key(&page) {
                self.garbage.insert(page);
            }
        }
        for entry in self.entries_in(tree, (base, va, level), bytes, ALL) {
            if !entry.leaf {
                let bytes = 1 << entry.page_shift;
                self.link(tree, entry.output(), bytes, entry.va, level + 1);
            }
        }
    }

    fn unlink(&mut self, tree: usize, base: u64, level: u8) {
        let Some(table) = self.tables.get_mut(&base) else {
            return;
        };
        let Some(at) = table
            .places
            .iter()
            .position(|one| one.tree == tree && one.level == level)
        else {
            return;
        };
        let (place, bytes) = (table.places.swap_remove(at), table.bytes);
        if table.places.is_empty() {
            self.tables.remove(&base);
        }
        for entry in self.entries_in(tree, (base, place.va, level), bytes, ALL) {
            if !entry.leaf {
                self.unlink(tree, entry.output(), level + 1);
            }
        }
    }

    /// The entry with this descriptor, if it is valid and a TLB may hold it.
    fn entry(&self, tree: usize, va: u64, level: u8, raw: u64) -> Option<Entry> {
        let root = self.trees[tree].as_ref()?.root;
        let table = raw & 2 != 0 && level < 3;
        let invalid = raw & VALID == 0 || (level == 3 && raw & 2 == 0);
        let cached = table || raw & ACCESSED != 0 || root.hardware;
        let global = !table && raw & NOT_GLOBAL == 0;
        (!invalid && cached).then_some(Entry {
            upper: root.upper,
            asid: if global { None } else { root.asid },
            page_shift: root.page_shift,
            va,
            shift: root.shift(level),
            level,
            leaf: !table,
            raw,
        })
    }

    /// Whether lookups may begin in a tree. Where a CPU walks another tree of the same half and ASID, they begin
    /// there and no longer in those that were walked before. An empty tree takes no place: a kernel
    /// goes through one from one program to the next.
    pub(super) fn is_looked_in(&self, tree: &Tree) -> bool {
        let takes_place = |(index, other): (usize, &Option<Tree>)| {
            other.is_some_and(|Tree { root, walking, .. }| {
                let same = (root.upper, root.asid) == (tree.root.upper, tree.root.asid);
                let top = (root.base, root.first(), root.start_level());
                let entries = || self.entries_in(index, top, root.top_entries() * 8, ALL);
                walking != 0 && same && !entries().is_empty()
            })
        };
        tree.walking != 0 || !self.trees.iter().enumerate().any(takes_place)
    }

    /// The valid entries of a table that translate some of a range.
    fn entries_in(
        &self,
        tree: usize,
        (base, va, level): (u64, u64, u8),
        bytes: u64,
        (first, last): (u64, u64),
    ) -> Vec<Entry> {
        let Some(root) = self.trees[tree].as_ref().map(|tree| tree.root) else {
            return Vec::new();
        };
        let shift = root.shift(level);
        let (entries, end) = (bytes / 8, va + ((bytes / 8 - 1) << shift));
        if last < va || first > end + ((1 << shift) - 1) {
            return Vec::new();
        }
        let from = first.saturating_sub(va) >> shift;
        let to = ((last - va) >> shift).min(entries - 1);
        let entry = |index: u64| {
            let raw = self.load(base + 8 * index);
            self.entry(tree, va + (index << shift), level, raw)
        };
        (from..=to).filter_map(entry).collect()
    }

    pub(super) fn entries_of(&self, tree: usize) -> Vec<Entry> {
        self.entries_between(tree, 0, u64::MAX)
    }

    /// The leaves of a tree, and its pointers to tables, that translate some of a range.
    pub(super) fn entries_between(&self, tree: usize, first: u64, last: u64) -> Vec<Entry> {
        let mut found = Vec::new();
        if let Some(root) = self.trees[tree].as_ref().map(|tree| tree.root) {
            let top = (root.base, root.first(), root.start_level());
            self.collect(tree, top, (first, last), &mut found);
        }
        found
    }

    /// The leaves that a walk finds from a cached pointer on.
    pub(super) fn leaves_below(&self, pointer: &Entry) -> Vec<Entry> {
        let mut found = Vec::new();
        let mut tables = vec![(pointer.output(), pointer.va, pointer.level + 1)];
        while let Some((base, va, level)) = tables.pop() {
            let shift = pointer.page_shift + u32::from(3 - level) * (pointer.page_shift - 3);
            for index in 0..1u64 << (pointer.page_shift - 3) {
                let raw = self.load(base + 8 * index);
                let table = raw & 2 != 0 && level < 3;
                if raw & VALID == 0 || (level == 3 && raw & 2 == 0) {
                    continue;
                }
                let global = !table && raw & NOT_GLOBAL == 0;
                let entry = Entry {
                    asid: if global { None } else { pointer.asid },
                    va: va + (index << shift),
                    shift,
                    level,
                    leaf: !table,
                    raw,
                    ..*pointer
                };
                if table {
                    tables.push((entry.output(), entry.va, level + 1));
                } else if raw & ACCESSED != 0 {
                    found.push(entry);
                }
            }
        }
        found
    }

    fn collect(
        &self,
        tree: usize,
        (base, va, level): (u64, u64, u8),
        (first, last): (u64, u64),
        found: &mut Vec<Entry>,
    ) {
        let Some(bytes) = self.tables.get(&base).map(|table| table.bytes) else {
            return;
        };
        for entry in self.entries_in(tree, (base, va, level), bytes, (first, last)) {
            found.push(entry);
            if !entry.leaf {
                self.collect(
                    tree,
                    (entry.output(), entry.va, level + 1),
                    (first, last),
                    found,
                );
            }
        }
    }

    /// The entry is in the tables again.
    fn cancel(&mut self, entry: &Entry) {
        self.stale.retain(|stale| stale.entry != *entry);
    }

    /// The entries that a location holds, in all trees, with its present descriptor.
    pub(super) fn entries_at(&self, location: u64) -> Vec<(usize, Entry)> {
        let table = self.tables.range(..=location).next_back();
        let Some((base, table)) = table.filter(|(base, one)| location - **base < one.bytes) else {
            return Vec::new();
        };
        let index = (location - base) / 8;
        let raw = self.load(location);
        let entry = |place: &TreePlace| {
            let root = self.trees[place.tree].as_ref()?.root;
            let va = place.va + (index << root.shift(place.level));
            Some((place.tree, self.entry(place.tree, va, place.level, raw)?))
        };
        table.places.iter().filter_map(entry).collect()
    }

    fn store(&mut self, cpu: u32, location: u64, raw: u64, visibility: Visibility) {
        let old = self.load(location);
        if visibility == Visibility::Publish {
            self.order(cpu);
        }
        if old != raw {
            for (tree, entry) in self.entries_at(location) {
                let cpus = self.trees[tree].map_or(0, |tree| tree.holders);
                let wait = Wait::Dsb(cpu);
                self.stale.push(Stale { entry, cpus, wait });
                if !entry.leaf {
                    for below in self.entries_between(tree, entry.va, entry.last()) {
                        if below.level > entry.level {
                            let entry = below;
                            self.stale.push(Stale { entry, cpus, wait });
                        }
                    }
                    self.unlink(tree, entry.output(), entry.level + 1);
                }
            }
        }
        self.set(location, raw);
        let now = self.entries_at(location);
        // A value that was stored earlier is where every walker sees it.
        if now.is_empty() && visibility != Visibility::Earlier {
            self.unordered
                .entry(location >> 12)
                .or_default()
                .insert(cpu);
        }
        if old == raw {
            return;
        }
        for (tree, entry) in now {
            if !entry.leaf {
                let bytes = 1 << entry.page_shift;
                self.link(tree, entry.output(), bytes, entry.va, entry.level + 1);
            }
            self.cancel(&entry);
            if old & VALID == 0 {
                let new = New { location, entry };
                self.cpus[cpu as usize].unseen.push(new);
                self.cpus[cpu as usize].unfetched.push(new);
            }
        }
        self.stale.retain(|stale| stale.cpus != 0);
    }
}

impl Machine {
    /// One more step without an event: the event that is left out.
    pub(super) const fn skip(&mut self) {
        self.step += 1;
    }

    /// Whether two machines with the same memory differ in nothing that matters later.
    pub(super) fn has_met(&self, other: &Self) -> bool {
        let alike = |(one, two): (&Stale, &Stale)| {
            let over = |wait| matches!(wait, Wait::Over(_));
            let wait = one.wait == two.wait || over(one.wait) && over(two.wait);
            one.entry == two.entry && one.cpus == two.cpus && wait
        };
        let walked = |machine: &Self| {
            let trees = machine.trees.iter().flatten();
            let walked = trees.map(|tree| (tree.root.upper, tree.root.base, tree.holders));
            walked.collect::<Vec<_>>()
        };
        self.stale.len() == other.stale.len()
            && self.stale.iter().zip(&other.stale).all(alike)
            && self.cpus == other.cpus
            && self.unordered == other.unordered
            && self.garbage == other.garbage
            && walked(self) == walked(other)
    }
}

impl Cpu {
    /// TCR.DS: the operands of TLBIs by range are in other units. No address here has more than 48
    /// bits, so that descriptors and TTBRs are alike with it and without.
    const fn has_ds(&self) -> bool {
        self.tcr >> 59 & 1 != 0
    }

    /// The root of a half, if it is translated.
    fn root(&self, upper: bool) -> Option<Root> {
        let (size, granule, disabled) = if upper {
            (
                self.tcr >> 16 & 0x3f,
                self.tcr >> 30 & 3,
                self.tcr >> 23 & 1,
            )
        } else {
            (self.tcr & 0x3f, self.tcr >> 14 & 3, self.tcr >> 7 & 1)
        };
        let page_shift = match (upper, granule) {
            (false, 0) | (true, 2) => 12,
            (false, 2) | (true, 1) => 14,
            (false, 1) | (true, 3) => 16,
            _ => return None,
        };
        let ttbr = self.ttbr[usize::from(upper)];
        // TCR.A1.
        let of_asid = self.ttbr[(self.tcr >> 22 & 1) as usize];
        let mask = if self.tcr >> 36 & 1 != 0 {
            0xffff
        } else {
            0xff
        };
        (self.on && disabled == 0 && (16..=48).contains(&size)).then_some(Root {
            upper,
            base: ttbr & 0x0000_ffff_ffff_fffe,
            asid: (!upper).then_some((of_asid >> 48) as u16 & mask),
            page_shift,
            va_bits: 64 - size as u32,
            hardware: self.tcr >> 39 & 1 != 0,
        })
    }
}

impl Root {
    const fn shift(&self, level: u8) -> u32 {
        self.page_shift + (3 - level as u32) * (self.page_shift - 3)
    }

    const fn start_level(&self) -> u8 {
        3 - ((self.va_bits - 1 - self.page_shift) / (self.page_shift - 3)) as u8
    }

    const fn top_entries(&self) -> u64 {
        1 << (self.va_bits - self.shift(self.start_level()))
    }

    const fn first(&self) -> u64 {
        if self.upper {
            u64::MAX << self.va_bits
        } else {
            0
        }
    }
}
