//! Checks recorded events one by one: how each store is made, the allocations and frees, and the
//! operands of TLBIs. [`replay`](super::replay) checks their combined effect.

use super::host::Event;
use super::walk::{Arch, Tree};
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::table::Visibility;
use std::collections::{BTreeMap, BTreeSet};

/// The entries that a TLBI removes, decoded from its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The first and the last address, as address bits 55:0.
    pub first: u64,
    pub last: u64,
    /// Only leaves of this level are removed, if the operand has a hint.
    pub level: Option<i32>,
    /// Table entries are removed too.
    pub tables: bool,
    pub asid: Option<u16>,
}

pub const ADDRESS: u64 = (1 << 56) - 1;

/// Decodes an operation by the architecture's layout of its operand.
pub fn decode(arch: &Arch, op: TlbiOp) -> Covered {
    let granule = match arch.g {
        12 => 0b01,
        14 => 0b10,
        _ => 0b11,
    };
    match op {
        TlbiOp::All => Covered {
            first: 0,
            last: ADDRESS,
            level: None,
            tables: true,
            asid: None,
        },
        TlbiOp::Asid { operand } => {
            assert_eq!(operand & ((1 << 48) - 1), 0);
            Covered {
                first: 0,
                last: ADDRESS,
                level: None,
                tables: true,
                asid: Some((operand >> 48) as u16),
            }
        }
        TlbiOp::Address {
            operand,
            scope,
            all_asids,
        } => {
            let address = (operand & 0xfff_ffff_ffff) << 12;
            let ttl = operand >> 44 & 0b1111;
            let level = (ttl != 0).then(|| {
                assert_eq!(ttl >> 2, granule, "a level hint for another granule");
                (ttl & 0b11) as i32
            });
            Covered {
                first: address,
                last: address | 0xfff,
                level,
                tables: scope == TlbiScope::AllLevels,
                asid: (!all_asids).then_some((operand >> 48) as u16),
            }
        }
        TlbiOp::Range {
            operand,
            scope,
            all_asids,
        } => {
            let base_shift = if arch.ds { 16 } else { arch.g };
            let num = operand >> 39 & 0b1_1111;
            let scale = operand >> 44 & 0b11;
            assert_eq!(operand >> 46 & 0b11, granule, "a range of another granule");
            let hint = (operand >> 37 & 0b11) as i32;
            // The base has 37 bits; the address bits above equal its top bit.
            let base = ((operand << 27) as i64 >> 27) as u64;
            let first = base << base_shift;
            let bytes = (num + 1) << (5 * scale + 1) << arch.g;
            let last = first.wrapping_add(bytes - 1);
            assert!(
                first & ADDRESS <= last & ADDRESS,
                "a range operation wraps past the top of the addresses"
            );
            if hint != 0 {
                assert_eq!(
                    first % arch.entry_bytes(hint),
                    0,
                    "the base is not aligned to the hinted level: UNPREDICTABLE"
                );
            }
            Covered {
                first: first & ADDRESS,
                last: last & ADDRESS,
                level: (hint != 0).then_some(hint),
                tables: scope == TlbiScope::AllLevels,
                asid: (!all_asids).then_some((operand >> 48) as u16),
            }
        }
        other => panic!("an operation that this test does not know: {other:?}"),
    }
}

/// The operation that made the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Map,
    Unmap,
    Protect,
    SetInvalid,
    SetValid,
    Merge,
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

/// The input of the checks.
pub struct Judged<'a> {
    pub arch: Arch,
    pub operation: Operation,
    pub live: bool,
    pub repeat: bool,
    pub asid: Option<u16>,
    /// The FEAT_BBM level that the tables were given.
    pub bbm: u32,
    pub before: &'a Tree,
    pub after: &'a Tree,
    pub events: &'a [Event],
}

impl Judged<'_> {
    /// Checks everything; panics on the first violation.
    pub fn judge(&self) {
        self.stores();
        self.tables();
        if self.live {
            super::replay::replay(self);
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
