//! The GIC, through the `arm-gic` crate: [`v2`] and [`v3`] each drive one version. The kernel uses one
//! software-generated interrupt (SGI), and the timer's private one (PPI).

mod quiesce;
pub(super) mod v2;
pub(super) mod v3;

use super::common;
use arm_gic::IntId;

/// The SGI for calls between CPUs.
pub(super) const CALL: IntId = IntId::sgi(0);

/// The number of the first private peripheral interrupt.
const FIRST_PPI: u32 = 16;

/// The timer's private interrupt.
fn timer() -> Option<IntId> {
    Some(IntId::ppi(common::timer()?.checked_sub(FIRST_PPI)?))
}
