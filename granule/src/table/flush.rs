//! The order of barriers and TLBIs round a change of live tables.
//!
//! Whatever needs them calls one of these two, in this library and in code that changes live
//! entries beside it: here is where an erratum that touches them is worked round.

use super::maintenance::Maintenance;
use crate::arch::tlbi::{self, Invalidation};

/// Makes entries that were invalid and now are not usable by this CPU: no TLBI (IWZCBG: a fault
/// is never cached), but its walker must see the stores, and it must drop what it speculated.
pub fn publish(maintenance: &mut impl Maintenance) {
    maintenance.dsb_ishst();
    maintenance.isb();
}

/// Removes the cached translations of a range from every CPU, after the entries were changed.
/// Where an erratum asks for it, every TLBI and its DSB are issued twice.
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
