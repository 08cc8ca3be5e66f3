//! Table memory that comes and goes.

use crate::arch::descriptor;
use crate::model::{Found, Model};
use crate::state::memory::{Memory, Owner};
use crate::violation::Rule;

impl Model {
    /// Memory becomes table memory; what is in it could be anything.
    pub(crate) fn obtained(&mut self, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if self.config.track_tables.is_none() {
            self.tables_tracked = true;
        }
        let (first, last) = Memory::numbers(address, bytes).into_inner();
        for number in self.memory.known(first, last) {
            let page = self.memory.page_mut(number);
            page.owner = Owner::Tables;
            if page.tables.is_empty() {
                page.forget();
                page.pending.clear();
            }
        }
        self.memory.change_others(first, last, |_, _, extent| {
            extent.owner = Owner::Tables;
            extent.unknown = true;
        });
    }

    /// Table memory is given back: no walker may come there any more.
    pub(crate) fn freed(&mut self, cpu: u32, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.forget_empty_roots(address, bytes);
        let mut reachable = None;
        let (first, last) = Memory::numbers(address, bytes).into_inner();
        for number in self.memory.known(first, last) {
            let page = self.memory.page_mut(number);
            page.owner = Owner::Freed;
            if reachable.is_none() {
                reachable = page.tables.first().copied();
            }
        }
        self.memory
            .change_others(first, last, |_, _, extent| extent.owner = Owner::Freed);
        let range = (address, address + (bytes - 1));
        if let Some(id) = reachable {
            let path = self
                .tables
                .paths(&self.memory, id, &self.contexts)
                .into_iter()
                .next();
            let walker = path
                .and_then(|path| self.tables.root(path.root))
                .map_or(cpu, |root| root.holders.trailing_zeros());
            self.report(Found::in_memory(
                Rule::FreedInUse,
                walker,
                range,
                "can walk the table: entries or a TTBR still lead to it",
            ));
        }
        if self.stale.is_empty() {
            return;
        }
        self.memory.visit(self.stale.table_buckets());
        let contexts = &self.contexts;
        let pointing = self.stale.pointing_into(address, bytes, |run, index| {
            let context = &contexts[run.context as usize];
            descriptor::table_address(run.entry_value(index), context.format)
        });
        if let Some(run) = pointing {
            let found = Found {
                range,
                is_virtual: false,
                ..Found::of_run(
                    Rule::FreedInUse,
                    &run,
                    "may walk the table through a cached pointer to it",
                )
            };
            self.report_of_run(found, &run);
        }
    }

    /// Nothing is held of a tree that nobody walks and that has no entry any more, but what is
    /// known to be stale: a CPU that left it keeps nothing of the top table itself.
    fn forget_empty_roots(&mut self, address: u64, bytes: u64) {
        let (first, last) = Memory::numbers(address, bytes).into_inner();
        let mut roots = Vec::new();
        for number in self.memory.known(first, last) {
            let tables = self
                .memory
                .page(number)
                .map_or(&[][..], |page| &page.tables);
            for table in tables.iter().filter_map(|id| self.tables.table(*id)) {
                roots.extend(table.roots.iter().copied());
            }
        }
        for id in roots {
            let walking = self.tables.root(id).is_none_or(|root| root.walking != 0);
            if walking || !self.is_empty(id) {
                continue;
            }
            if let Some(root) = self.tables.root_mut(id) {
                root.holders = 0;
            }
            self.tables.drop_root_if_unused(&mut self.memory, id);
        }
    }
}
