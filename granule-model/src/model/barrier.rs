//! Barriers: what is visible, complete and in effect after them.

use crate::event::Barrier;
use crate::model::Model;
use crate::state::stale_range::Settle;

impl Model {
    /// A barrier or ISB.
    pub(crate) fn barrier(&mut self, cpu: u32, barrier: Barrier) {
        // Where there is one CPU, the others have seen all that it has.
        let alone = self.config.cpus == 1;
        match barrier {
            Barrier::DsbNshst => self.visible(cpu, alone),
            Barrier::DsbIshst | Barrier::DsbSyst => self.visible(cpu, true),
            Barrier::DsbNsh => {
                self.visible(cpu, alone);
                self.complete_tlbis(cpu, alone);
                self.complete_lines(cpu, alone, false);
            }
            Barrier::DsbIsh => {
                self.visible(cpu, true);
                self.complete_tlbis(cpu, true);
                self.complete_lines(cpu, true, false);
            }
            Barrier::DsbSy => {
                self.visible(cpu, true);
                self.complete_tlbis(cpu, true);
                self.complete_lines(cpu, true, true);
            }
            Barrier::DmbIshst | Barrier::DmbIsh | Barrier::DmbSyst | Barrier::DmbSy => {
                self.cpus[cpu as usize].ordered = self.now;
            }
            Barrier::Isb => self.synchronise(cpu),
        }
    }

    /// The CPU's stores so far are seen by all walkers, or by its own.
    fn visible(&mut self, cpu: u32, shared: bool) {
        let now = self.now;
        let state = &mut self.cpus[cpu as usize];
        state.own_dsb = now;
        let cpus = if shared {
            state.dsb = now;
            state.ordered = now;
            u64::MAX
        } else {
            1 << cpu
        };
        self.stale
            .settle(|run| (run.settle == Settle::Dsb(cpu)).then_some((Settle::At(now), cpus)));
    }

    /// An ISB: register writes are in effect, and what was speculated before is thrown away.
    fn synchronise(&mut self, cpu: u32) {
        let now = self.now;
        let bit = 1u64 << cpu;
        for other in 0..self.cpus.len() {
            let seen = if other == cpu as usize {
                self.cpus[other].own_dsb
            } else {
                self.cpus[other].dsb
            };
            self.cpus[cpu as usize].synchronised[other] = seen;
        }
        let state = &mut self.cpus[cpu as usize];
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
        self.stale
            .settle(|run| (run.settle == Settle::Isb(cpu)).then_some((Settle::At(now), u64::MAX)));
    }
}
