//! A read-only view of memory and the graph of tables together, which most rules use.

use super::ids::{PAGE_SHIFT, RootId, TableId};
use super::memory::Memory;
use super::tables::{Path, Root, Tables};
use super::walk::{self, EntryAt, TableAt};
use crate::arch::context::RootKey;
use crate::arch::descriptor::{self, EntryKind};
use crate::arch::regime::Regime;

/// The trees of tables as memory has them now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trees<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) tables: &'a Tables,
}

impl<'a> Trees<'a> {
    /// Combines the two.
    pub(crate) const fn new(memory: &'a Memory, tables: &'a Tables) -> Self {
        Self { memory, tables }
    }

    /// The root of a tree that some CPU translates by, if there is one.
    pub(crate) fn root(self, id: Option<RootId>) -> Option<&'a Root> {
        self.tables.root(id?)
    }

    pub(crate) fn paths(self, id: TableId) -> Vec<Path> {
        self.tables.paths(self.memory, id)
    }

    /// One path from a root to a table, if there is any.
    pub(crate) fn first_path(self, id: TableId) -> Option<Path> {
        self.paths(id).into_iter().next()
    }

    pub(crate) fn tables_in(self, page: u64) -> &'a [TableId] {
        self.memory.page(page).map_or(&[][..], |page| &page.tables)
    }

    /// A reachable table that holds some byte of a range, if there is one.
    pub(crate) fn table_within(self, address: u64, bytes: u64) -> Option<TableId> {
        let end = address.saturating_add(bytes);
        let number = address >> PAGE_SHIFT;
        let last = end.saturating_sub(1) >> PAGE_SHIFT;
        let in_page = |number| {
            self.tables_in(number).iter().copied().find(|id| {
                self.tables.table(*id).is_some_and(|table| {
                    table.base < end && address < table.base + table.entries * 8
                })
            })
        };
        if number == last {
            return in_page(number);
        }
        self.memory
            .known(number, last)
            .into_iter()
            .find_map(in_page)
    }

    /// Calls `seen` with all valid entries of a tree that translate any address from `first` to
    /// `last`, upper levels before lower ones.
    pub(crate) fn entries(
        self,
        key: &RootKey,
        (first, last): (u64, u64),
        mut seen: impl FnMut(&EntryAt),
    ) {
        let top = TableAt::top(key);
        walk::entries(self.memory, &key.context, &top, first, last, &mut seen);
    }

    /// The global leaves of a tree at some addresses, in the table that `at` describes and below.
    pub(crate) fn globals(
        self,
        key: &RootKey,
        at: &TableAt,
        (first, last): (u64, u64),
    ) -> Vec<EntryAt> {
        let mut found = Vec::new();
        walk::entries(self.memory, &key.context, at, first, last, &mut |entry| {
            if entry.kind == EntryKind::Leaf && descriptor::is_global(entry.raw, &key.context) {
                found.push(*entry);
            }
        });
        found
    }

    /// The regime of the first tree that the descriptor at a physical address is part of; EL1&0 if
    /// it is part of none.
    pub(crate) fn regime_at(self, location: u64) -> Regime {
        self.tables_in(location >> PAGE_SHIFT)
            .iter()
            .filter_map(|&id| self.root(Some(self.first_path(id)?.root)))
            .map(|root| root.key.context.space.regime())
            .next()
            .unwrap_or(Regime::El10)
    }

    /// The addresses that the descriptor at a physical address translates, in the first tree that
    /// it is part of; all addresses if it is part of none.
    pub(crate) fn translated_by(self, location: u64) -> (u64, u64) {
        for &id in self.tables_in(location >> PAGE_SHIFT) {
            let Some(path) = self.first_path(id) else {
                continue;
            };
            let Some(root) = self.tables.root(path.root) else {
                continue;
            };
            let shift = root.key.context.format.granule.level_shift(path.at.level);
            let index = location.wrapping_sub(path.at.base) / 8;
            if index < path.at.entries {
                let va = path.at.va + (index << shift);
                return (va, va + ((1 << shift) - 1));
            }
        }
        (0, u64::MAX)
    }
}
