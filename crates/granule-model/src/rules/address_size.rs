//! Output addresses beyond the size that TCR.IPS, or VTCR.PS, and the CPU allow.

use crate::arch::context::Context;
use crate::arch::descriptor::{self, EntryKind};
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

/// Checks an entry of a table at a level and place that a CPU stored or made reachable.
pub(crate) fn check(
    cpu: u32,
    context: &Context,
    (raw, level, location): (u64, i8, u64),
    report: &mut Report,
) {
    let output = match descriptor::kind(raw, level, context.format) {
        EntryKind::Invalid => return,
        EntryKind::Leaf => descriptor::leaf_address(raw, level, context.format),
        EntryKind::Table => descriptor::table_address(raw, context.format),
    };
    if context.is_too_large(output) {
        let bits = context.output_bits;
        let text = format!("takes an address size fault: output addresses have {bits} bits");
        let range = (location, location + 7);
        report.add(Violation::in_memory(Rule::AddressSize, cpu, range, text).located(location));
    }
}
