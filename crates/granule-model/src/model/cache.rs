//! Stores as the caches see them, and cache maintenance.
//!
//! The CPU's SCTLR alone decides whether a store goes through the caches: events do not name the
//! mapping.

use super::Model;
use crate::rules::cache_stores;
use crate::state::caches::{CacheMaintenance, addresses_of};
use crate::state::trees::Trees;
use granule_trace::System;

/// Pieces of changed code kept for a CPU until its ISB.
const MOST_FETCHED: usize = 1 << 12;

impl Model {
    /// Records that `cpu` stored to some lines of a page, through the caches or past them.
    pub(super) fn lines_stored(&mut self, cpu: u32, number: u64, mask: u64, cached: bool) {
        let now = self.report.now();
        let lines = &mut self.memory.page_mut(number).lines;
        let event = lines.event;
        let behind = lines.store(mask, cached, now);
        let unsettled = lines.settle_stored(mask, cached);
        if lines.other & mask != 0 {
            self.caches.note_change();
        }
        let trees = Trees::new(&self.memory, &self.tables);
        self.caches.note_store(trees, number, cached);
        if behind != 0 {
            let range = addresses_of(number, behind);
            cache_stores::behind(cpu, range, event, &mut self.report);
        }
        if unsettled != 0 && self.config.caches_unknown_at_reset {
            cache_stores::unsettled(cpu, addresses_of(number, unsettled), &mut self.report);
        }
    }

    /// A store of instructions (`code`) or data to memory that is not a table.
    pub(super) fn other_store(&mut self, cpu: u32, address: u64, bytes: u64, code: bool) {
        if bytes == 0 {
            return;
        }
        let all_cpus = self.cpus.mask();
        let cached = self.cpus[cpu].data_cached();
        let unknown = self.config.caches_unknown_at_reset;
        let report = &mut self.report;
        let mut stored = Vec::new();
        self.memory
            .change_lines(address, bytes, true, |span, lines| {
                let event = lines.event;
                let behind = lines.store(span.mask, cached, report.now());
                if behind != 0 {
                    cache_stores::behind(cpu, span.addresses(behind), event, report);
                }
                let unsettled = lines.settle_stored(span.mask, cached);
                if unsettled != 0 && unknown {
                    cache_stores::unsettled(cpu, span.addresses(unsettled), report);
                }
                if span.first == span.last {
                    stored.push(span.first);
                }
                lines.store_for_others(span.mask, code, cached, all_cpus);
            });
        self.caches.note_change();
        let trees = Trees::new(&self.memory, &self.tables);
        for number in stored {
            self.caches.note_store(trees, number, cached);
        }
    }

    pub(super) fn cache_maintenance(&mut self, cpu: u32, op: System, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let pending = &mut self.cpus[cpu].maintenance;
        let report = &mut self.report;
        // Maintenance settles unknown lines, so lines without a state get one here.
        let all = self.config.caches_unknown_at_reset && op != System::DC_CVAU;
        self.memory
            .change_lines(address, bytes, all, |span, lines| {
                if all {
                    lines.settled |= span.mask;
                }
                let lost = lines.maintain(op, span.mask, |work, mask| {
                    if mask != 0 {
                        *pending.entry((span.first, span.last, work)).or_default() |= mask;
                    }
                });
                if lost != 0 {
                    cache_stores::lost(cpu, span.addresses(lost), lines.event, report);
                }
            });
        self.caches.note_change();
    }

    /// Invalidation of instruction caches: IC IALLU or IC IALLUIS.
    pub(super) fn invalidate_instructions(&mut self, cpu: u32, op: System) {
        let cpus = if op == System::IC_IALLU {
            1 << cpu
        } else {
            self.cpus.mask()
        };
        for (index, state) in self.cpus.iter_mut() {
            if cpus & (1 << index) != 0 && state.started {
                state.unknown_code = false;
            }
        }
        for (span, lines) in self.memory.lines_for_others() {
            let reached = lines.reached_by_ic();
            if reached != 0 {
                self.memory
                    .change_known_lines(span.first, span.last, |lines| {
                        lines.code_invalidating |= reached;
                    });
                let work = CacheMaintenance::Instructions(cpus);
                *self.cpus[cpu]
                    .maintenance
                    .entry((span.first, span.last, work))
                    .or_default() |= reached;
            }
        }
    }

    /// Notes code that instruction caches no longer hold as it was, but that CPUs may have fetched
    /// before.
    fn note_fetched(&mut self, cpus: u64, code: (u64, u64, u64)) {
        for (index, state) in self.cpus.iter_mut() {
            if cpus & (1 << index) != 0 && state.started {
                // The list is bounded: a CPU that never executes an ISB keeps the oldest.
                if state.fetched_before.len() < MOST_FETCHED {
                    state.fetched_before.push(code);
                }
            }
        }
    }

    /// A DSB completes cache maintenance: all of it (`system`), or only maintenance to the point of
    /// unification, and that of other CPUs' instruction caches only if `shared`.
    pub(super) fn complete_maintenance(&mut self, cpu: u32, shared: bool, system: bool) {
        let pending = std::mem::take(&mut self.cpus[cpu].maintenance);
        if !pending.is_empty() {
            self.caches.note_change();
        }
        let own = 1 << cpu;
        let now = self.report.now();
        for ((first, last, work), mask) in pending {
            let done = match work {
                CacheMaintenance::CleanCode => true,
                CacheMaintenance::Clean | CacheMaintenance::Invalidate => system,
                CacheMaintenance::Instructions(cpus) => shared || cpus == own,
            };
            if done {
                self.memory
                    .change_known_lines(first, last, |lines| lines.complete(work, mask));
                if let CacheMaintenance::Instructions(cpus) = work {
                    self.note_fetched(cpus, (now, first, last));
                }
            } else {
                let pending = &mut self.cpus[cpu].maintenance;
                pending.insert((first, last, work), mask);
            }
        }
    }
}
