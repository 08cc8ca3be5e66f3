//! The possible results of an access, and accesses that rely on the tables.

use super::Model;
use crate::access::{Access, AccessKind, Outcome, Translation};
use crate::arch::descriptor;
use crate::arch::regime::Regime;
use crate::rules;
use crate::state::caches::line_mask;
use crate::state::ids::PAGE_SHIFT;
use crate::state::lookup::Lookup;
use crate::state::trees::Trees;

impl Model {
    /// All results that an access may have now. There is one result if every TLB content and every
    /// order of the events so far gives the same.
    #[must_use]
    pub fn outcomes(&self, cpu: u32, va: u64, access: Access) -> Vec<Outcome> {
        if cpu >= self.config.cpus {
            return Vec::new();
        }
        let lookup = Lookup {
            trees: Trees::new(&self.memory, &self.tables),
            stale: &self.stale,
            cpu: &self.cpus[cpu],
            bit: 1 << cpu,
            config: &self.config,
        };
        lookup.outcomes(va, access)
    }

    /// Checks an access that relies on the tables. A result other than the tables' own is a
    /// violation, and so is a read of data that caches or memory may not hold yet. A TLB conflict
    /// abort is not a violation at levels 1 and 2 of FEAT_BBM: sizes change in place there, and
    /// software that changes them handles the abort.
    pub fn access(&mut self, cpu: u32, va: u64, access: Access) -> Vec<Outcome> {
        let outcomes = self.outcomes(cpu, va, access);
        if cpu >= self.config.cpus {
            return outcomes;
        }
        let state = (cpu, &self.cpus[cpu]);
        rules::access::check(
            &self.stale,
            &self.config,
            state,
            (va, access),
            &outcomes,
            &mut self.report,
        );
        for outcome in &outcomes {
            match *outcome {
                Outcome::Memory(to) if access.kind == AccessKind::Write => {
                    self.write_data(cpu, to, access);
                }
                Outcome::Memory(to) => {
                    let report = &mut self.report;
                    let state = &mut self.cpus[cpu];
                    if access.kind == AccessKind::Fetch {
                        let page = to.address >> PAGE_SHIFT;
                        rules::cache_visibility::check_fetched(
                            (cpu, state),
                            (page, page),
                            0,
                            report,
                        );
                    }
                    let state = &*state;
                    rules::cache_visibility::check_access(
                        &self.memory,
                        (cpu, state),
                        to,
                        access,
                        report,
                    );
                }
                _ => {}
            }
        }
        outcomes
    }

    /// A store of data through a translation.
    fn write_data(&mut self, cpu: u32, translation: Translation, access: Access) {
        let number = translation.address >> PAGE_SHIFT;
        let registers = self.cpus[cpu].registers_of(access.regime);
        // A guest's own SCTLR is not known: its caches count as on.
        let on = access.regime == Regime::Stage2 || registers.data_cached();
        let cached = on && descriptor::is_cacheable_type(translation.memory);
        self.lines_stored(
            cpu,
            number,
            line_mask(number, translation.address, 1),
            cached,
        );
    }
}
