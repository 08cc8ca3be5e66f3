//! Operands of TLBIs by range that make the instruction UNPREDICTABLE.

use crate::state::invalidation::Removes;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};
use granule_trace::System;

/// Checks the operand of a TLBI, decoded as `removes`.
pub(crate) fn check(
    cpu: u32,
    (system, operand): (System, u64),
    removes: Removes,
    report: &mut Report,
) {
    if let Removes::Unpredictable(why) = removes {
        let name = system.name().unwrap_or("a TLBI");
        let text = format!("executes {name} {operand:#x}, which is UNPREDICTABLE: {why}");
        report.add(Violation::at(Rule::RangeOperand, cpu, (0, u64::MAX), text));
    }
}
