//! The GIC, through the `arm-gic` crate: [`v2`] and [`v3`] each drive one version. The kernel uses one
//! software-generated interrupt (SGI), and the timer's private one (PPI).

mod quiesce;
pub(super) mod v2;
pub(super) mod v3;

use super::common;
use super::registers::Registers;
use arm_gic::IntId;

/// The SGI for calls between CPUs.
pub(super) const CALL: IntId = IntId::sgi(0);

/// The SGI by which a CPU that panics stops the others.
const STOP: IntId = IntId::sgi(super::STOP);

/// Enables [`STOP`] with the group and the priority of [`CALL`], in the registers of a CPU's own interrupts.
fn allow_stop(own: Registers) {
    const GROUPS: u64 = 0x80;
    const ENABLE: u64 = 0x100;
    const PRIORITIES: u64 = 0x400;
    let (groups, priorities) = (own.read(GROUPS), own.read(PRIORITIES));
    own.write(GROUPS, groups & !2 | (groups & 1) << 1);
    own.write(PRIORITIES, priorities & !0xff00 | (priorities & 0xff) << 8);
    own.write(ENABLE, 1 << super::STOP);
}

/// The number of the first private peripheral interrupt.
const FIRST_PPI: u32 = 16;

/// The timer's private interrupt.
fn timer() -> Option<IntId> {
    Some(IntId::ppi(common::timer()?.checked_sub(FIRST_PPI)?))
}
