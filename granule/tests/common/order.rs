//! Judges a noted sequence of events by the architecture's rules for changing tables.
//!
//! Rules by name: IWZCBG (invalid to valid needs no TLBI), RDDMVT's order for what a TLBI must
//! follow and be followed by, RLQLSD (the contiguous bit enlarges no TLBI), RSQXYZ (a wrong level
//! hint invalidates nothing).

use super::host::Event;
use super::walk::{Arch, Leaf, Tree};
use granule::arch::tlbi::{Reach, TlbiOp};
use granule::table::Visibility;
use std::collections::{BTreeMap, BTreeSet};

/// What a TLBI instruction removes, decoded from its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The first and the last address, as address bits 55:0.
    pub first: u64,
    pub last: u64,
    /// Only leaves of this level, where a hint is given.
    pub level: Option<i32>,
    /// Table entries too.
    pub tables: bool,
    pub asid: Option<u16>,
}

const ADDRESS: u64 = (1 << 56) - 1;

/// Decodes an operation as the architecture lays out its operand.
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
            reach,
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
                tables: reach == Reach::AllLevels,
                asid: (!all_asids).then_some((operand >> 48) as u16),
            }
        }
        TlbiOp::Range {
            operand,
            reach,
            all_asids,
        } => {
            let base_shift = if arch.ds { 16 } else { arch.g };
            let num = operand >> 39 & 0b1_1111;
            let scale = operand >> 44 & 0b11;
            assert_eq!(operand >> 46 & 0b11, granule, "a range of another granule");
            let hint = (operand >> 37 & 0b11) as i32;
            // The base has 37 bits; the address bits above are those of its top bit.
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
                tables: reach == Reach::AllLevels,
                asid: (!all_asids).then_some((operand >> 48) as u16),
            }
        }
        other => panic!("an operation that this test does not know: {other:?}"),
    }
}

/// What kind of operation the events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Map,
    Unmap,
    Protect,
}

/// Which entries of which tables were written: ranges, by their first entry.
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

/// Everything that is judged.
pub struct Judged<'a> {
    pub arch: Arch,
    pub operation: Operation,
    pub live: bool,
    pub repeat: bool,
    pub asid: Option<u16>,
    pub before: &'a Tree,
    pub after: &'a Tree,
    pub events: &'a [Event],
}

impl Judged<'_> {
    /// Panics on the first breach.
    pub fn judge(&self) {
        self.stores();
        self.tables();
        self.barriers();
    }

    /// Stores: whole and visible where a walker may look, private elsewhere, a table linked with
    /// release and never touched as private afterwards, every entry written exactly once.
    fn stores(&self) {
        let mut linked: BTreeSet<u64> = self.before.tables.iter().map(|t| t.address).collect();
        let mut fresh: BTreeSet<u64> = BTreeSet::new();
        let mut written = Written::default();
        let mut children: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        // The level of each table that is or was; a page that is reused cannot be both, because
        // tables are freed last.
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
                        "a private store into a table that walkers can reach: {event:x?}"
                    );
                } else if is_fresh {
                    assert_eq!(visibility, Visibility::Private, "{event:x?}");
                }
            } else {
                assert_eq!(visibility, Visibility::Private, "{event:x?}");
            }
            if self.operation == Operation::Map {
                written.add(table, first, first + count);
            }
            let points = descriptor & 0b11 == 0b11 && levels.get(&table).is_some_and(|&l| l < 3);
            if points {
                for at in 0..count as u64 {
                    let word = descriptor.wrapping_add(at * step);
                    let child = self.table_address(word);
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

    fn table_address(&self, word: u64) -> u64 {
        let keep = u64::MAX << self.arch.g;
        if self.arch.ds {
            word & 0x3_ffff_ffff_ffff & keep | (word >> 8 & 0b11) << 50
        } else if self.arch.lpa {
            word & 0xffff_ffff_ffff & keep | (word >> 12 & 0b1111) << 48
        } else {
            word & 0xffff_ffff_ffff & keep
        }
    }

    /// A table becomes reachable, with all below it: every entry must have been written.
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

    /// Allocations and frees: exactly the tables that came and went.
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

    fn barriers(&self) {
        let order: Vec<Event> = self
            .events
            .iter()
            .copied()
            .filter(|event| !matches!(event, Event::Reserve(_) | Event::Allocate { .. }))
            .collect();
        let is_store = |event: &Event| matches!(event, Event::Store { .. } | Event::Change { .. });
        let rest = match order.iter().rposition(is_store) {
            Some(last) => order.get(last + 1..).unwrap_or_default(),
            None => &order,
        };
        let early = order.len() - rest.len();
        for event in &order[..early] {
            assert!(
                is_store(event),
                "{event:x?} comes before the last store of the operation"
            );
        }
        let gone = self.gone();
        if !self.live {
            assert!(
                rest.iter().all(|event| matches!(event, Event::Free(_))),
                "barriers or TLBIs for tables that are not live: {rest:x?}"
            );
            return;
        }
        if self.operation == Operation::Map {
            assert_eq!(
                rest,
                [Event::DsbIshst, Event::Isb],
                "what publishes a mapping"
            );
            return;
        }
        if gone.is_empty() && early == 0 {
            assert!(rest.is_empty(), "nothing was changed, but: {rest:x?}");
            return;
        }
        let mut rest = rest.iter().copied().peekable();
        assert_eq!(rest.next(), Some(Event::DsbIshst), "stores, then DSB ISHST");
        for _ in 0..=usize::from(self.repeat) {
            let mut round = Vec::new();
            while let Some(Event::Tlbi(op)) = rest.peek() {
                round.push(decode(&self.arch, *op));
                rest.next();
            }
            self.covers(&round, &gone);
            assert_eq!(rest.next(), Some(Event::DsbIsh), "TLBIs, then DSB ISH");
        }
        assert_eq!(rest.next(), Some(Event::Isb), "DSB ISH, then ISB");
        assert!(
            rest.all(|event| matches!(event, Event::Free(_))),
            "only frees may follow"
        );
    }

    /// The leaves that are no longer as they were.
    fn gone(&self) -> Vec<Leaf> {
        let after: BTreeMap<u64, &Leaf> = self.after.leaves.iter().map(|l| (l.offset, l)).collect();
        let mut gone = self.before.leaves.clone();
        gone.retain(|leaf| after.get(&leaf.offset) != Some(&leaf));
        gone
    }

    /// Whether one round of TLBIs removes all that may be cached of what is gone.
    fn covers(&self, round: &[Covered], gone: &[Leaf]) {
        let mut sorted = round.to_vec();
        sorted.sort_by_key(|covered| covered.first);
        // The ranges of operations do not overlap by more than a page or two, so a window will do.
        let longest = round
            .iter()
            .map(|c| c.last - c.first + 1)
            .max()
            .unwrap_or(0);
        let hits = |first: u64, last: u64, wanted: &dyn Fn(&Covered) -> bool| {
            let begin = sorted.partition_point(|c| c.first + longest < first);
            sorted[begin..]
                .iter()
                .take_while(|c| c.first <= last)
                .any(|c| c.last >= first && wanted(c))
        };
        for covered in round {
            assert!(
                covered.asid.is_none() || covered.asid == self.asid,
                "another address space's entries are invalidated"
            );
        }
        for leaf in gone {
            let first = self.arch.address(leaf.offset) & ADDRESS;
            let level = leaf.level;
            assert!(
                hits(first, first + (leaf.bytes - 1), &|c| {
                    c.level.is_none_or(|hint| hint == level)
                }),
                "no TLBI reaches the leaf {leaf:x?}"
            );
        }
        let after: BTreeSet<u64> = self.after.tables.iter().map(|t| t.address).collect();
        for table in &self.before.tables {
            if after.contains(&table.address) {
                continue;
            }
            let first = self.arch.address(table.offset) & ADDRESS;
            assert!(
                hits(first, first + (table.span - 1), &|c| c.tables
                    && c.level.is_none()),
                "no TLBI reaches the cached pointer to {table:x?}"
            );
        }
    }
}
