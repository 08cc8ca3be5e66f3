//! Break-before-make (RWHZWS): compares the entries that TLBs may still hold with the entries of
//! the tables now.
//!
//! [`change`](super::change) decides which pairs of entries may coexist.

use super::change::{Comparison, compare};
use super::evidence;
use crate::arch::descriptor::{self, EntryKind};
use crate::config::Config;
use crate::state::cpu::Cpus;
use crate::state::stale_range::StaleRange;
use crate::state::stale_tlb::{Fate, StaleTlb};
use crate::state::tables::Path;
use crate::state::trees::Trees;
use crate::state::walk;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

/// Entries of a table, and everything below them, that were just made.
#[derive(Clone, Copy)]
pub(crate) struct Made<'a> {
    /// The path to the table.
    pub(crate) path: &'a Path,
    /// The addresses that the entries translate, first and last.
    pub(crate) range: (u64, u64),
    /// The CPUs whose walkers may find the entries.
    pub(crate) cpus: u64,
}

/// Compares entries with the stale ones that a CPU may hold for the same addresses. A stale entry
/// that equals the entry of the tables is no longer stale.
pub(crate) fn check(
    trees: Trees<'_>,
    stale: &mut StaleTlb,
    cpus: &Cpus,
    config: &Config,
    made: Made<'_>,
    report: &mut Report,
) {
    let Some(root) = trees.tables.root(made.path.root) else {
        return;
    };
    let (first, last) = made.range;
    let context = root.key.context;
    let asid = root.key.asid;
    let has_global = !root.globals.is_empty();
    let now = report.now();
    let mut found: Vec<(Violation, StaleRange)> = Vec::new();
    stale.rewrite(context.space, first, last, |old| {
        let meets = has_global || old.matches(asid);
        if !trees.memory.visit(1) || old.cpus & made.cpus == 0 || !meets {
            return Fate::Keep;
        }
        let old_context = trees.tables.context(old.context);
        let together = old.event == now;
        let mut parts: Vec<StaleRange> = Vec::new();
        let mut changed = old.harmless;
        for index in 0..old.count {
            let entry_first = old.entry_va(index).max(first);
            let entry_last = (old.entry_va(index) + (old.entry_bytes() - 1)).min(last);
            let mut broken: Option<(Rule, &str, u64)> = None;
            let mut same = false;
            walk::entries(
                trees.memory,
                &context,
                &made.path.at,
                entry_first,
                entry_last,
                &mut |entry| {
                    // A global leaf conflicts with entries of every ASID, others with those of
                    // their own.
                    let meets = old.matches(asid)
                        || (entry.kind == EntryKind::Leaf
                            && descriptor::is_global(entry.raw, &context));
                    if !meets {
                        return;
                    }
                    match compare(
                        (old, index, old_context),
                        (entry, &context),
                        together,
                        config,
                    ) {
                        Comparison::Same => same |= old.matches(asid),
                        Comparison::Allowed => {}
                        Comparison::Broken(rule, text) => {
                            broken.get_or_insert((rule, text, entry.location));
                        }
                    }
                },
            );
            let keep = |old: &StaleRange| StaleRange {
                harmless: false,
                ..old.part(index, 1)
            };
            if let Some((rule, text, location)) = broken {
                let mut part = keep(old);
                part.cpus &= made.cpus;
                if !old.reported {
                    found.push((
                        evidence::of_stale(rule, &part, text).located(location),
                        part.clone(),
                    ));
                }
                part.cpus = old.cpus;
                part.reported = true;
                changed |= !old.reported;
                push_part(&mut parts, part);
            } else if same {
                if config.strict && old.removed && !old.reported {
                    let part = keep(old);
                    let text = "may use the entry from before, which was never invalidated";
                    found.push((evidence::of_stale(Rule::Revalidated, &part, text), part));
                }
                changed = true;
                if old.cpus & !made.cpus != 0 {
                    let mut part = keep(old);
                    part.cpus &= !made.cpus;
                    push_part(&mut parts, part);
                }
            } else {
                push_part(&mut parts, keep(old));
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
    for (one, old) in found {
        evidence::report(trees, cpus, one, &old, report);
    }
}

/// Adds an entry to the last part if it continues it.
fn push_part(parts: &mut Vec<StaleRange>, part: StaleRange) {
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
