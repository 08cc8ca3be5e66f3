//! The points at which the tables are relied on.
//!
//! A missing barrier or invalidation breaks nothing before these points, so they ask every rule
//! that reports something left undone.

use super::Model;
use crate::arch::context::Space;
use crate::arch::regime::Regime;
use crate::rules::{cache_visibility, registers, stale_entries, store_visibility};
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
        store_visibility::check_made_valid(trees, &mut self.cpus, cpu, report);
        registers::check_in_effect((cpu, &self.cpus[cpu]), (0, u64::MAX), report);
        self.groups.check_relied(trees, cpu, None, report);
        self.caches.check_tables(trees, cpu, report);
        self.caches
            .check_all(&mut self.memory, &self.tables, &mut self.cpus, report);
        let trees = Trees::new(&self.memory, &self.tables);
        self.blocks.check_all(trees, cpu, report);
        for space in Space::all() {
            self.check_tlbs(cpu, (space, 0, u64::MAX));
        }
    }

    /// All CPUs rely on a range.
    pub(super) fn assume_visible(&mut self, cpu: u32, address: u64, bytes: u64) {
        let Some(last) = bytes
            .checked_sub(1)
            .and_then(|most| address.checked_add(most))
        else {
            return;
        };
        let range = (Space::of(self.regime_of(cpu), address), address, last);
        let trees = Trees::new(&self.memory, &self.tables);
        let report = &mut self.report;
        registers::check_in_effect((cpu, &self.cpus[cpu]), (0, u64::MAX), report);
        store_visibility::check_range(trees, &self.cpus, cpu, range, report);
        self.groups.check_relied(trees, cpu, Some(range), report);
        cache_visibility::check_mapped(&mut self.memory, &self.tables, &self.cpus, range, report);
        self.check_tlbs(cpu, range);
    }

    /// Checks that TLBs hold nothing of a range but what the tables say.
    fn check_tlbs(&mut self, cpu: u32, range: (Space, u64, u64)) {
        let trees = Trees::new(&self.memory, &self.tables);
        let (config, report) = (&self.config, &mut self.report);
        stale_entries::check(trees, &mut self.stale, &self.cpus, config, range, report);
        stale_entries::check_draining(trees, &mut self.cpus, config, cpu, range, report);
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
