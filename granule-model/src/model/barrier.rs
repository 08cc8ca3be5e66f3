//! Barriers: what is visible, complete and in effect after them.

use super::Model;
use crate::event::Barrier;
use crate::state::stale_range::Settle;

impl Model {
    /// A barrier or ISB.
    pub(super) fn barrier(&mut self, cpu: u32, barrier: Barrier) {
        // Where there is one CPU, the others have seen all that it has.
        let alone = self.config.cpus == 1;
        match barrier {
            Barrier::DsbNshst => self.make_visible(cpu, alone),
            Barrier::DsbIshst | Barrier::DsbSyst => self.make_visible(cpu, true),
            Barrier::DsbNsh => {
                self.make_visible(cpu, alone);
                self.complete_tlbis(cpu, alone);
                self.complete_maintenance(cpu, alone, false);
            }
            Barrier::DsbIsh => {
                self.make_visible(cpu, true);
                self.complete_tlbis(cpu, true);
                self.complete_maintenance(cpu, true, false);
            }
            Barrier::DsbSy => {
                self.make_visible(cpu, true);
                self.complete_tlbis(cpu, true);
                self.complete_maintenance(cpu, true, true);
            }
            Barrier::DmbIshst | Barrier::DmbIsh | Barrier::DmbSyst | Barrier::DmbSy => {
                self.cpus[cpu].ordered = self.report.now();
            }
            Barrier::Isb => self.synchronise(cpu),
        }
    }

    /// The CPU's stores so far are seen by all walkers, or by its own.
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

    /// An ISB: register writes are in effect, and what was speculated before is thrown away.
    fn synchronise(&mut self, cpu: u32) {
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
        state.unsynchronised = None;
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
