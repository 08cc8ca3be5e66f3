//! The order of barriers and TLBIs around a change of live tables.
//!
//! Every change of live tables calls one of these two functions, in this library and in other code
//! that changes live entries. Workarounds for errata of barriers and TLBIs belong here.

use super::tlb_ops::TlbOps;
use crate::arch::Geometry;
use crate::arch::tlbi::{self, Invalidation};

/// Makes entries that became valid usable by this CPU. No TLBI is needed, because a fault is never
/// cached (IWZCBG). The DSB makes this CPU's walker see the stores, and the ISB drops what the CPU
/// speculated.
pub fn publish(tlb: &mut impl TlbOps) {
    tlb.dsb_ishst();
    tlb.isb();
}

/// Removes the cached translations of a range of tables of `geometry` from every CPU, after its
/// entries changed. Where an erratum requires it, the TLBIs and their DSB are issued twice.
pub fn invalidate(tlb: &mut impl TlbOps, geometry: &Geometry, what: &Invalidation) {
    let can = *tlb.capabilities();
    let regime = geometry.regime();
    tlb.dsb_ishst();
    tlbi::plan(what, geometry, &can, |op| tlb.tlbi(regime, op));
    if can.repeat {
        tlb.dsb_ish();
        tlbi::plan(what, geometry, &can, |op| tlb.tlbi(regime, op));
    }
    tlb.dsb_ish();
    tlb.isb();
}
