//! The rule that an access which relies on the tables has the result that the tables give.

use super::registers;
use crate::access::{Access, Outcome};
use crate::arch::context::Space;
use crate::config::{Config, Policy};
use crate::state::cpu::Cpu;
use crate::state::stale_tlb::StaleTlb;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

/// Checks the possible results of an access. A TLB conflict abort is not a violation at levels 1 and 2
/// of FEAT_BBM: sizes change in place there, and software that changes them handles the abort.
pub(crate) fn check(
    stale: &StaleTlb,
    config: &Config,
    (cpu, state): (u32, &Cpu),
    (va, access): (u64, Access),
    outcomes: &[Outcome],
    report: &mut Report,
) {
    if !registers::check_in_effect((cpu, state), (va, va), report) {
        return;
    }
    let handled = |one: &Outcome| *one == Outcome::Conflict && matches!(config.bbm_level, 1 | 2);
    if outcomes.iter().filter(|one| !handled(one)).count() <= 1 {
        return;
    }
    let space = Space::of(access.regime, va);
    let mut earlier = None;
    stale.visit(space, va, va, |range| {
        if range.cpus & (1 << cpu) != 0 {
            earlier = earlier.max(Some(range.event));
        }
    });
    let faults = |one: &Outcome| matches!(one, Outcome::Fault(_));
    if earlier.is_none()
        && config.policies.has(Policy::SpuriousFaults)
        && outcomes.iter().filter(|one| !faults(one)).count() == 1
    {
        return;
    }
    let (rule, text) = if earlier.is_some() {
        (
            Rule::StaleTranslation,
            "may use a translation that the tables no longer give",
        )
    } else {
        (
            Rule::MissingIsb,
            "may not see the tables as they are (no DSB, no ISB)",
        )
    };
    let found = Violation::at(rule, cpu, (va, va), text);
    report.add(found.because_of(earlier.unwrap_or(0)));
}
