//! Where what may be cached meets what the tables say: the checks of break-before-make.

use crate::model::{Found, Model};
use crate::rules::change::{self, Allowance, Judgement};
use crate::state::stale_range::Run;
use crate::state::stale_tlb::Fate;
use crate::state::tables::Path;
use crate::state::walk;
use crate::violation::Rule;

impl Model {
    pub(crate) const fn allowance(&self) -> Allowance {
        Allowance {
            bbm_level: self.config.bbm_level,
            equal_contents: self.config.equal_contents,
            strict: self.config.strict,
        }
    }

    /// Compares the entries of a table (and those below it) that translate something from
    /// `first` to `last` with the stale ones that one of `cpus` may hold for these addresses.
    /// Stale ones that are now as the tables say are no longer stale.
    pub(crate) fn meet(&mut self, path: &Path, first: u64, last: u64, cpus: u64) {
        let Some(root) = self.tables.root(path.root) else {
            return;
        };
        let context = root.key.context;
        let asid = root.key.asid;
        let allowance = self.allowance();
        let (now, memory, contexts) = (self.now, &self.memory, &self.contexts);
        let mut found: Vec<(Found, Run)> = Vec::new();
        self.stale.rewrite(context.space, first, last, |run| {
            if !memory.visit(1) || run.cpus & cpus == 0 {
                return Fate::Keep;
            }
            let run_context = &contexts[run.context as usize];
            let together = run.event == now;
            let mut parts: Vec<Run> = Vec::new();
            let mut changed = run.harmless;
            for index in 0..run.count {
                let entry_first = run.entry_va(index).max(first);
                let entry_last = (run.entry_va(index) + (run.entry_bytes() - 1)).min(last);
                let mut broken: Option<(Rule, &str, u64)> = None;
                let mut same = false;
                walk::entries(
                    memory,
                    &context,
                    &path.at,
                    entry_first,
                    entry_last,
                    &mut |entry| {
                        // A global leaf meets entries of every ASID, others those of their own.
                        let meets = run.matches(asid)
                            || (entry.kind == crate::arch::descriptor::Kind::Leaf
                                && entry.raw & crate::arch::descriptor::NOT_GLOBAL == 0);
                        if !meets {
                            return;
                        }
                        match change::judge(
                            run,
                            index,
                            run_context,
                            entry,
                            &context,
                            together,
                            allowance,
                        ) {
                            Judgement::Same => same |= run.matches(asid),
                            Judgement::Allowed => {}
                            Judgement::Broken(rule, text) => {
                                broken.get_or_insert((rule, text, entry.location));
                            }
                        }
                    },
                );
                let keep = |run: &Run| Run {
                    harmless: false,
                    ..run.part(index, 1)
                };
                if let Some((rule, text, location)) = broken {
                    let mut part = keep(run);
                    part.cpus &= cpus;
                    if !run.reported {
                        found.push((
                            Found::of_run(rule, &part, text).located(location),
                            part.clone(),
                        ));
                    }
                    part.cpus = run.cpus;
                    part.reported = true;
                    changed |= !run.reported;
                    push_part(&mut parts, part);
                } else if same {
                    if allowance.strict && run.removed && !run.reported {
                        let part = keep(run);
                        let text = "may use the entry from before, which was never invalidated";
                        found.push((Found::of_run(Rule::Revalidated, &part, text), part));
                    }
                    changed = true;
                    if run.cpus & !cpus != 0 {
                        let mut part = keep(run);
                        part.cpus &= !cpus;
                        push_part(&mut parts, part);
                    }
                } else {
                    push_part(&mut parts, keep(run));
                }
            }
            if !changed {
                Fate::Keep
            } else if parts.is_empty() {
                Fate::Remove
            } else {
                Fate::Replace(parts)
            }
        });
        for (one, run) in found {
            self.report_of_run(one, &run);
        }
    }
}

/// Adds an entry to the last part if it continues it.
fn push_part(parts: &mut Vec<Run>, part: Run) {
    if let Some(last) = parts.last_mut()
        && last.va.wrapping_add(last.count << last.shift) == part.va
        && last.cpus == part.cpus
        && last.reported == part.reported
    {
        last.count += 1;
        return;
    }
    parts.push(part);
}
