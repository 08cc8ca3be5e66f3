//! Tables that become reachable: checks every rule about reachable tables.

use super::Model;
use crate::arch::descriptor::{self, EntryKind};
use crate::rules::cache_visibility::{self, Walks};
use crate::rules::{address_size, table_memory};
use crate::state::caches::line_mask;
use crate::state::ids::{PAGE_SHIFT, TableId, pages_of};
use crate::state::trees::Trees;
use granule_trace::Visibility;

impl Model {
    /// Checks tables that became reachable by a store of `cpu`, or by a register write (`None`).
    pub(super) fn check_new_tables(
        &mut self,
        cpu: u32,
        tables: &[TableId],
        visibility: Option<Visibility>,
        walks: Walks,
    ) {
        let report = &mut self.report;
        for location in std::mem::take(&mut self.tables.leading_back) {
            table_memory::leads_back(cpu, location, report);
        }
        for &id in tables {
            let Some(table) = self.tables.table(id) else {
                continue;
            };
            let (base, bytes) = (table.base, table.entries * 8);
            self.table_memory.misused.remove(&base);
            for number in pages_of(base, bytes) {
                let from = (number << PAGE_SHIFT).max(base);
                let to = ((number + 1) << PAGE_SHIFT).min(base + bytes);
                self.ordering.check_link(
                    &mut self.memory,
                    &self.cpus,
                    (cpu, (from, to)),
                    visibility,
                    report,
                );
                table_memory::check_stored(&self.memory, cpu, (from, to), report);
                table_memory::check_granule(
                    &mut self.memory,
                    cpu,
                    (from, to),
                    table.format,
                    report,
                );
                let mask = line_mask(number, from, to - from);
                cache_visibility::check_walked(&self.memory, cpu, (number, mask), walks, report);
            }
            if table.level < 3 {
                for index in 0..table.entries {
                    let location = base + index * 8;
                    let raw = self.memory.load(location);
                    if descriptor::kind(raw, table.level, table.format) == EntryKind::Table {
                        let pointer = (raw, location);
                        self.table_memory.check_target(
                            &self.memory,
                            cpu,
                            pointer,
                            table.format,
                            report,
                        );
                    }
                }
            }
            let trees = Trees::new(&self.memory, &self.tables);
            let root = trees.root(trees.first_path(id).map(|path| path.root));
            if let Some(context) = root.map(|root| &root.key.context) {
                for location in (base..base + bytes).step_by(8) {
                    let entry = (self.memory.load(location), table.level, location);
                    address_size::check(cpu, context, entry, report);
                }
            }
            let entries = (id, 0, table.entries - 1);
            self.groups
                .check(trees, &self.config, cpu, entries, None, report);
        }
    }
}
