//! The order of stores to a table before the table becomes reachable.
//!
//! An observer that sees the store, or register write, that makes a table reachable must also see
//! the stores to the table before it: a store-release or a barrier has to stand between.

use crate::config::{Policies, Policy};
use crate::state::cpu::Cpus;
use crate::state::ids::{PAGE_SHIFT, PER_PAGE, RootId, entries_in};
use crate::state::memory::{Memory, Pending};
use crate::state::trees::Trees;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};
use granule_trace::Visibility;
use std::collections::BTreeSet;

/// The state of the rule: what has to be checked again.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableOrdering {
    /// The kernel takes a fault on an entry that a walker does not see yet, and goes on.
    spurious_faults: bool,
    /// Pages with tables that hold stores which only the storing CPU is sure to see.
    unseen_pages: BTreeSet<u64>,
}

impl TableOrdering {
    pub(crate) fn new(policies: Policies) -> Self {
        Self {
            spurious_faults: policies.has(Policy::SpuriousFaults),
            ..Self::default()
        }
    }

    /// Checks the part of a table between two addresses of one page, which becomes reachable by a
    /// store of `cpu`, or by a register write of it (`visibility` is `None`).
    pub(crate) fn check_link(
        &mut self,
        memory: &mut Memory,
        cpus: &Cpus,
        (cpu, (from, to)): (u32, (u64, u64)),
        visibility: Option<Visibility>,
        report: &mut Report,
    ) {
        let number = from >> PAGE_SHIFT;
        let Some(page) = memory.known_mut(number) else {
            return;
        };
        let (first, count) = entries_in(number, from, to - from);
        for one in page.take_pending(first, count) {
            let Pending {
                cpu: by,
                event,
                may_only_fault,
                ..
            } = one;
            let storer = &cpus[by];
            if storer.dsb > event || (may_only_fault && self.spurious_faults) {
                continue;
            }
            let ordered = match visibility {
                // A release orders this CPU's own stores and the other CPUs' stores that it has
                // seen. Every earlier store counts as seen, since the events of a trace are in one
                // order.
                Some(Visibility::Publish) => true,
                Some(_) => by == cpu && storer.ordered > event,
                None => by == cpu && storer.own_dsb > event,
            };
            if !ordered {
                unordered(cpus.other_than(cpu), number, event, report);
            } else if visibility.is_none() {
                // Only this CPU sees the stores; another CPU may be about to walk the same tables.
                self.unseen_pages.insert(number);
                page.pending.push(one);
            }
        }
    }

    /// Checks a tree that a CPU starts to walk: the CPU may miss stores to its tables that only the
    /// storing CPU has seen so far.
    pub(crate) fn check_walker(
        &mut self,
        trees: Trees<'_>,
        cpus: &Cpus,
        (cpu, root): (u32, RootId),
        report: &mut Report,
    ) {
        for number in std::mem::take(&mut self.unseen_pages) {
            let Some(page) = trees.memory.page(number) else {
                continue;
            };
            // Stores that a DSB made visible since need no check any more.
            let unseen = |one: &Pending| cpus[one.cpu].dsb <= one.event;
            if page.tables.is_empty() || !page.pending.iter().any(unseen) {
                continue;
            }
            self.unseen_pages.insert(number);
            let walked: Vec<(usize, usize)> = page
                .tables
                .iter()
                .filter(|id| trees.paths(**id).iter().any(|path| path.root == root))
                .filter_map(|id| trees.tables.table(*id))
                .map(|table| entries_in(number, table.base, table.entries * 8))
                .collect();
            let is_walked = |one: &Pending| {
                let mut walked = walked.iter();
                walked.any(|(first, count)| one.within(*first, first + count).is_some())
            };
            let of_others = |one: &&Pending| unseen(one) && one.cpu != cpu;
            for one in page.pending.iter().filter(of_others) {
                if is_walked(one) {
                    unordered(cpu, number, one.event, report);
                }
            }
        }
    }
}

fn unordered(cpu: u32, number: u64, event: u64, report: &mut Report) {
    let start = number << PAGE_SHIFT;
    let found = Violation::in_memory(
        Rule::UnorderedLink,
        cpu,
        (start, start + (PER_PAGE as u64 * 8 - 1)),
        "may walk the table as it was before these stores",
    );
    report.add(found.because_of(event));
}
