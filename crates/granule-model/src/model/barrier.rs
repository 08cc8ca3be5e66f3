//! Barriers: stores become visible, TLBIs and cache maintenance complete, register writes take
//! effect.

use super::Model;
use crate::arch::barrier::{self, Domain};
use crate::state::stale_range::Settle;
use granule_trace::{Barrier, BarrierKind};

impl Model {
    /// Applies a barrier or ISB.
    pub(super) fn barrier(&mut self, cpu: u32, barrier: Barrier) {
        let Some((domain, stores_only)) = barrier::decode(barrier) else {
            return;
        };
        match barrier.kind {
            BarrierKind::Dsb => {
                // With one CPU, a local barrier reaches every CPU.
                let shared = domain != Domain::Local || self.config.cpus == 1;
                self.make_visible(cpu, shared);
                if !stores_only {
                    self.complete_tlbis(cpu, shared);
                    self.complete_maintenance(cpu, shared, domain == Domain::System);
                }
            }
            BarrierKind::Dmb => self.cpus[cpu].ordered = self.report.now(),
            _ => self.synchronise(cpu),
        }
    }

    /// Makes the CPU's stores so far visible to all walkers, or only to its own.
    fn make_visible(&mut self, cpu: u32, shared: bool) {
        let now = self.report.now();
        let state = &mut self.cpus[cpu];
        state.own_dsb = now;
        let cpus = if shared {
            state.dsb = now;
            state.ordered = now;
            u64::MAX
        } else {
            1 << cpu
        };
        self.stale
            .settle(|range| (range.settle == Settle::Dsb(cpu)).then_some((Settle::At(now), cpus)));
    }

    /// An ISB: register writes take effect, and earlier speculation is discarded.
    pub(super) fn synchronise(&mut self, cpu: u32) {
        self.leave_unchecked(cpu);
        let now = self.report.now();
        let bit = 1u64 << cpu;
        for other in 0..self.cpus.count() {
            let seen = if other == cpu {
                self.cpus[other].own_dsb
            } else {
                self.cpus[other].dsb
            };
            self.cpus[cpu].synchronised[other as usize] = seen;
        }
        let state = &mut self.cpus[cpu];
        state.draining.clear();
        state.fetched_before.clear();
        state.unsynchronised = None;
        for reshape in state.reshaped.iter_mut().flatten() {
            reshape.synchronise(now);
        }
        let changes = state.field_changed.iter_mut().flatten();
        for settle in state
            .ceased
            .iter_mut()
            .chain(changes.map(|(_, settle)| settle))
        {
            if matches!(settle, Settle::Isb(_)) {
                *settle = Settle::At(now);
            }
        }
        for id in std::mem::take(&mut state.left) {
            if let Some(root) = self.tables.root_mut(id)
                && root.lingering & bit != 0
            {
                root.walking &= !bit;
                root.lingering &= !bit;
                root.left = now;
            }
        }
        self.stale.settle(|range| {
            (range.settle == Settle::Isb(cpu)).then_some((Settle::At(now), u64::MAX))
        });
    }
}
