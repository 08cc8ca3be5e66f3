//! The walk of a tree: the library's read-only view over a source of memory, table by table.
//!
//! [`Tables`] reads whole tables and keeps the last few. [`walk`] reports the entries that it
//! visits as events and keeps nothing but the addresses of tables, so its memory does not grow with
//! the leaves. Other modules interpret the events.

use crate::nested::Below;
use crate::source::{Memory, ReadError};
use crate::tree::{Shape, Tree};
use granule::arch::{
    Descriptor, Geometry, IntermediateAddress, Kind, Level, PhysicalAddress, Regime, VirtualAddress,
};
use granule::table::{Entry, Stage, TableView, Unread, UnreadTable, Visit};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;

/// The most entries of tables that a walk visits again after it has met them once. Hostile tables
/// can refer to a few tables very often; some kernels do so too, where much memory reads as zero.
pub const REPEATED_ENTRIES: u64 = 1 << 25;

/// The most tables of one tree that a walk enters by default: with 4K pages they map
/// 8 TiB in pages. A damaged dump can have more memory than bytes.
pub const MOST_TABLES: u64 = 1 << 22;

/// The tables that are kept: more than a walk has levels, so that it finds those above it again.
const KEPT: usize = 8;

impl Tree {
    /// The addresses of the root tables, which follow each other in memory.
    pub fn roots(&self) -> impl Iterator<Item = PhysicalAddress> + use<> {
        let (root, page) = (self.root, self.geometry().page_size().bytes());
        (0..self.geometry().root_tables() as u64)
            .map(move |at| PhysicalAddress(root.0.wrapping_add(at * page)))
    }
}

/// The tables of one tree, read whole.
#[expect(missing_debug_implementations, reason = "the memory has none")]
pub struct Tables<'m> {
    memory: Below<'m>,
    root: PhysicalAddress,
    entries: usize,
    root_entries: usize,
    most_tables: u64,
    kept: RefCell<Kept>,
}

/// The tables that were read last. The first is the one that was used last.
#[derive(Default)]
struct Kept {
    tables: Vec<(PhysicalAddress, Vec<u64>)>,
    bytes: Vec<u8>,
    /// Why the last table that could not be read could not be read.
    failed: Option<(PhysicalAddress, String)>,
}

impl<'m> Tables<'m> {
    pub fn new(memory: &'m dyn Memory, tree: &Tree) -> Self {
        let entries = tree.geometry().page_size().entries();
        Self {
            memory: Below::new(memory, tree.through),
            root: tree.root,
            entries,
            root_entries: tree.geometry().root_entries().min(entries),
            most_tables: MOST_TABLES,
            kept: RefCell::default(),
        }
    }

    /// The same, for walks that enter at most `most_tables` tables.
    pub fn limit(self, most_tables: u64) -> Self {
        Self {
            most_tables,
            ..self
        }
    }

    /// An entry of a table; `None` if the table cannot be read.
    #[inline]
    pub fn entry(&self, table: PhysicalAddress, index: usize) -> Option<Descriptor> {
        self.words(table, |words| words.get(index).copied())
            .flatten()
            .map(Descriptor)
    }

    /// Calls `with` with all entries of a table; `None` if the table cannot be read. The root may be
    /// smaller than other tables.
    #[inline]
    pub fn words<T>(&self, table: PhysicalAddress, with: impl FnOnce(&[u64]) -> T) -> Option<T> {
        let mut kept = self.kept.borrow_mut();
        if kept.tables.first().is_none_or(|(first, _)| *first != table) {
            self.fetch(&mut kept, table)?;
        }
        kept.tables.first().map(|(_, words)| with(words))
    }

    /// Where an output of the tree is: the place that stage 2 gives it, if the tree is below one.
    pub fn physical(&self, output: PhysicalAddress) -> Result<PhysicalAddress, ReadError> {
        Ok(self.memory.physical(output)?.0)
    }

    /// Why `table` cannot be read, if it could not be read last.
    fn failure(&self, table: PhysicalAddress) -> String {
        match &self.kept.borrow().failed {
            Some((failed, why)) if *failed == table => why.clone(),
            _ => format!("no memory at {table}"),
        }
    }

    /// Makes `table` the first of the kept ones.
    fn fetch(&self, kept: &mut Kept, table: PhysicalAddress) -> Option<()> {
        if let Some(at) = kept.tables.iter().position(|(other, _)| *other == table) {
            kept.tables[..=at].rotate_right(1);
            return Some(());
        }
        let entries = match table == self.root {
            true => self.root_entries,
            false => self.entries,
        };
        kept.bytes.resize(entries * size_of::<u64>(), 0);
        if let Err(error) = self.memory.read(table, &mut kept.bytes) {
            kept.failed = Some((table, error.to_string()));
            return None;
        }
        let mut words = match kept.tables.len() {
            KEPT => kept.tables.pop().map(|(_, words)| words),
            _ => None,
        }
        .unwrap_or_default();
        words.clear();
        words.extend(
            kept.bytes
                .chunks_exact(size_of::<u64>())
                .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())),
        );
        kept.tables.insert(0, (table, words));
        Some(())
    }
}

/// Leaves of one table with the same attributes and consecutive outputs.
#[derive(Clone, Copy, Debug)]
pub struct Leaves {
    /// The first address that they translate.
    pub start: u64,
    pub count: u64,
    /// The level of their table.
    pub level: Level,
    /// The bytes of each.
    pub leaf_bytes: u64,
    /// The first address of their output.
    pub output: u64,
    /// The first descriptor, with the restrictions of the tables above it as its own bits.
    pub descriptor: Descriptor,
}

impl Leaves {
    /// Those of the leaves that translate an address from `first` to `last`.
    fn within(self, (first, last): (u64, u64)) -> Option<Self> {
        let skip = first.saturating_sub(self.start) / self.leaf_bytes;
        let reached = last.checked_sub(self.start)? / self.leaf_bytes + 1;
        let count = self.count.min(reached).checked_sub(skip)?;
        (count > 0).then(|| Self {
            start: self.start + skip * self.leaf_bytes,
            output: self.output.wrapping_add(skip * self.leaf_bytes),
            count,
            ..self
        })
    }
}

/// A table that a walk enters: it can be read.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub table: PhysicalAddress,
    pub level: Level,
    /// The first address that it translates here.
    pub start: u64,
    /// The level and the first address of its first use, if it was met before.
    pub before: Option<(Level, u64)>,
}

/// A table that a walk left out.
#[derive(Clone, Debug)]
pub struct LeftOut {
    pub table: PhysicalAddress,
    pub level: Level,
    /// The first address whose translation is left out.
    pub start: u64,
    /// The bytes from there on that are left out.
    pub bytes: u64,
    pub why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It cannot be read, for this reason.
    Unreadable(String),
    /// It is one of the tables that lead to it.
    Loop,
    /// The limit on tables is reached, or it was shown before and the limit on that is reached.
    Limit,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            table,
            level,
            start,
            bytes,
            why,
        } = self;
        let last = start.wrapping_add(bytes - 1);
        write!(
            f,
            "{start:#x} to {last:#x} is left out: the table of level {level} at {table} "
        )?;
        match why {
            Why::Unreadable(why) => write!(f, "cannot be read ({why})"),
            Why::Loop => f.write_str("is one of those that lead to it"),
            Why::Limit => write!(
                f,
                "is beyond the most tables of a tree that are read, {MOST_TABLES}, or of those that come again"
            ),
        }
    }
}

/// A table, leaves, or an omission that a walk reports.
#[derive(Debug)]
pub enum Event<'e> {
    /// A table, before what it translates. The roots come first.
    Table(&'e Table),
    Leaves(&'e Leaves),
    LeftOut(&'e LeftOut),
}

/// The addresses that a walk is about, first and last.
pub const EVERYTHING: (u64, u64) = (0, u64::MAX);

/// Walks `tree` by ascending address and reports the tables and leaves for the addresses from
/// `within.0` to `within.1`. The walk ends when `see` returns [`ControlFlow::Break`].
pub fn walk<B>(
    tables: &Tables<'_>,
    tree: &Tree,
    within: (u64, u64),
    see: impl FnMut(Event<'_>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let read = |table, index| tables.entry(table, index);
    let walk = Walk {
        tables,
        geometry: *tree.geometry(),
        within,
        path: [PhysicalAddress(0); Level::ALL.len()],
        restrictions: [0; Level::ALL.len()],
        met: HashMap::new(),
        left: tables.most_tables,
        repeats: REPEATED_ENTRIES / tables.entries as u64,
        see,
    };
    match tree.shape {
        Shape::Stage1(geometry) => walk.run(
            tree,
            TableView::new(geometry, tree.root, read).limit(u64::MAX),
            |address: VirtualAddress| address.0,
        ),
        Shape::Stage2(geometry) => walk.run(
            tree,
            TableView::of_guest(geometry, tree.root, read).limit(u64::MAX),
            |address: IntermediateAddress| address.0,
        ),
    }
}

struct Walk<'w, F> {
    tables: &'w Tables<'w>,
    geometry: Geometry,
    within: (u64, u64),
    /// The table of each level that was entered last.
    path: [PhysicalAddress; Level::ALL.len()],
    /// The restrictions of all tables above the one of each level that was entered last.
    restrictions: [u64; Level::ALL.len()],
    /// The first use of each table, by its address.
    met: HashMap<u64, (Level, u64)>,
    /// The number of further tables that may be entered.
    left: u64,
    /// The number of further ones that may have been entered before.
    repeats: u64,
    see: F,
}

const fn place(level: Level) -> usize {
    (level.number() + 1) as usize
}

impl<B, F: FnMut(Event<'_>) -> ControlFlow<B>> Walk<'_, F> {
    fn run<R, S>(
        mut self,
        tree: &Tree,
        view: TableView<R, S>,
        address: impl Fn(S::Input) -> u64,
    ) -> ControlFlow<B>
    where
        R: Fn(PhysicalAddress, usize) -> Option<Descriptor>,
        S: Stage,
    {
        let level = self.geometry.start_level();
        let mut start = self.geometry.base().0;
        for table in tree.roots() {
            self.path[place(level)] = table;
            // The view reports a root that cannot be read.
            if self.tables.words(table, |_| ()).is_some() {
                self.left = self.left.saturating_sub(1);
                let before = self.met.insert(table.0, (level, start));
                (self.see)(Event::Table(&Table {
                    table,
                    level,
                    start,
                    before,
                }))?;
            }
            start = start.wrapping_add(self.bytes_of(level));
        }
        view.visit_runs(|found| match found {
            Ok(entry) if entry.kind == Kind::Table => self.table(entry, address(entry.start)),
            Ok(entry) => {
                self.leaves(entry, address(entry.start))?;
                ControlFlow::Continue(Visit::Skip)
            }
            Err(unread) => {
                self.unread(&unread, address(unread.start))?;
                ControlFlow::Continue(Visit::Skip)
            }
        })
    }

    /// The bytes that a table of `level` translates.
    fn bytes_of(&self, level: Level) -> u64 {
        let size = self.geometry.page_size();
        (size.entry_bytes(level) << size.entries().ilog2()).min(self.geometry.span())
    }

    fn table<I>(&mut self, entry: &Entry<I>, start: u64) -> ControlFlow<B, Visit> {
        let last = start + (entry.bytes - 1);
        if last < self.within.0 || start > self.within.1 {
            return ControlFlow::Continue(Visit::Skip);
        }
        let (table, level) = (entry.output, entry.level.next());
        let above = place(self.geometry.start_level())..place(level);
        let before = self.met.get(&table.0).copied();
        let why = if self.path[above].contains(&table) {
            Some(Why::Loop)
        } else if self.left == 0 || before.is_some() && self.repeats == 0 {
            Some(Why::Limit)
        } else if self.tables.words(table, |_| ()).is_none() {
            Some(Why::Unreadable(self.tables.failure(table)))
        } else {
            None
        };
        if let Some(why) = why {
            (self.see)(Event::LeftOut(&LeftOut {
                table,
                level,
                start,
                bytes: entry.bytes,
                why,
            }))?;
            return ControlFlow::Continue(Visit::Skip);
        }
        self.left -= 1;
        self.repeats -= u64::from(before.is_some());
        self.met.entry(table.0).or_insert((level, start));
        (self.see)(Event::Table(&Table {
            table,
            level,
            start,
            before,
        }))?;
        let own = entry.descriptor.0 & Descriptor::RESTRICTIONS;
        self.restrictions[place(level)] = self.restrictions[place(entry.level)] | own;
        self.path[place(level)] = table;
        ControlFlow::Continue(Visit::Descend)
    }

    fn leaves<I>(&mut self, entry: &Entry<I>, start: u64) -> ControlFlow<B> {
        // Present-invalid entries translate nothing.
        if entry.kind != Kind::Leaf {
            return ControlFlow::Continue(());
        }
        let restrictions = self.restrictions[place(entry.level)];
        let leaves = Leaves {
            start,
            count: entry.count as u64,
            level: entry.level,
            leaf_bytes: entry.bytes,
            output: entry.output.0,
            descriptor: restricted(entry.descriptor, restrictions, self.geometry.regime()),
        };
        match leaves.within(self.within) {
            Some(leaves) => (self.see)(Event::Leaves(&leaves)),
            None => ControlFlow::Continue(()),
        }
    }

    fn unread<I>(&mut self, unread: &UnreadTable<I>, start: u64) -> ControlFlow<B> {
        let why = match unread.why {
            Unread::Unreadable => Why::Unreadable(self.tables.failure(unread.table)),
            Unread::Loop => Why::Loop,
            _ => Why::Limit,
        };
        let bytes = self.bytes_of(unread.level);
        (self.see)(Event::LeftOut(&LeftOut {
            table: unread.table,
            level: unread.level,
            start,
            bytes,
            why,
        }))
    }
}

/// A leaf with the restrictions of the tables above it as bits of its own: a CPU obeys both. Stage 2
/// has none.
pub const fn restricted(leaf: Descriptor, restrictions: u64, regime: Regime) -> Descriptor {
    let mut bits = leaf.0;
    if restrictions == 0 || matches!(regime, Regime::Stage2) {
        return leaf;
    }
    let (no_write, no_user) = (1 << 62, 1 << 61);
    if restrictions & no_write != 0 {
        // Hardware does not make it writable either.
        bits = (bits | Descriptor::AP_READ_ONLY) & !Descriptor::DIRTY_MODIFIER;
    }
    if restrictions & Descriptor::UXN_TABLE != 0 {
        bits |= Descriptor::UXN;
    }
    if regime.has_user() {
        if restrictions & no_user != 0 {
            bits &= !Descriptor::AP_USER;
        }
        if restrictions & Descriptor::PXN_TABLE != 0 {
            bits |= Descriptor::PXN;
        }
    }
    Descriptor(bits)
}
