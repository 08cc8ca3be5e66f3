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

/// The same as an FIQ, where the kernel may have such.
const STOP_HARD: IntId = IntId::sgi(super::STOP + 1);

const GROUPS: u64 = 0x80;
const ENABLE: u64 = 0x100;
const PRIORITIES: u64 = 0x400;

/// Enables [`STOP`] with the group and the priority of [`CALL`], in the registers of a CPU's own interrupts.
fn allow_stop(own: Registers) {
    let (groups, priorities) = (own.read(GROUPS), own.read(PRIORITIES));
    own.write(GROUPS, groups & !2 | (groups & 1) << 1);
    own.write(PRIORITIES, priorities & !0xff00 | (priorities & 0xff) << 8);
    own.write(ENABLE, 1 << super::STOP);
}

/// Enables [`STOP_HARD`] in group 0, with the highest priority.
fn allow_stop_hard(own: Registers) {
    own.write(GROUPS, own.read(GROUPS) & !4);
    own.write(PRIORITIES, own.read(PRIORITIES) & !0xff_0000);
    own.write(ENABLE, 1 << (super::STOP + 1));
}

/// The number of the first private peripheral interrupt.
const FIRST_PPI: u32 = 16;

/// The timer's private interrupt.
fn timer() -> Option<IntId> {
    Some(IntId::ppi(common::timer()?.checked_sub(FIRST_PPI)?))
}
