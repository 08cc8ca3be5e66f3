//! Table memory that is obtained and given back.

use super::Model;
use crate::arch::context::Space;
use crate::arch::descriptor;
use crate::rules;
use crate::state::extents::Owner;
use crate::state::ids::{PAGE_SHIFT, PER_PAGE, entries_in, pages_of};
use crate::state::stale_range::StaleRange;
use crate::state::stale_tlb::Fate;
use crate::state::tables::Table;
use crate::state::trees::Trees;
use std::ops::Range;

impl Model {
    /// The tables of a page that are used for something else while walkers reach them, as a CPU's stores (address,
    /// value) show. That is one mistake: the model goes on as if nothing was stored to such a table since, and as if
    /// what its entries were before was invalidated.
    pub(super) fn misused_tables(
        &mut self,
        cpu: u32,
        number: u64,
        stored: impl Iterator<Item = (u64, u64)> + Clone,
    ) -> Vec<Range<u64>> {
        let trees = Trees::new(&self.memory, &self.tables);
        let place = |table: &Table| table.base..table.base + table.entries * 8;
        let tables = trees.tables_in(number).iter();
        let tables = tables.filter_map(|id| trees.tables.table(*id));
        // A table that leads to itself is one of several levels.
        let of = |location| {
            let tables = tables.clone();
            tables.filter(move |table| place(table).contains(&location))
        };
        let misused = &mut self.table_memory.misused;
        let other = stored.clone().find(|(location, value)| {
            let is_other = |it: &Table| descriptor::is_other_data(*value, it.level, it.format);
            let is_known = of(*location).any(|table| misused.contains(&table.base));
            !is_known && of(*location).next().is_some() && of(*location).all(is_other)
        });
        if let Some((location, table)) =
            other.and_then(|(location, _)| Some((location, of(location).next()?)))
        {
            let place = place(table);
            let range = (place.start, place.end - 1);
            rules::table_memory::misused(cpu, range, location, &mut self.report);
            misused.extend(of(location).map(|table| table.base));
            for (_, cpu) in self.cpus.iter_mut() {
                for (event, location) in [&mut cpu.stored, &mut cpu.made_valid] {
                    if place.contains(location) {
                        *event = 0;
                    }
                }
            }
            for space in Space::all() {
                self.stale.rewrite(space, 0, u64::MAX, |range| {
                    self.memory.visit(1);
                    if range.reported || !place.contains(&range.location) {
                        return Fate::Keep;
                    }
                    Fate::Replace(vec![StaleRange {
                        reported: true,
                        ..range.clone()
                    }])
                });
            }
        }
        let known = tables.filter(|table| misused.contains(&table.base));
        known.map(place).collect()
    }

    /// Memory becomes table memory, with unknown contents.
    pub(super) fn obtained(&mut self, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if self.config.track_tables.is_none() {
            self.table_memory.tracked = true;
        }
        let (first, last) = pages_of(address, bytes).into_inner();
        self.know_ends(address, bytes);
        for number in self.memory.known(first, last) {
            let (at, count) = entries_in(number, address, bytes);
            let start = (number << PAGE_SHIFT) + at as u64 * 8;
            let trees = Trees::new(&self.memory, &self.tables);
            let is_table = trees.table_within(start, count as u64 * 8).is_some();
            let page = self.memory.page_mut(number);
            page.set_owner(at, count, Owner::Tables);
            page.granule = None;
            if !is_table {
                page.forget(at, count);
            }
        }
        self.memory.change_others(first, last, |_, _, extent| {
            extent.owner = Owner::Tables;
            extent.unknown = true;
        });
    }

    /// Table memory is given back: no walker may reach it any more.
    pub(super) fn freed(&mut self, cpu: u32, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.forget_empty_trees(address, bytes);
        let trees = Trees::new(&self.memory, &self.tables);
        let reachable = trees.table_within(address, bytes);
        let (first, last) = pages_of(address, bytes).into_inner();
        self.know_ends(address, bytes);
        for number in self.memory.known(first, last) {
            let (at, count) = entries_in(number, address, bytes);
            self.memory
                .page_mut(number)
                .set_owner(at, count, Owner::Freed);
        }
        self.memory
            .change_others(first, last, |_, _, extent| extent.owner = Owner::Freed);
        rules::table_memory::check_freed(
            Trees::new(&self.memory, &self.tables),
            &self.stale,
            &self.cpus,
            (cpu, address, bytes),
            reachable,
            &mut self.report,
        );
    }

    /// Gives pages that a range ends in the middle of a state of their own.
    fn know_ends(&mut self, address: u64, bytes: u64) {
        let (first, last) = pages_of(address, bytes).into_inner();
        for number in [first, last] {
            if entries_in(number, address, bytes).1 < PER_PAGE {
                self.memory.page_mut(number);
            }
        }
    }

    /// Forgets trees that no CPU walks and that have no entry left. A CPU that left such a tree
    /// keeps nothing of the top table itself; only its known stale ranges remain.
    fn forget_empty_trees(&mut self, address: u64, bytes: u64) {
        let (first, last) = pages_of(address, bytes).into_inner();
        let mut roots = Vec::new();
        let trees = Trees::new(&self.memory, &self.tables);
        for number in self.memory.known(first, last) {
            let tables = trees.tables_in(number).iter();
            for table in tables.filter_map(|id| self.tables.table(*id)) {
                if table.base < address.saturating_add(bytes)
                    && address < table.base + table.entries * 8
                {
                    roots.extend(table.roots.iter().copied());
                }
            }
        }
        for id in roots {
            let walking = self.tables.root(id).is_none_or(|root| root.walking != 0);
            if walking || !self.tables.is_empty(&self.memory, id) {
                continue;
            }
            if let Some(root) = self.tables.root_mut(id) {
                root.holders = 0;
            }
            self.tables.drop_root_if_unused(&mut self.memory, id);
        }
    }
}
