//! The order of barriers and TLBIs around a change of live tables.
//!
//! Every change of live tables calls one of these two functions, in this library and in other code that
//! changes live entries. Workarounds for errata of barriers and TLBIs belong here.

use super::maintenance::Maintenance;
use crate::arch::tlbi::{self, Invalidation};

/// Makes entries that became valid usable by this CPU. No TLBI is needed, because a fault is never
/// cached (IWZCBG). The DSB makes this CPU's walker see the stores, and the ISB drops what the CPU
/// speculated.
pub fn publish(maintenance: &mut impl Maintenance) {
    maintenance.dsb_ishst();
    maintenance.isb();
}

/// Removes the cached translations of a range from every CPU, after its entries changed. Where an
/// erratum requires it, the TLBIs and their DSB are issued twice.
pub fn invalidate(maintenance: &mut impl Maintenance, what: &Invalidation) {
    let can = *maintenance.capabilities();
    maintenance.dsb_ishst();
    tlbi::plan(what, &can, |op| maintenance.tlbi(op));
    if can.repeat {
        maintenance.dsb_ish();
        tlbi::plan(what, &can, |op| maintenance.tlbi(op));
    }
    maintenance.dsb_ish();
    maintenance.isb();
}
