//! Address spaces of several page sizes: an ASID is of one granule until all that TLBs hold of it is
//! invalidated.
//!
//! A TLB entry carries its granule, and a TLBI by range or with a level hint removes entries of the
//! granule that it names alone (RSQXYZ). So whoever invalidates for a space of one granule leaves
//! entries of the other.

use crate::arch::regime::Regime;
use crate::state::ids::RootId;
use crate::state::memory::Memory;
use crate::state::tables::Tables;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

const HELD: &str = "may hold entries of its ASID that have another granule";
const WALKED: &str = "uses an ASID under which another CPU walks tables of another granule";

/// Checks a tree that a CPU walks from now on, or that ceases to be empty.
pub(crate) fn check(
    tables: &mut Tables,
    memory: &Memory,
    (cpu, id): (u32, RootId),
    report: &mut Report,
) {
    let Some(root) = tables.root(id) else { return };
    let (key, bit) = (root.key, 1u64 << cpu);
    let granule = key.context.format.granule;
    // EL2, EL3 and the upper half have no ASIDs of their own, and a VMID is stage 2's.
    if key.asid.is_none() || key.context.space.regime() != Regime::El10 {
        return;
    }
    let others = tables.roots_of(key.context.space, key.asid);
    memory.visit(others.len() as u64);
    for other in others {
        let Some(one) = tables.root(other) else {
            continue;
        };
        if one.key.asid != key.asid || one.key.context.format.granule == granule {
            continue;
        }
        let text = if one.holders & bit != 0 {
            HELD
        } else if one.walking & !bit != 0 {
            WALKED
        } else {
            continue;
        };
        let left = if one.walking == 0 { one.left } else { 0 };
        // A root in which nothing is mapped serves every granule.
        if tables.is_empty(memory, id) || tables.is_empty(memory, other) {
            continue;
        }
        let range = (key.context.base(), key.last());
        report.add(Violation::at(Rule::AsidOfTwoSizes, cpu, range, text).because_of(left));
    }
}
