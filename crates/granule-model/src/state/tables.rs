//! The graph of the tables that walkers can reach, and the trees that CPUs walk or may hold
//! entries of.
//!
//! A node for each table and an edge for each table entry. A store names a physical address; the
//! graph gives the virtual addresses that the entry there translates. A table that several entries
//! or trees share is one node with all its parents. No rule is checked here.

use super::garbage;
use super::ids::{ContextId, PAGE_SHIFT, RootId, TableId, pages_of};
use super::memory::Memory;
use super::sharing::{Asids, Spans};
use super::walk::TableAt;
use crate::arch::context::{Context, RootKey, Space};
use crate::arch::descriptor::{self, EntryKind};
use crate::arch::format::Format;
use crate::arch::regime::Regime;
use std::collections::{BTreeSet, HashMap};

/// The visits that a path to a table counts as: a path takes memory, a plain look at an entry does
/// not.
const VISITS_OF_A_WAY: u64 = 32;

/// A table that is reachable.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) base: u64,
    pub(crate) level: i8,
    pub(crate) entries: u64,
    pub(crate) format: Format,
    /// The entries that point to it: table and index.
    parents: BTreeSet<(TableId, u64)>,
    /// The roots whose top table it is.
    pub(crate) roots: BTreeSet<RootId>,
}

/// A tree that some CPU walks or may hold entries of.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) key: RootKey,
    pub(crate) context: ContextId,
    pub(crate) table: TableId,
    /// The CPUs whose registers name it, or did before an ISB that is still to come.
    pub(crate) walking: u64,
    /// The CPUs of `walking` whose registers no longer name it.
    pub(crate) lingering: u64,
    /// The CPUs that may hold entries.
    pub(crate) holders: u64,
    /// When a CPU last ceased to walk it.
    pub(crate) left: u64,
    /// Whether it ever had a global leaf.
    pub(crate) has_global: bool,
    /// The addresses of its global leaves; more than that, until it is compared with another tree.
    pub(crate) globals: Spans,
    /// The ASIDs that were in force while a CPU walked it, for a tree whose entries have none of
    /// their own.
    pub(crate) asids: Asids,
    /// Another number after each change of the tree, and never that of another tree: what was found
    /// out about a tree holds while the number stays.
    pub(crate) version: u64,
    /// The version at which the top table was last looked at, and whether it had no valid entry.
    empty: (u64, bool),
}

/// A path from a root to a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) root: RootId,
    pub(crate) at: TableAt,
}

/// The tables, the trees, and the contexts that trees are read in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    tables: Vec<Option<Table>>,
    unused: Vec<TableId>,
    roots: Vec<Option<Root>>,
    unused_roots: Vec<RootId>,
    /// The roots by key, and by half and ASID: CPUs enter an address space far more often than they
    /// make one.
    by_key: HashMap<RootKey, RootId>,
    by_asid: HashMap<(Space, Option<u16>), BTreeSet<RootId>>,
    /// The roots that have, or had, a global leaf.
    with_global: BTreeSet<RootId>,
    /// The contexts that trees were ever read in. TLB entries outlive the tree that they come from,
    /// so no context is forgotten.
    contexts: Vec<Context>,
    context_ids: HashMap<Context, ContextId>,
    /// Whether some context had walks that are not cached.
    uncached_walks: bool,
    /// The last version of a tree that was given.
    version: u64,
    /// Entries of garbage that was emptied, until it is reported.
    pub(crate) leading_back: Vec<u64>,
    /// Pairs of trees that a TLB may hold both of, with the versions at which that was found.
    apart: HashMap<(RootId, RootId), (u64, u64)>,
}

/// The most pairs of trees kept.
const MOST_PAIRS: usize = 1 << 16;

/// The place of a table, and the format of its entries.
#[derive(Clone, Copy)]
struct Shape {
    base: u64,
    level: i8,
    entries: u64,
    format: Format,
}

impl Tables {
    pub(crate) fn table(&self, id: TableId) -> Option<&Table> {
        self.tables.get(id as usize)?.as_ref()
    }

    fn table_mut(&mut self, id: TableId) -> Option<&mut Table> {
        self.tables.get_mut(id as usize)?.as_mut()
    }

    pub(crate) fn root(&self, id: RootId) -> Option<&Root> {
        self.roots.get(id as usize)?.as_ref()
    }

    pub(crate) fn root_mut(&mut self, id: RootId) -> Option<&mut Root> {
        self.roots.get_mut(id as usize)?.as_mut()
    }

    pub(crate) fn roots(&self) -> impl Iterator<Item = (RootId, &Root)> {
        self.roots
            .iter()
            .enumerate()
            .filter_map(|(id, root)| Some((id as RootId, root.as_ref()?)))
    }

    /// The context with this number.
    pub(crate) fn context(&self, id: ContextId) -> &Context {
        &self.contexts[id as usize]
    }

    /// All contexts that trees were ever read in.
    pub(crate) fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    /// Whether some tree was ever read with walks that are not cached.
    pub(crate) const fn has_uncached_walks(&self) -> bool {
        self.uncached_walks
    }

    /// The number of a context.
    fn context_id(&mut self, context: &Context) -> ContextId {
        let next = self.contexts.len() as ContextId;
        let id = *self.context_ids.entry(*context).or_insert(next);
        if id == next {
            self.contexts.push(*context);
            self.uncached_walks |= !context.cached_walks;
        }
        id
    }

    /// The table with this shape, made reachable if it was not. The ids of all tables that became
    /// reachable by that are added to `new`.
    fn attach(
        &mut self,
        memory: &mut Memory,
        (shape, from): (Shape, Option<u64>),
        new: &mut Vec<TableId>,
    ) -> TableId {
        let known = memory
            .page(shape.base >> PAGE_SHIFT)
            .map_or(&[][..], |page| &page.tables)
            .iter()
            .copied()
            .find(|&id| {
                self.table(id).is_some_and(|table| {
                    table.base == shape.base
                        && table.level == shape.level
                        && table.entries == shape.entries
                        && table.format == shape.format
                })
            });
        if let Some(id) = known {
            return id;
        }
        let table = Table {
            base: shape.base,
            level: shape.level,
            entries: shape.entries,
            format: shape.format,
            parents: BTreeSet::new(),
            roots: BTreeSet::new(),
        };
        let id = if let Some(id) = self.unused.pop() {
            self.tables[id as usize] = Some(table);
            id
        } else {
            self.tables.push(Some(table));
            (self.tables.len() - 1) as TableId
        };
        for number in pages_of(shape.base, shape.entries * 8) {
            memory.page_mut(number).tables.push(id);
        }
        new.push(id);
        if shape.level < 3 {
            let table = (shape.base, shape.entries, shape.level, shape.format);
            self.leading_back
                .extend(garbage::empty(memory, table, from));
            for index in 0..shape.entries {
                let raw = memory.load(shape.base + index * 8);
                if descriptor::kind(raw, shape.level, shape.format) == EntryKind::Table {
                    self.link(memory, id, index, raw, new);
                }
            }
        }
        id
    }

    /// Records that the entry `raw` at `index` of a table leads to another table from now on.
    pub(crate) fn link(
        &mut self,
        memory: &mut Memory,
        parent: TableId,
        index: u64,
        raw: u64,
        new: &mut Vec<TableId>,
    ) {
        let Some(shape) = self.shape_below(parent, raw) else {
            return;
        };
        let from = self.table(parent).map(|parent| parent.base);
        let child = self.attach(memory, (shape, from), new);
        if let Some(child) = self.table_mut(child) {
            child.parents.insert((parent, index));
        }
    }

    fn shape_below(&self, parent: TableId, raw: u64) -> Option<Shape> {
        let parent = self.table(parent)?;
        Some(Shape {
            base: descriptor::table_address(raw, parent.format),
            level: parent.level + 1,
            entries: 1 << parent.format.granule.table_bits(),
            format: parent.format,
        })
    }

    /// Records that the entry `raw` at `index` of a table no longer leads to its table.
    pub(crate) fn unlink(&mut self, memory: &mut Memory, parent: TableId, index: u64, raw: u64) {
        let Some(shape) = self.shape_below(parent, raw) else {
            return;
        };
        let tables = memory
            .page(shape.base >> PAGE_SHIFT)
            .map_or(Vec::new(), |page| page.tables.clone());
        for id in tables {
            let Some(table) = self.table_mut(id) else {
                continue;
            };
            if table.base != shape.base
                || table.level != shape.level
                || table.entries != shape.entries
                || table.format != shape.format
            {
                continue;
            }
            table.parents.remove(&(parent, index));
            self.drop_unreachable(memory, id);
        }
    }

    /// Forgets a table that nothing leads to any more, and the tables that only it leads to.
    fn drop_unreachable(&mut self, memory: &mut Memory, id: TableId) {
        let Some(table) = self.table(id) else { return };
        if !table.parents.is_empty() || !table.roots.is_empty() {
            return;
        }
        let (base, level, entries, format) = (table.base, table.level, table.entries, table.format);
        for number in pages_of(base, entries * 8) {
            let page = memory.page_mut(number);
            page.tables.retain(|&other| other != id);
            page.may_be_walked = true;
        }
        if level < 3 {
            for index in 0..entries {
                let raw = memory.load(base + index * 8);
                if descriptor::kind(raw, level, format) == EntryKind::Table {
                    self.unlink(memory, id, index, raw);
                }
            }
        }
        self.tables[id as usize] = None;
        self.unused.push(id);
    }

    pub(crate) fn find_root(&self, key: &RootKey) -> Option<RootId> {
        self.by_key.get(key).copied()
    }

    /// The roots of a half that entries of an ASID may belong to: those of the ASID, and those
    /// whose ASID is unknown.
    pub(crate) fn roots_of(&self, space: Space, asid: Option<u16>) -> BTreeSet<RootId> {
        [asid, None]
            .iter()
            .filter_map(|asid| self.by_asid.get(&(space, *asid)))
            .flatten()
            .copied()
            .collect()
    }

    /// The roots that have, or had, a global leaf.
    pub(crate) const fn with_global(&self) -> &BTreeSet<RootId> {
        &self.with_global
    }

    /// A tree changed.
    pub(crate) fn touch(&mut self, id: RootId) {
        self.version += 1;
        let version = self.version;
        if let Some(root) = self.root_mut(id) {
            root.version = version;
        }
    }

    /// A CPU walks a tree under an ASID. Returns whether that is new.
    pub(crate) fn walked_under(&mut self, id: RootId, asid: u16) -> bool {
        let is_new = self.root_mut(id).is_some_and(|root| root.asids.add(asid));
        if is_new {
            self.touch(id);
        }
        is_new
    }

    /// Whether a top table has no valid entry.
    pub(crate) fn is_empty(&mut self, memory: &Memory, id: RootId) -> bool {
        let Some(root) = self.root(id) else {
            return true;
        };
        let version = root.version;
        if root.empty.0 == version {
            return root.empty.1;
        }
        let empty = TableAt::top(&root.key).is_empty(memory);
        if let Some(root) = self.root_mut(id) {
            root.empty = (version, empty);
        }
        empty
    }

    /// Whether a top table was found empty, and not changed since.
    pub(crate) fn was_empty(&self, id: RootId) -> bool {
        self.root(id)
            .is_some_and(|root| root.empty == (root.version, true))
    }

    /// Whether two trees were found to be ones that a TLB may hold both of.
    pub(crate) fn are_apart(&self, one: RootId, other: RootId) -> bool {
        let versions = self.root(one).zip(self.root(other));
        let versions = versions.map(|(one, other)| (one.version, other.version));
        versions.is_some() && self.apart.get(&(one, other)).copied() == versions
    }

    /// Notes that a TLB may hold two trees, until one of them changes.
    pub(crate) fn set_apart(&mut self, one: RootId, other: RootId) {
        if self.apart.len() >= MOST_PAIRS {
            self.apart.clear();
        }
        if let (Some(a), Some(b)) = (self.root(one), self.root(other)) {
            self.apart.insert((one, other), (a.version, b.version));
        }
    }

    /// Notes a global leaf of a tree.
    pub(crate) fn add_global(&mut self, id: RootId, (first, last): (u64, u64)) {
        // An entry of stage 2 belongs to one VMID, and bit 11 means something else there.
        if let Some(root) = self.root_mut(id)
            && root.key.context.space.regime() != Regime::Stage2
        {
            root.has_global = true;
            root.globals.add(first, last);
            self.with_global.insert(id);
        }
    }

    /// Adds a root, which no CPU walks yet. Tables that became reachable are added to `new`.
    pub(crate) fn add_root(
        &mut self,
        memory: &mut Memory,
        key: RootKey,
        new: &mut Vec<TableId>,
    ) -> RootId {
        let context = self.context_id(&key.context);
        let shape = Shape {
            base: key.base,
            level: key.context.start_level,
            entries: key.context.top_entries(),
            format: key.context.format,
        };
        let table = self.attach(memory, (shape, None), new);
        self.version += 1;
        let root = Root {
            key,
            context,
            table,
            walking: 0,
            lingering: 0,
            holders: 0,
            left: 0,
            has_global: false,
            globals: Spans::default(),
            asids: Asids::default(),
            version: self.version,
            empty: (0, false),
        };
        let id = match self.unused_roots.pop() {
            Some(id) => {
                self.roots[id as usize] = Some(root);
                id
            }
            None => {
                self.roots.push(Some(root));
                (self.roots.len() - 1) as RootId
            }
        };
        self.by_key.insert(key, id);
        self.by_asid
            .entry((key.context.space, key.asid))
            .or_default()
            .insert(id);
        if let Some(table) = self.table_mut(table) {
            table.roots.insert(id);
        }
        id
    }

    /// Forgets a root that no CPU walks or holds entries of.
    pub(crate) fn drop_root_if_unused(&mut self, memory: &mut Memory, id: RootId) {
        let Some(root) = self.root(id) else { return };
        if root.holders | root.walking != 0 {
            return;
        }
        let (table, key) = (root.table, root.key);
        self.roots[id as usize] = None;
        self.unused_roots.push(id);
        self.by_key.remove(&key);
        self.with_global.remove(&id);
        let place = (key.context.space, key.asid);
        if let Some(ids) = self.by_asid.get_mut(&place) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_asid.remove(&place);
            }
        }
        if let Some(table) = self.table_mut(table) {
            table.roots.remove(&id);
        }
        self.drop_unreachable(memory, table);
    }

    pub(crate) fn paths(&self, memory: &Memory, id: TableId) -> Vec<Path> {
        let mut found = Vec::new();
        self.collect_paths(memory, id, &mut found);
        found
    }

    fn collect_paths(&self, memory: &Memory, id: TableId, found: &mut Vec<Path>) {
        let Some(table) = self.table(id) else { return };
        let ways = (table.roots.len() + table.parents.len()) as u64;
        if !memory.visit(VISITS_OF_A_WAY * ways) {
            return;
        }
        for &root in &table.roots {
            if let Some(key) = self.root(root).map(|root| root.key) {
                found.push(Path {
                    root,
                    at: TableAt::top(&key),
                });
            }
        }
        for &(parent, index) in &table.parents {
            let mut above = Vec::new();
            self.collect_paths(memory, parent, &mut above);
            if !memory.visit(VISITS_OF_A_WAY * above.len() as u64) {
                return;
            }
            for path in above {
                let Some(context) = self.root(path.root).map(|root| &root.key.context) else {
                    continue;
                };
                let raw = memory.load(path.at.base + index * 8);
                let shift = context.format.granule.level_shift(path.at.level);
                let va = path.at.va + (index << shift);
                found.push(Path {
                    root: path.root,
                    at: path.at.below(raw, va, context),
                });
            }
        }
    }
}
