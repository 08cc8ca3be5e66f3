//! The evidence in a violation about a stale entry: the event that replaced the entry, and the
//! invalidation that was meant to remove it.

use crate::arch::regime::Regime;
use crate::state::cpu::Cpus;
use crate::state::invalidation::{Removes, must_remove};
use crate::state::stale_range::StaleRange;
use crate::state::trees::Trees;
use crate::violation::report::Report;
use crate::violation::{Miss, Rule, Violation};

/// A violation that concerns a stale range.
pub(super) fn of_stale(rule: Rule, stale: &StaleRange, text: impl Into<String>) -> Violation {
    let cpu = stale.cpus.trailing_zeros();
    Violation {
        earlier: Some(stale.event),
        missed: stale.missed,
        location: Some(stale.location),
        ..Violation::at(rule, cpu, (stale.va, stale.last()), text)
    }
}

/// Reports a violation that concerns a stale range, with the last invalidation of it that no DSB
/// has completed, if there is one, or one that may have removed it.
pub(super) fn report(
    trees: Trees<'_>,
    cpus: &Cpus,
    mut found: Violation,
    stale: &StaleRange,
    report: &mut Report,
) {
    // A violation that is only counted needs no evidence.
    let incomplete = if report.is_full() {
        None
    } else {
        incomplete(trees, cpus, stale)
    };
    let incomplete = incomplete.map(|(event, miss)| stale.missed_or(event, miss));
    found.missed = incomplete.or(stale.missed);
    let regime = trees.tables.context(stale.context).space.regime();
    found.is_intermediate = regime == Regime::Stage2;
    report.add(found);
}

/// The last invalidation that has to remove a stale range and that no DSB has completed.
fn incomplete(trees: Trees<'_>, cpus: &Cpus, stale: &StaleRange) -> Option<(u64, Miss)> {
    let waiting = || cpus.iter().flat_map(|(_, cpu)| cpu.tlbis.iter());
    trees.memory.visit(waiting().count() as u64);
    let context = trees.tables.context(stale.context);
    waiting()
        .filter(|pending| {
            let Some(removes) = pending.removes_of(context.space.regime()) else {
                return false;
            };
            let meets = match removes {
                Removes::Addresses { first, last, .. } => stale.touched(first, last).is_some(),
                _ => true,
            };
            pending.event > stale.event && meets && must_remove(removes, stale, context).is_ok()
        })
        .map(|pending| (pending.event, Miss::NotComplete))
        .max_by_key(|(event, _)| *event)
}
