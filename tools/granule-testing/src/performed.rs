//! An operation on tables, the tables before and after, and the recorded events, which are checked one by one: how each
//! store is made, the allocations and frees, and that TLBIs come only after a change and reach what it removed. When they
//! come, and what CPUs find that walk the tables meanwhile, is the model's: `crates/granule-model/tests/harness`.

use super::host::Event;
use super::tlbi::{ADDRESS, Covered, decode};
use super::walk::{Arch, Leaf, Tree};
use granule::arch::Regime;
use granule::arch::tlbi::TlbiOp;
use granule::table::Visibility;
use std::collections::{BTreeMap, BTreeSet};

const CONTIGUOUS: u64 = 1 << 52;
const ACCESSED: u64 = 1 << 10;

/// The operation that made the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Map,
    Unmap,
    Protect,
    SetInvalid,
    SetValid,
    Merge,
    /// A change of attributes, by break-before-make where it is needed.
    Attributes,
    /// A change without the invalidation that it would need to be relied on.
    Unflushed,
}

/// One operation as it was performed.
pub struct Performed<'a> {
    pub arch: Arch,
    pub operation: Operation,
    pub live: bool,
    pub asid: Option<u16>,
    pub before: &'a Tree,
    pub after: &'a Tree,
    pub events: &'a [Event],
}

/// The entries of each table that were written, as ranges keyed by their first entry.
#[derive(Default)]
struct Written(BTreeMap<u64, BTreeMap<usize, usize>>);

impl Written {
    /// Panics if any of the entries was written before.
    fn add(&mut self, table: u64, first: usize, end: usize) {
        let ranges = self.0.entry(table).or_default();
        let below = ranges.range(..end).next_back();
        assert!(
            below.is_none_or(|(_, &below)| below <= first),
            "entries {first}..{end} of {table:#x} are written twice"
        );
        ranges.insert(first, end);
    }

    fn is_full(&self, table: u64, entries: usize) -> bool {
        let ranges = self.0.get(&table).into_iter().flatten();
        ranges.fold(
            0,
            |done, (&first, &end)| if first == done { end } else { done },
        ) == entries
    }
}

impl Performed<'_> {
    /// Checks everything; panics on the first violation.
    pub fn check(&self) {
        self.stores();
        self.tables();
        if self.live {
            self.maintenance();
            self.reached();
        } else {
            self.private();
        }
    }

    /// Checks the stores. A store is whole and visible where a walker may read, and private
    /// elsewhere. A table is linked with release and is not accessed as private afterwards. Every
    /// entry of a new table is written exactly once before that. When mapping, every entry of an
    /// old table is written at most once.
    fn stores(&self) {
        let mut linked: BTreeSet<u64> = self.before.tables.iter().map(|t| t.address).collect();
        let mut fresh: BTreeSet<u64> = BTreeSet::new();
        let mut written = Written::default();
        let mut children: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        // The level of each table before or after. A reused page cannot be both, because tables are
        // freed last.
        let all = self.before.tables.iter().chain(&self.after.tables);
        let levels: BTreeMap<u64, i32> = all.map(|t| (t.address, t.level)).collect();
        for event in self.events {
            let (table, first, count, descriptor, step, visibility) = match *event {
                Event::Store {
                    table,
                    first,
                    count,
                    descriptor,
                    step,
                    visibility,
                } => (table, first, count, descriptor, step, visibility),
                Event::Change {
                    table,
                    index,
                    descriptor,
                    visibility,
                } => (table, index, 1, descriptor, 0, visibility),
                Event::Allocate { first, count } => {
                    for page in 0..count as u64 {
                        fresh.insert(first + page * self.arch.page());
                    }
                    continue;
                }
                _ => continue,
            };
            let is_fresh = fresh.contains(&table);
            if self.live {
                if linked.contains(&table) {
                    assert_ne!(
                        visibility,
                        Visibility::Private,
                        "a private store into a table that walkers can scope: {event:x?}"
                    );
                } else if is_fresh {
                    assert_eq!(visibility, Visibility::Private, "{event:x?}");
                }
            } else {
                assert_eq!(visibility, Visibility::Private, "{event:x?}");
            }
            if self.operation == Operation::Map || (is_fresh && !linked.contains(&table)) {
                written.add(table, first, first + count);
            }
            let points = descriptor & 0b11 == 0b11 && levels.get(&table).is_some_and(|&l| l < 3);
            if points {
                for at in 0..count as u64 {
                    let word = descriptor.wrapping_add(at * step);
                    let child = self.arch.table_address(word);
                    assert!(
                        fresh.contains(&child),
                        "a link to a table that is not new: {event:x?}"
                    );
                    if linked.contains(&table) {
                        assert!(
                            !self.live || visibility == Visibility::Publish,
                            "a table is linked without release: {event:x?}"
                        );
                        self.link(child, &children, &written, &mut linked);
                    } else {
                        children.entry(table).or_default().push(child);
                    }
                }
            }
        }
        for table in &fresh {
            assert!(linked.contains(table), "a new table was never linked");
        }
    }

    /// A table becomes reachable, with all tables below it: every entry must have been written.
    fn link(
        &self,
        table: u64,
        children: &BTreeMap<u64, Vec<u64>>,
        written: &Written,
        linked: &mut BTreeSet<u64>,
    ) {
        assert!(
            written.is_full(table, self.arch.entries()),
            "a table is linked before all of it is written"
        );
        assert!(linked.insert(table), "a table is linked twice");
        for &child in children.get(&table).into_iter().flatten() {
            self.link(child, children, written, linked);
        }
    }

    /// Checks allocations and frees: exactly the tables that appeared and disappeared.
    fn tables(&self) {
        let before: BTreeSet<u64> = self.before.tables.iter().map(|t| t.address).collect();
        let after: BTreeSet<u64> = self.after.tables.iter().map(|t| t.address).collect();
        let mut came = BTreeSet::new();
        let mut went = BTreeSet::new();
        for event in self.events {
            match *event {
                Event::Allocate { first, count } => {
                    came.extend((0..count as u64).map(|n| first + n * self.arch.page()));
                }
                Event::Free(table) => {
                    went.insert(table);
                }
                _ => {}
            }
        }
        assert_eq!(came, &after - &before, "tables allocated");
        assert_eq!(went, &before - &after, "tables freed");
    }

    /// Barriers and TLBIs follow a change, and no TLBI reaches another address space: what there must not be
    /// too much of. A map of nothing has barriers too, and so has a change of leaves that are invalid.
    fn maintenance(&self) {
        let empty = matches!(self.operation, Operation::Map | Operation::Attributes);
        let mut changed = false;
        for event in self.events {
            match *event {
                Event::Store { .. } | Event::Change { .. } => changed = true,
                Event::DsbIshst => assert!(changed || empty, "barriers, but nothing was changed"),
                Event::Tlbi(op) => {
                    assert!(changed, "a TLBI, but nothing was changed");
                    let asid = decode(&self.arch, op).asid;
                    assert!(asid.is_none() || asid == self.asid, "another ASID: {op:?}");
                }
                Event::OtherTlbi(regime, op) => {
                    assert_eq!((regime, op), (Regime::El1And0, TlbiOp::All));
                }
                Event::Isb => changed = false,
                _ => {}
            }
        }
    }

    /// Some TLBI reaches each leaf that a TLB may hold and that is another one now, and each table that went.
    fn reached(&self) {
        let covered = self.events.iter().filter_map(|event| match *event {
            Event::Tlbi(op) => Some(decode(&self.arch, op)),
            _ => None,
        });
        let mut covered: Vec<Covered> = covered.collect();
        covered.sort_by_key(|one| one.first);
        let longest = covered.iter().map(|one| one.last - one.first).max();
        let is_hit = |offset: u64, bytes: u64, wanted: &dyn Fn(&Covered) -> bool| {
            let first = self.arch.address(offset) & ADDRESS;
            let begin = first.saturating_sub(longest.unwrap_or(0));
            covered[covered.partition_point(|one| one.first < begin)..]
                .iter()
                .take_while(|one| one.first < first + bytes)
                .any(|one| one.last >= first && wanted(one))
        };
        let now: BTreeMap<u64, &Leaf> = self.after.leaves.iter().map(|l| (l.offset, l)).collect();
        // Without the hint each entry still translates as before, at the same level, so the next TLBI for an address
        // finds the cached entry. A cached entry whose flag was cleared only hides the next access.
        let is_same = |old: &Leaf, new: &Leaf| {
            let changed = old.word ^ new.word;
            let is_unhinted = changed == CONTIGUOUS && old.word & CONTIGUOUS != 0;
            let is_unflushed = changed == ACCESSED && self.operation == Operation::Unflushed;
            old.level == new.level && (changed == 0 || is_unhinted || is_unflushed)
        };
        // No TLB holds a leaf without the access flag.
        for old in self
            .before
            .leaves
            .iter()
            .filter(|old| old.word & ACCESSED != 0)
        {
            let reached = |one: &Covered| one.level.is_none_or(|hint| hint == old.level);
            let stays = now.get(&old.offset).is_some_and(|new| is_same(old, new));
            assert!(
                stays || is_hit(old.offset, old.bytes, &reached),
                "no TLBI reaches {old:x?}"
            );
        }
        let now: BTreeSet<u64> = self
            .after
            .tables
            .iter()
            .map(|table| table.address)
            .collect();
        for old in self
            .before
            .tables
            .iter()
            .filter(|old| !now.contains(&old.address))
        {
            let reached = is_hit(old.offset, old.span, &|one| {
                one.tables && one.level.is_none()
            });
            assert!(reached, "no TLBI reaches the cached pointer to {old:x?}");
        }
    }

    /// Tables that no CPU walks need no barriers.
    fn private(&self) {
        let quiet = |event: &Event| {
            use Event::{Allocate, Change, Free, Reserve, Store};
            matches!(
                event,
                Store { .. } | Change { .. } | Allocate { .. } | Reserve(_) | Free(_)
            )
        };
        let loud: Vec<&Event> = self.events.iter().filter(|event| !quiet(event)).collect();
        assert!(loud.is_empty(), "for tables that are not live: {loud:x?}");
    }
}
