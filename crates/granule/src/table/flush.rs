//! The order of barriers and TLBIs around a change of live tables.
//!
//! Every change of live tables calls one of these two functions, in this library and in other code
//! that changes live entries. Workarounds for errata of barriers and TLBIs belong here.

use super::environment::Maintenance;
use crate::arch::tlbi::{self, Invalidation, TlbCapabilities, TlbiOp};
use crate::arch::{Geometry, Regime};

/// Makes entries that became valid usable by this CPU. No TLBI is needed, because a fault is never
/// cached (IWZCBG). The DSB makes this CPU's walker see the stores, and the ISB drops what the CPU
/// speculated.
#[inline(always)]
pub fn publish(mut issue: impl FnMut(Maintenance)) {
    issue(Maintenance::DsbIshst);
    issue(Maintenance::Isb);
}

/// Removes the cached translations of a range of tables of `geometry` from every CPU, after its
/// entries changed. Where an erratum requires it, the TLBIs and their DSB are issued twice.
///
/// At stage 2 the TLBIs by intermediate physical address leave entries in which a CPU combined the
/// guest's own translation with that of stage 2. Those are removed after it, because until the TLBIs
/// are complete a CPU may combine an old entry again. The CPU must have the guest's VMID in
/// VTTBR_EL2.
#[inline(always)]
pub fn invalidate(
    what: &Invalidation,
    geometry: &Geometry,
    can: TlbCapabilities,
    issue: impl FnMut(Maintenance),
) {
    let op = tlbi::of_one_entry(what, geometry, &can, geometry.page_size());
    invalidate_by(op, what, geometry, can, issue);
}

/// As [`invalidate`]. `op` is all that is needed in the usual case, if there is one.
#[inline(always)]
pub(super) fn invalidate_by(
    op: Option<TlbiOp>,
    what: &Invalidation,
    geometry: &Geometry,
    can: TlbCapabilities,
    mut issue: impl FnMut(Maintenance),
) {
    let regime = geometry.regime();
    issue(Maintenance::DsbIshst);
    match op {
        Some(op) if !can.repeat && regime != Regime::Stage2 => issue(Maintenance::Tlbi(regime, op)),
        _ => {
            // A copy, so that the usual case keeps what it knows of `what` in registers.
            let what = *what;
            planned(&what, geometry, can, &mut issue);
        }
    }
    issue(Maintenance::DsbIsh);
    issue(Maintenance::Isb);
}

/// The TLBIs of any invalidation, with the barriers between them.
#[inline(never)]
fn planned(
    what: &Invalidation,
    geometry: &Geometry,
    can: TlbCapabilities,
    issue: &mut impl FnMut(Maintenance),
) {
    let regime = geometry.regime();
    // One operation on all of a guest removes its combined entries too.
    let mut whole = false;
    for again in [false, true] {
        if again {
            if !can.repeat {
                break;
            }
            issue(Maintenance::DsbIsh);
        }
        tlbi::plan(what, geometry, &can, |op| {
            whole |= op == TlbiOp::All;
            issue(Maintenance::Tlbi(regime, op));
        });
    }
    if regime == Regime::Stage2 && !whole {
        issue(Maintenance::DsbIsh);
        issue(Maintenance::Tlbi(Regime::El1And0, TlbiOp::All));
        if can.repeat {
            issue(Maintenance::DsbIsh);
            issue(Maintenance::Tlbi(Regime::El1And0, TlbiOp::All));
        }
    }
}

/// Removes all cached translations of a regime from every CPU, or only the non-global ones of an
/// address space. At stage 2 they are those of both stages of the VMID in VTTBR_EL2.
pub(crate) fn invalidate_all(
    regime: Regime,
    asid: Option<u16>,
    can: TlbCapabilities,
    mut issue: impl FnMut(Maintenance),
) {
    let op = TlbiOp::all_of(asid);
    issue(Maintenance::DsbIshst);
    issue(Maintenance::Tlbi(regime, op));
    issue(Maintenance::DsbIsh);
    if can.repeat {
        issue(Maintenance::Tlbi(regime, op));
        issue(Maintenance::DsbIsh);
    }
    issue(Maintenance::Isb);
}
