//! Live tables as a CPU sees them while an operation changes them, store by store.
//!
//! The model keeps the linked tables and the entries that a CPU may have cached. Each store is
//! checked by the rules for changes of valid entries (RWHZWS, with the relaxations of FEAT_BBM
//! levels 1 to 3, RPVTFW). A removed entry stays in the model until TLBIs that reach it, and the
//! barriers around them (RDDMVT), have completed. No code comes from the library.
//!
//! Other rules: IWZCBG (invalid to valid needs no TLBI), RLQLSD (the contiguous bit enlarges no
//! TLBI), RSQXYZ (a wrong level hint invalidates nothing).

use super::host::Event;
use super::performed::{Operation, Performed};
use super::tlbi::{ADDRESS, Covered, decode};
use super::walk::{Arch, Leaf, Table};
use granule::arch::Regime;
use granule::arch::tlbi::TlbiOp;
use std::collections::{BTreeMap, BTreeSet};

const CONTIGUOUS: u64 = 1 << 52;
const ACCESSED: u64 = 1 << 10;

/// The entry at an offset and level.
enum Entry {
    Nothing,
    Leaf(Leaf),
    Table(u64),
}

/// The step of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Stores follow, up to the next round.
    Storing,
    /// DSB ISHST was issued: TLBIs follow, and the DSBs that complete them.
    Invalidating { rounds: usize },
    /// Stage 2: all of a guest is invalidated by intermediate physical address. TLBIs of what its
    /// CPUs combined with their own tables follow, each with its DSB.
    Combined { rounds: usize },
    /// Every removed entry is invalidated, or none was removed: an ISB follows.
    Complete,
    /// ISB was issued: tables may be freed.
    Synchronised,
}

struct Replay<'a> {
    performed: &'a Performed<'a>,
    arch: Arch,
    linked: BTreeMap<u64, Table>,
    /// Tables by level and the offset at which their translation starts.
    places: BTreeMap<(i32, u64), u64>,
    /// The valid leaves now.
    leaves: BTreeMap<u64, Leaf>,
    /// The words of tables that are not linked yet.
    fresh: BTreeMap<u64, Vec<u64>>,
    /// Tables that were unlinked but not freed.
    unlinked: BTreeSet<u64>,
    /// Removed entries that may still be cached.
    stale: Vec<Leaf>,
    pointers: Vec<Table>,
    phase: Phase,
    /// Stores since the last round, then those that a walker can notice.
    stores: usize,
    visible: usize,
    round: Vec<Covered>,
    /// TLBIs of what is combined that no DSB has completed.
    combined: usize,
}

/// Replays all events; panics on the first violation.
pub fn replay(performed: &Performed<'_>) {
    let tables = &performed.before.tables;
    let mut replay = Replay {
        performed,
        arch: performed.arch,
        linked: tables.iter().map(|t| (t.address, *t)).collect(),
        places: tables
            .iter()
            .map(|t| ((t.level, t.offset), t.address))
            .collect(),
        leaves: performed
            .before
            .leaves
            .iter()
            .map(|l| (l.offset, *l))
            .collect(),
        fresh: BTreeMap::new(),
        unlinked: BTreeSet::new(),
        stale: Vec::new(),
        pointers: Vec::new(),
        phase: Phase::Storing,
        stores: 0,
        visible: 0,
        round: Vec::new(),
        combined: 0,
    };
    for event in performed.events {
        replay.event(event);
    }
    replay.end();
}

impl Replay<'_> {
    fn event(&mut self, event: &Event) {
        match *event {
            Event::Reserve(_) => {}
            Event::Allocate { first, count } => {
                for page in 0..count as u64 {
                    let words = vec![u64::MAX; self.arch.entries()];
                    self.fresh.insert(first + page * self.arch.page(), words);
                }
            }
            Event::Store {
                table,
                first,
                count,
                descriptor,
                step,
                ..
            } => {
                for number in 0..count {
                    let word = descriptor.wrapping_add(step.wrapping_mul(number as u64));
                    self.store(table, first + number, word);
                }
            }
            Event::Change {
                table,
                index,
                descriptor,
                ..
            } => self.store(table, index, descriptor),
            Event::DsbIshst => {
                assert_eq!(self.phase, Phase::Storing, "DSB ISHST after the stores");
                self.phase = Phase::Invalidating { rounds: 0 };
            }
            Event::Tlbi(op) => {
                let ready = matches!(self.phase, Phase::Invalidating { .. });
                assert!(ready, "a TLBI when it is the turn of {:?}", self.phase);
                self.round.push(decode(&self.arch, op));
            }
            Event::OtherTlbi(regime, op) => {
                assert!(
                    matches!(self.phase, Phase::Combined { .. }),
                    "a TLBI of {regime:?} when it is the turn of {:?}",
                    self.phase
                );
                assert_eq!((regime, op), (Regime::El1And0, TlbiOp::All));
                assert_eq!(self.combined, 0, "twice without a DSB");
                self.combined += 1;
            }
            Event::DsbIsh => self.complete(),
            Event::Isb => {
                if self.phase == (Phase::Invalidating { rounds: 0 }) {
                    // No entry was valid before: DSB ISHST and ISB publish the new entries.
                    assert!(self.round.is_empty(), "TLBIs are not complete");
                    // An empty map operation issues these barriers too, and so does a change of the
                    // access flag of leaves that are invalid.
                    let operation = self.performed.operation;
                    let new = self.visible > 0
                        || matches!(operation, Operation::Map | Operation::Attributes);
                    assert!(new, "barriers, but nothing that a walker can see");
                    assert!(self.stale.is_empty(), "no TLBI for {:x?}", self.stale);
                    assert!(self.pointers.is_empty(), "no TLBI, but unlinked tables");
                } else {
                    assert_eq!(self.phase, Phase::Complete, "TLBI, DSB ISH, then ISB");
                }
                self.phase = Phase::Synchronised;
                (self.stores, self.visible) = (0, 0);
            }
            Event::Free(table) => {
                assert_eq!(
                    self.phase,
                    Phase::Synchronised,
                    "a table is freed before the TLBIs are complete"
                );
                let waited = self.unlinked.remove(&table);
                assert!(waited, "{table:#x} is freed, but was not unlinked");
            }
        }
    }

    /// Whether the operation may invalidate before its last stores: a merge frees tables in
    /// between, a change of memory type breaks leaves and makes them again, and a group that
    /// hardware may update is split in a round of its own.
    fn several_rounds(&self) -> bool {
        let updated =
            |leaf: &Leaf| leaf.word & CONTIGUOUS != 0 && self.arch.may_be_updated(leaf.word);
        matches!(
            self.performed.operation,
            Operation::Merge | Operation::Attributes
        ) || self.performed.before.leaves.iter().any(updated)
    }

    /// DSB ISH completes a round of TLBIs.
    fn complete(&mut self) {
        if let Phase::Combined { rounds } = self.phase {
            assert_eq!(self.combined, 1, "DSB ISH without a TLBI");
            self.combined = 0;
            self.phase = self.after(rounds, Phase::Complete, |rounds| Phase::Combined { rounds });
            return;
        }
        let Phase::Invalidating { rounds } = self.phase else {
            panic!("DSB ISH when it is the turn of {:?}", self.phase);
        };
        assert!(!self.round.is_empty(), "DSB ISH without a TLBI");
        assert!(self.stores > 0, "nothing was changed, but TLBIs are issued");
        let round = core::mem::take(&mut self.round);
        self.covers(&round);
        // An operation on all of a guest removes what is combined too.
        let whole = round.iter().any(|covered| covered.whole);
        let next = if self.arch.stage2 && !whole {
            Phase::Combined { rounds: 0 }
        } else {
            Phase::Complete
        };
        self.phase = self.after(rounds, next, |rounds| Phase::Invalidating { rounds });
        if self.phase == next {
            self.stale.clear();
            self.pointers.clear();
        }
    }

    /// The phase after a round: an erratum takes each round twice.
    fn after(&self, rounds: usize, next: Phase, again: impl Fn(usize) -> Phase) -> Phase {
        if rounds == usize::from(self.performed.repeat) {
            next
        } else {
            again(rounds + 1)
        }
    }

    fn end(&self) {
        let changed = self.phase != Phase::Storing;
        if !changed {
            assert_ne!(
                self.performed.operation,
                Operation::Map,
                "nothing published"
            );
            let unflushed = self.performed.operation == Operation::Unflushed;
            assert!(self.visible == 0 || unflushed, "stores, but no barrier");
        } else {
            assert_eq!(self.phase, Phase::Synchronised, "the last round ends early");
        }
        assert!(self.stale.is_empty() && self.pointers.is_empty());
        assert!(self.unlinked.is_empty(), "unlinked tables are not freed");
        // The model must end in the state of the tables.
        let leaves: Vec<Leaf> = self.leaves.values().copied().collect();
        assert_eq!(leaves, self.performed.after.leaves);
    }

    fn store(&mut self, table: u64, index: usize, word: u64) {
        if let Some(words) = self.fresh.get_mut(&table) {
            words[index] = word;
            return;
        }
        if self.unlinked.contains(&table) {
            // Unmapping stores a chain into unlinked tables. Their range is no longer mapped, so an
            // entry that becomes invalid early does no harm. When merging it would.
            assert_eq!(
                self.performed.operation,
                Operation::Unmap,
                "a store into a table that is unlinked, but may still be walked"
            );
            assert_eq!((index, word & 1), (0, 0), "a chain that walkers can follow");
            return;
        }
        match self.phase {
            Phase::Storing => {}
            Phase::Synchronised if self.several_rounds() => self.phase = Phase::Storing,
            phase => panic!("a store when it is the turn of {phase:?}"),
        }
        let place = self.linked[&table];
        let level = place.level;
        let offset = place.offset + index as u64 * self.arch.entry_bytes(level);
        let new = self.read(offset, level, word);
        let old = self.entry(offset, level);
        self.stores += 1;
        self.visible += usize::from(!matches!((&old, &new), (Entry::Nothing, Entry::Nothing)));
        match (old, new) {
            (Entry::Nothing, Entry::Nothing) => {}
            (Entry::Nothing, Entry::Leaf(leaf)) => {
                let end = leaf.offset + leaf.bytes;
                let over = |old: &Leaf| old.offset < end && leaf.offset < old.offset + old.bytes;
                assert!(
                    !self.stale.iter().any(over),
                    "{leaf:x?} is made before the break is invalidated"
                );
                self.leaves.insert(offset, leaf);
            }
            (Entry::Nothing, Entry::Table(child)) => {
                for leaf in self.link(child, level + 1, offset) {
                    self.leaves.insert(leaf.offset, leaf);
                }
            }
            (Entry::Leaf(old), Entry::Nothing) => {
                self.leaves.remove(&offset);
                self.replaced([old]);
            }
            (Entry::Leaf(old), Entry::Leaf(new)) => self.in_place(old, new),
            (Entry::Leaf(old), Entry::Table(child)) => {
                assert!(
                    self.performed.bbm >= 2,
                    "a live block becomes a table: {old:x?}"
                );
                let parts = self.link(child, level + 1, offset);
                self.alike(&old, &parts);
                self.leaves.remove(&offset);
                self.leaves
                    .extend(parts.iter().map(|leaf| (leaf.offset, *leaf)));
                self.replaced([old]);
            }
            (Entry::Table(child), Entry::Nothing) => {
                assert_eq!(self.performed.operation, Operation::Unmap);
                let gone = self.unlink(child);
                self.replaced(gone);
            }
            (Entry::Table(child), Entry::Leaf(new)) => {
                assert!(
                    self.performed.bbm >= 2,
                    "a live table becomes a block: {new:x?}"
                );
                let parts = self.unlink(child);
                self.alike(&new, &parts);
                self.replaced(parts);
                self.leaves.insert(offset, new);
            }
            (Entry::Table(_), Entry::Table(_)) => panic!("another table at {offset:#x}"),
        }
    }

    /// Leaves that are replaced may still be cached. No TLB holds one without the access flag.
    fn replaced(&mut self, leaves: impl IntoIterator<Item = Leaf>) {
        let cached = |leaf: &Leaf| leaf.word & ACCESSED != 0;
        self.stale.extend(leaves.into_iter().filter(cached));
    }

    /// Returns the entry that a walker reads from `word` at an offset and level.
    fn read(&self, offset: u64, level: i32, word: u64) -> Entry {
        match word & 0b11 {
            0b11 if level < 3 => Entry::Table(self.arch.table_address(word)),
            0b11 | 0b01 => Entry::Leaf(self.arch.leaf(offset, level, word)),
            _ => Entry::Nothing,
        }
    }

    fn entry(&self, offset: u64, level: i32) -> Entry {
        match self.leaves.get(&offset) {
            Some(leaf) if leaf.level == level => return Entry::Leaf(*leaf),
            _ => {}
        }
        match self.places.get(&(level + 1, offset)) {
            Some(&table) => Entry::Table(table),
            None => Entry::Nothing,
        }
    }

    /// Replaces a valid leaf by another leaf of the same level.
    fn in_place(&mut self, old: Leaf, new: Leaf) {
        if old.word == new.word {
            return;
        }
        let changed = old.word ^ new.word;
        assert_eq!(old.output, new.output, "a live leaf's output changes");
        // AttrIndx or MemAttr, and SH unless these bits hold address bits.
        let memory = if self.arch.stage2 { 0b1111 } else { 0b111 };
        assert_eq!(changed & memory << 2, 0, "the memory type changes");
        if !self.arch.ds {
            assert_eq!(changed & 0b11 << 8, 0, "the shareability changes");
        }
        assert!(
            old.word & 1 << 11 == 0 || new.word & 1 << 11 != 0,
            "a leaf that may be cached becomes global"
        );
        if self.arch.stage2 {
            assert_eq!(
                changed & (1 << 11 | 1 << 50),
                0,
                "FnXS or a RES0 bit changes"
            );
        }
        if changed & CONTIGUOUS != 0 {
            assert!(
                self.performed.bbm >= 1,
                "the contiguous bit changes: {old:x?}"
            );
            assert_eq!(changed, CONTIGUOUS, "something else changes in that store");
        }
        self.leaves.insert(new.offset, new);
        // Without the hint each entry still translates as before, at the same level, so the next
        // TLBI for an address finds the cached entry. A cached entry whose flag was cleared only
        // hides the next access.
        let unhinted = changed == CONTIGUOUS && new.word & CONTIGUOUS == 0;
        let unflushed = self.performed.operation == Operation::Unflushed && changed == ACCESSED;
        if !(unhinted || unflushed) {
            self.replaced([old]);
        }
    }

    /// Checks that the small leaves translate exactly as the large one.
    fn alike(&self, large: &Leaf, parts: &[Leaf]) {
        let mut done = 0;
        for part in parts {
            assert_eq!(part.offset, large.offset + done, "not all is translated");
            assert_eq!(part.output, large.output + done, "another output");
            assert_eq!(
                self.arch.attributes_in(part.word),
                self.arch.attributes_in(large.word),
                "other attributes in {part:x?} than in {large:x?}"
            );
            done += part.bytes;
        }
        assert_eq!(done, large.bytes, "not all is translated");
    }

    /// Links a new table and returns the leaves in it.
    fn link(&mut self, table: u64, level: i32, offset: u64) -> Vec<Leaf> {
        let words = self.fresh.remove(&table).expect("a new table");
        let bytes = self.arch.entry_bytes(level);
        let place = Table {
            address: table,
            level,
            offset,
            span: bytes * words.len() as u64,
        };
        self.linked.insert(table, place);
        self.places.insert((level, offset), table);
        let mut leaves = Vec::new();
        for (index, word) in words.into_iter().enumerate() {
            let at = offset + index as u64 * bytes;
            match self.read(at, level, word) {
                Entry::Nothing => {}
                Entry::Leaf(leaf) => leaves.push(leaf),
                Entry::Table(child) => leaves.extend(self.link(child, level + 1, at)),
            }
        }
        leaves
    }

    fn unlink(&mut self, table: u64) -> Vec<Leaf> {
        let top = self.linked[&table];
        let inside = top.offset..top.offset + top.span;
        for level in top.level..=3 {
            let below = self
                .places
                .range((level, inside.start)..(level, inside.end));
            let below: Vec<(i32, u64)> = below.map(|(&place, _)| place).collect();
            for place in below {
                let address = self.places.remove(&place).expect("just seen");
                self.unlinked.insert(address);
                self.pointers.extend(self.linked.remove(&address));
            }
        }
        let leaves: Vec<Leaf> = self.leaves.range(inside).map(|(_, leaf)| *leaf).collect();
        for leaf in &leaves {
            self.leaves.remove(&leaf.offset);
        }
        leaves
    }

    /// Checks that one round of TLBIs removes every removed entry that may be cached.
    fn covers(&self, round: &[Covered]) {
        let mut sorted = round.to_vec();
        sorted.sort_by_key(|covered| covered.first);
        // Ranges overlap by no more than a page or two, so a window over the sorted list suffices.
        let longest = round.iter().map(|c| c.last - c.first + 1).max();
        let longest = longest.unwrap_or(0);
        let hits = |first: u64, bytes: u64, wanted: &dyn Fn(&Covered) -> bool| {
            let last = first + (bytes - 1);
            let begin = sorted.partition_point(|c| c.first + longest < first);
            sorted[begin..]
                .iter()
                .take_while(|c| c.first <= last)
                .any(|c| c.last >= first && wanted(c))
        };
        for covered in round {
            assert!(
                covered.asid.is_none() || covered.asid == self.performed.asid,
                "another address space's entries are invalidated"
            );
        }
        for leaf in &self.stale {
            let first = self.arch.address(leaf.offset) & ADDRESS;
            let reached = hits(first, leaf.bytes, &|c| {
                c.level.is_none_or(|hint| hint == leaf.level)
            });
            assert!(reached, "no TLBI reaches the leaf {leaf:x?}");
        }
        for table in &self.pointers {
            let first = self.arch.address(table.offset) & ADDRESS;
            let reached = hits(first, table.span, &|c| c.tables && c.level.is_none());
            assert!(reached, "no TLBI reaches the cached pointer to {table:x?}");
        }
    }
}
