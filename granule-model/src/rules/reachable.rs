//! What must hold when tables become reachable: their stores are seen, their memory is table
//! memory, every entry was stored, the walkers read what was stored.

use crate::arch::descriptor;
use crate::arch::format::Format;
use crate::event::Order;
use crate::model::{Found, Model};
use crate::state::memory::{self, Memory, Owner, PAGE_SHIFT, PER_PAGE};
use crate::state::tables::{Root, RootId, TableId};
use crate::violation::Rule;

/// How the walkers of some roots read tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walks {
    pub(crate) cached: bool,
    pub(crate) uncached: bool,
}

impl Walks {
    pub(crate) fn of<'a>(roots: impl Iterator<Item = &'a Root>) -> Self {
        let mut walks = Self::default();
        for root in roots {
            walks.cached |= root.key.context.cached_walks;
            walks.uncached |= !root.key.context.cached_walks;
        }
        walks
    }
}

impl Model {
    /// Checks tables that became reachable by a store of `cpu` in an order, or by a register
    /// write of it (`None`).
    pub(crate) fn check_new_tables(
        &mut self,
        cpu: u32,
        tables: &[TableId],
        order: Option<Order>,
        walks: Walks,
    ) {
        for &id in tables {
            let Some((base, entries, format, level)) = self
                .tables
                .table(id)
                .map(|table| (table.base, table.entries, table.format, table.level))
            else {
                continue;
            };
            for number in Memory::numbers(base, entries * 8) {
                let from = (number << PAGE_SHIFT).max(base);
                let to = ((number + 1) << PAGE_SHIFT).min(base + entries * 8);
                self.check_order(cpu, number, order);
                self.check_known(cpu, from, to);
                let mask = memory::line_mask(number, from, to - from);
                self.check_walked_lines(cpu, number, mask, walks);
            }
            if level < 3 {
                for index in 0..entries {
                    let location = base + index * 8;
                    let raw = self.memory.load(location);
                    if descriptor::kind(raw, level, format) == descriptor::Kind::Table {
                        self.check_target(cpu, raw, location, format);
                    }
                }
            }
            self.check_groups(cpu, id, 0, entries - 1, None);
        }
    }

    /// The stores in a page must be seen by whoever sees the store (or register write) that
    /// makes it reachable.
    fn check_order(&mut self, cpu: u32, number: u64, order: Option<Order>) {
        let Some(page) = self.memory.known_mut(number) else {
            return;
        };
        let pending = std::mem::take(&mut page.pending);
        let mut unseen = Vec::new();
        for (by, event) in pending {
            let storer = &self.cpus[by as usize];
            if storer.dsb > event {
                continue;
            }
            let ordered = match order {
                // A release orders this CPU's own stores, and those of others that it has
                // seen: taken for granted, as the events of a trace are in one order.
                Some(Order::Release) => true,
                Some(Order::Plain | Order::Exchange) => by == cpu && storer.ordered > event,
                None => by == cpu && storer.own_dsb > event,
            };
            if !ordered {
                self.report_unordered(self.other_than(cpu), number, event);
            } else if order.is_none() {
                // Only this CPU sees them; another may be about to walk the same tables.
                unseen.push((by, event));
            }
        }
        if !unseen.is_empty() {
            self.unseen_pages.insert(number);
            self.memory.page_mut(number).pending = unseen;
        }
    }

    fn report_unordered(&mut self, cpu: u32, number: u64, event: u64) {
        let start = number << PAGE_SHIFT;
        let found = Found::in_memory(
            Rule::UnorderedLink,
            cpu,
            (start, start + (PER_PAGE as u64 * 8 - 1)),
            "may walk the table as it was before these stores",
        );
        self.report(found.because_of(event));
    }

    /// A CPU walks a tree from now on: stores to its tables that only the storing CPU has seen
    /// so far are missing there.
    pub(crate) fn check_unseen(&mut self, cpu: u32, root: RootId) {
        for number in std::mem::take(&mut self.unseen_pages) {
            let Some(page) = self.memory.page(number) else {
                continue;
            };
            let (tables, mut pending) = (page.tables.clone(), page.pending.clone());
            pending.retain(|(by, event)| self.cpus[*by as usize].dsb <= *event);
            if pending.is_empty() || tables.is_empty() {
                self.memory.page_mut(number).pending.clear();
                continue;
            }
            self.unseen_pages.insert(number);
            let walked = tables.iter().any(|id| {
                let paths = self.tables.paths(&self.memory, *id, &self.contexts);
                paths.iter().any(|path| path.root == root)
            });
            for (by, event) in pending {
                if walked && by != cpu {
                    self.report_unordered(cpu, number, event);
                }
            }
        }
    }

    fn check_known(&mut self, cpu: u32, from: u64, to: u64) {
        let number = from >> PAGE_SHIFT;
        let first = (from >> 3) as usize % PER_PAGE;
        let count = ((to - from) >> 3) as usize;
        let unknown = self
            .memory
            .page(number)
            .and_then(|page| page.unknown(first, count));
        if let Some(index) = unknown {
            let location = (number << PAGE_SHIFT) + index as u64 * 8;
            let found = Found::in_memory(
                Rule::UninitialisedTable,
                cpu,
                (location, to - 1),
                "may walk whatever was in the memory before it became a table",
            );
            self.report(found.located(location));
        }
    }

    /// Walkers must find in caches or memory what was stored.
    pub(crate) fn check_walked_lines(&mut self, cpu: u32, number: u64, mask: u64, walks: Walks) {
        let Some(lines) = self.memory.page(number).map(|page| page.lines) else {
            return;
        };
        let stale = (lines.newer | lines.invalidating) & mask;
        if walks.cached && stale != 0 {
            let found = Found::in_memory(
                Rule::NotInvalidated,
                cpu,
                lines_range(number, stale),
                "may walk the table as an old cache line has it: it was stored past the caches",
            );
            self.report(found.because_of(lines.event));
        }
        let unwritten = (lines.dirty | lines.cleaning) & mask;
        if walks.uncached && unwritten != 0 {
            let found = Found::in_memory(
                Rule::NotCleaned,
                cpu,
                lines_range(number, unwritten),
                "may walk the table as memory has it: walks are not cached, and the stores were",
            );
            self.report(found.because_of(lines.event));
        }
    }

    /// The memory that a table entry points to must be a table's.
    pub(crate) fn check_target(&mut self, cpu: u32, raw: u64, location: u64, format: Format) {
        let target = descriptor::table_address(raw, format);
        self.check_owner(cpu, target, Some(location), format);
    }

    /// The memory of a table must be a table's; that of a top table may be unknown.
    pub(crate) fn check_owner(
        &mut self,
        cpu: u32,
        table: u64,
        location: Option<u64>,
        format: Format,
    ) {
        let owner = self.memory.owner(table >> PAGE_SHIFT);
        let text = match owner {
            Owner::Tables => return,
            Owner::Freed => "walks memory that was given back",
            Owner::Unknown if self.tables_tracked && location.is_some() => {
                "walks memory that was never obtained for tables"
            }
            Owner::Unknown => return,
        };
        let last = table + ((1 << format.granule.shift()) - 1);
        let mut found = Found::in_memory(Rule::NotTableMemory, cpu, (table, last), text);
        found.location = location;
        self.report(found);
    }

    /// A CPU to observe what `cpu` did: another one, where there is one.
    pub(crate) const fn other_than(&self, cpu: u32) -> u32 {
        if self.config.cpus == 1 {
            cpu
        } else if cpu == 0 {
            1
        } else {
            0
        }
    }
}

/// The addresses from the first to the last of some lines of a page.
pub(crate) const fn lines_range(number: u64, mask: u64) -> (u64, u64) {
    let start = number << PAGE_SHIFT;
    (
        start + (mask.trailing_zeros() as u64) * 64,
        start + (63 - mask.leading_zeros() as u64) * 64 + 63,
    )
}
