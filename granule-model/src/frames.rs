//! Table memory that comes and goes.

use crate::descriptor;
use crate::memory::{Memory, Owner};
use crate::model::{Found, Model};
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
        for number in Memory::numbers(address, bytes) {
            let page = self.memory.page_mut(number);
            page.owner = Owner::Tables;
            if page.tables.is_empty() {
                page.forget();
                page.pending.clear();
            }
        }
    }

    /// Table memory is given back: no walker may come there any more.
    pub(crate) fn freed(&mut self, cpu: u32, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut reachable = None;
        for number in Memory::numbers(address, bytes) {
            let page = self.memory.page_mut(number);
            page.owner = Owner::Freed;
            if reachable.is_none() {
                reachable = page.tables.first().copied();
            }
        }
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
        let contexts = &self.contexts;
        let pointing = self.stale.pointing_into(address, bytes, |run, index| {
            let context = &contexts[usize::from(run.context)];
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
}
