//! Stores to tables must be visible when they are relied on: to the walkers of all CPUs after a
//! DSB, and to the CPU that relies on them after its ISB, which discards what it speculated.

use super::no_translation;
use crate::arch::context::Space;
use crate::config::{Config, Policy};
use crate::state::cpu::Cpus;
use crate::state::leaf::LeafView;
use crate::state::relied::Relied;
use crate::state::trees::Trees;
use crate::state::walk::{self, TableAt, Walked};
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

const NO_DSB: &str = "may walk the tables as they were before the store (no DSB)";
const NO_ISB: &str =
    "may fault on an entry that it made valid: what it speculated was not discarded";

/// Checks, when all tables are relied on, that no CPU has stored without a DSB since. A store is
/// reported once.
pub(crate) fn check_stored(trees: Trees<'_>, cpus: &mut Cpus, by: u32, report: &mut Report) {
    let (stored, location) = cpus[by].stored;
    if stored > cpus[by].dsb {
        let range = trees.translated_by(location);
        let found = Violation::at(Rule::StoreNotVisible, cpus.other_than(by), range, NO_DSB);
        report.add(found.because_of(stored).located(location));
        cpus[by].stored.0 = 0;
    }
}

/// Checks, when a CPU relies on all tables, that it has executed an ISB since it made an entry
/// valid. A store is reported once.
pub(crate) fn check_made_valid(
    trees: Trees<'_>,
    cpus: &mut Cpus,
    config: &Config,
    cpu: u32,
    report: &mut Report,
) {
    let (made, location) = cpus[cpu].made_valid;
    if made > cpus[cpu].synchronised[cpu as usize] && !config.policies.has(Policy::SpuriousFaults) {
        let range = trees.translated_by(location);
        let found = Violation::at(Rule::MissingIsb, cpu, range, NO_ISB);
        report.add(found.because_of(made).located(location));
        cpus[cpu].made_valid.0 = 0;
    }
}

/// Checks an instruction of a kernel, a hypervisor or firmware that a CPU executes: it is fetched by entries that
/// the CPU made valid before its last DSB and ISB. Entries that others made valid are not looked at: a recording leaves out
/// an ISB that follows nothing of its own CPU. No policy allows it: the handler of a fault on a fetch gives up. What
/// the CPU made valid is reported once.
pub(crate) fn check_executed(
    trees: Trees<'_>,
    cpus: &mut Cpus,
    (cpu, space, va): (u32, Space, u64),
    report: &mut Report,
) {
    let state = &cpus[cpu];
    let (seen, dsb) = (state.synchronised[cpu as usize], state.own_dsb);
    let Some(root) = trees.root(state.roots[space.index()]) else {
        return;
    };
    let key = &root.key;
    if state.made_valid.0 <= seen || va < key.context.base() || va > key.last() {
        return;
    }
    trees.memory.visit(1);
    let mut newest: Option<(u64, u64)> = None;
    let context = &key.context;
    let walked = walk::walk(trees.memory, context, TableAt::top(key), va, |entry| {
        let (event, by) = trees.memory.fresh(entry.location);
        if by == cpu && event > seen {
            newest = newest.max(Some((event, entry.location)));
        }
    });
    let (Walked::Leaf(leaf), Some((event, location))) = (walked, newest) else {
        return;
    };
    let attributes = LeafView::of_entry(&leaf, context).attributes;
    if attributes.privileged.execute {
        let (rule, text) = if event > dsb {
            (Rule::StoreNotVisible, NO_DSB)
        } else {
            (Rule::MissingIsb, NO_ISB)
        };
        let found = Violation::at(rule, cpu, (va, va | 3), text);
        report.add(found.because_of(event).located(location));
        cpus[cpu].made_valid.0 = 0;
    }
}

/// Checks a range that a CPU relies on: the entries that translate it, in any tree, must be visible
/// to all CPUs, in effect for the CPU itself, and none that a lookup may fault on.
pub(crate) fn check_range(
    trees: Trees<'_>,
    cpus: &Cpus,
    config: &Config,
    cpu: u32,
    relied: Relied,
    report: &mut Report,
) {
    let takes_faults = config.policies.has(Policy::SpuriousFaults);
    let (first, last) = (relied.first, relied.last);
    for (index, state) in cpus.iter() {
        let root = trees.root(state.roots[relied.space.index()]);
        let Some(root) = root.filter(|root| relied.concerns(root)) else {
            continue;
        };
        let key = root.key;
        trees.entries(&key, (first, last), |entry| {
            let (event, by) = trees.memory.fresh(entry.location);
            let range = (entry.va, entry.last());
            if takes_faults {
                // The handler finds the entry.
            } else if event > cpus[by].dsb {
                let found = Violation::at(Rule::StoreNotVisible, index, range, NO_DSB);
                report.add(found.because_of(event).located(entry.location));
            } else if relied.asid.is_none()
                && index == cpu
                && event > state.synchronised[by as usize]
            {
                let text = "may fault on a new entry: what it speculated was not discarded";
                let found = Violation::at(Rule::MissingIsb, cpu, range, text);
                report.add(found.because_of(event).located(entry.location));
            }
            no_translation::check_entry(index, entry, &key.context, event, report);
        });
    }
}
