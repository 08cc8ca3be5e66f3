//! Checks what a program may reach: memory that is taken for something else, and the return to a
//! program.
//!
//! At both moments an unmap must be complete: every entry that a TLB still holds is reported,
//! whoever would use it.

use super::Model;
use crate::arch::context::Space;
use crate::arch::regime::Regime;
use crate::rules::{registers, reuse, stale_entries};
use crate::state::ids::RootId;
use crate::state::relied::Relied;
use crate::state::trees::Trees;

impl Model {
    /// Memory that a mapping led to is taken for something else.
    pub(super) fn reused(&mut self, start: u64, bytes: u64) {
        let trees = Trees::new(&self.memory, &self.tables);
        let memory = (start, bytes);
        let (config, report) = (&self.config, &mut self.report);
        reuse::note(trees, &mut self.stale, &self.cpus, config, memory, report);
    }

    /// A CPU goes on at EL0: what it changed in the program's address space and in the kernel's is relied
    /// on, and nothing of the program's leads to memory that is another's. With stage 2 on it goes on in a
    /// guest.
    pub(super) fn enter_user(&mut self, cpu: u32) {
        self.synchronise(cpu);
        let state = &mut self.cpus[cpu];
        state.in_user = true;
        if state.runs_guests() {
            registers::check_guest(cpu, state, &mut self.report);
            let guest = (
                cpu,
                Regime::Stage2,
                state.registers_of(Regime::Stage2).vmid(),
            );
            let trees = Trees::new(&self.memory, &self.tables);
            reuse::check(trees, &mut self.stale, &self.cpus, guest, &mut self.report);
            return;
        }
        if self.stale.is_empty() {
            return;
        }
        let [lower, upper] = [false, true].map(|upper| Space::new(Regime::El10, upper));
        let mut relied = vec![Relied::whole(upper)];
        for asid in self.asids_of_program(cpu, lower) {
            let trees = Trees::new(&self.memory, &self.tables);
            let report = &mut self.report;
            let program = (cpu, Regime::El10, asid);
            reuse::check(trees, &mut self.stale, &self.cpus, program, report);
            let asid = Some(asid);
            relied.push(Relied {
                asid,
                ..Relied::whole(lower)
            });
        }
        for relied in relied {
            let relied = Relied {
                by: Some(cpu),
                ..relied
            };
            let trees = Trees::new(&self.memory, &self.tables);
            let (config, report) = (&self.config, &mut self.report);
            stale_entries::check(trees, &mut self.stale, &self.cpus, config, relied, report);
        }
    }

    /// The ASIDs that a CPU walks the tree of its program under: a kernel that isolates its page
    /// tables has two.
    fn asids_of_program(&self, cpu: u32, space: Space) -> Vec<u16> {
        let root = |id: RootId| self.tables.root(id);
        let table = self.cpus[cpu].roots[space.index()]
            .and_then(root)
            .and_then(|root| self.tables.table(root.table));
        let roots = table.map(|table| table.roots.iter().copied());
        let asids = roots.into_iter().flatten().filter_map(root);
        asids.filter_map(|root| root.key.asid).collect()
    }
}
