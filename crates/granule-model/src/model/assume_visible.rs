//! The points at which the tables are relied on.
//!
//! A missing barrier or invalidation breaks nothing before these points, so they check every rule
//! that reports something left undone.

use super::Model;
use crate::arch::context::Space;
use crate::arch::regime::Regime;
use crate::rules::{cache_visibility, registers, stale_entries, store_visibility};
use crate::state::relied::Relied;
use crate::state::trees::Trees;

impl Model {
    /// All CPUs rely on all tables.
    pub(super) fn sync(&mut self, cpu: u32) {
        let trees = Trees::new(&self.memory, &self.tables);
        let report = &mut self.report;
        for by in 0..self.cpus.count() {
            store_visibility::check_stored(trees, &mut self.cpus, by, report);
            registers::check_cached_fields(&mut self.cpus, by, report);
        }
        store_visibility::check_made_valid(trees, &mut self.cpus, &self.config, cpu, report);
        registers::check_in_effect((cpu, &self.cpus[cpu]), (0, u64::MAX), report);
        // Code that the CPU does not execute at the end is not relied on.
        if self.cpus[cpu].runs_flat() {
            cache_visibility::check_fetched((cpu, &mut self.cpus[cpu]), (0, u64::MAX), 0, report);
        }
        for space in Space::all() {
            let state = (cpu, &mut self.cpus[cpu]);
            cache_visibility::check_fetched_in(trees, state, Relied::whole(space), report);
        }
        self.groups.check_relied(trees, cpu, None, report);
        self.caches.check_tables(trees, cpu, report);
        self.caches
            .check_all(&mut self.memory, &self.tables, &mut self.cpus, report);
        let trees = Trees::new(&self.memory, &self.tables);
        self.blocks.check_all(trees, cpu, report);
        for space in Space::all() {
            self.check_tlbs(cpu, Relied::whole(space));
        }
    }

    /// All CPUs rely on a range, or, with an ASID, programs of that address space.
    pub(super) fn assume_visible(&mut self, cpu: u32, address: u64, bytes: u64, asid: Option<u16>) {
        let Some(last) = bytes
            .checked_sub(1)
            .and_then(|most| address.checked_add(most))
        else {
            return;
        };
        let range = Relied {
            space: Space::of(self.regime_of(cpu), address),
            first: address,
            last,
            asid,
            by: None,
        };
        let trees = Trees::new(&self.memory, &self.tables);
        let report = &mut self.report;
        // A program begins or goes on after an exception return, which is what an ISB is.
        if asid.is_none() {
            registers::check_in_effect((cpu, &self.cpus[cpu]), (0, u64::MAX), report);
        }
        store_visibility::check_range(trees, &self.cpus, &self.config, cpu, range, report);
        self.groups.check_relied(trees, cpu, Some(range), report);
        if asid.is_none() {
            let (memory, tables) = (&mut self.memory, &self.tables);
            cache_visibility::check_mapped(memory, tables, &self.cpus, range, report);
            let trees = Trees::new(&self.memory, &self.tables);
            let state = (cpu, &mut self.cpus[cpu]);
            cache_visibility::check_fetched_in(trees, state, range, report);
        }
        self.check_tlbs(cpu, range);
    }

    /// A CPU executes the instruction at a virtual address. It relies on what translates that.
    pub(super) fn execute(&mut self, cpu: u32, address: u64) {
        self.report.set_origin(cpu, address);
        let place = (cpu, Space::of(self.regime_of(cpu), address), address);
        let trees = Trees::new(&self.memory, &self.tables);
        store_visibility::check_executed(trees, &mut self.cpus, place, &mut self.report);
    }

    /// Checks that TLBs hold no entries of a range but those of the tables.
    fn check_tlbs(&mut self, cpu: u32, range: Relied) {
        if range.asid.is_none() {
            self.check_disabled(range);
        }
        let trees = Trees::new(&self.memory, &self.tables);
        let (config, report) = (&self.config, &mut self.report);
        stale_entries::check(trees, &mut self.stale, &self.cpus, config, range, report);
        if range.asid.is_none() {
            stale_entries::check_draining(trees, &mut self.cpus, config, cpu, range, report);
        }
    }

    /// Checks the CPUs that have walks of the half disabled: what they hold of a tree that they
    /// walked is still found. A tree is reported once.
    fn check_disabled(&mut self, range: Relied) {
        let trees = Trees::new(&self.memory, &self.tables);
        let found = stale_entries::held_of_disabled(trees, &self.cpus, range, &mut self.report);
        for (cpu, id) in found {
            if let Some(root) = self.tables.root_mut(id) {
                root.holders &= !(1 << cpu);
            }
            self.tables.drop_root_if_unused(&mut self.memory, id);
        }
    }

    /// The regime that a CPU's virtual addresses belong to where no event names one: EL1&0 if its
    /// MMU is on, else the regime whose MMU is.
    fn regime_of(&self, cpu: u32) -> Regime {
        let state = &self.cpus[cpu];
        [Regime::El10, Regime::El2, Regime::El3]
            .into_iter()
            .find(|regime| state.registers_of(*regime).mmu_on())
            .unwrap_or(Regime::El10)
    }
}
