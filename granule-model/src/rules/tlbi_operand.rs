//! Operands of TLBIs by range that make the instruction UNPREDICTABLE.

use crate::event::tlbi::Tlbi;
use crate::state::invalidation::Removes;
use crate::violation::Rule;
use crate::violation::report::{Found, Report};

/// A CPU issues a TLBI, whose operand asks for `removes`.
pub(crate) fn check(cpu: u32, op: Tlbi, removes: Removes, report: &mut Report) {
    if let Removes::Unpredictable(why) = removes {
        let text = format!("executes {op}, which is UNPREDICTABLE: {why}");
        report.add(Found::at(Rule::RangeOperand, cpu, (0, u64::MAX), text));
    }
}
