//! The physical timer of each CPU, which ends turns and wakes sleepers.
//!
//! CNTP's names: at EL2 with E2H they reach the EL2 physical timer, whose interrupt is another one
//! (the device tree names both, see `granule_kcore::devicetree::gic::timer`).

use crate::arch::cpu;
use crate::dev::driver::Driver;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};
use granule_boot::driver::Requirement;

pub(crate) static DRIVER: Driver = Driver::new("arm-timer", Requirement::Any);

/// The interrupt's number; 0 while there is none.
static INTERRUPT: AtomicU32 = AtomicU32::new(0);

/// Turns in a second.
const TURNS: u64 = 100;

/// CNTP_CTL.ENABLE.
const ENABLE: u64 = 1;

/// The interrupt is this one, from when the interrupt controller is set up for each CPU.
pub(crate) fn use_interrupt(number: u32) {
    INTERRUPT.store(number, Ordering::Relaxed);
}

/// The interrupt's number, if there is one.
pub(crate) fn interrupt() -> Option<u32> {
    match INTERRUPT.load(Ordering::Relaxed) {
        0 => None,
        number => Some(number),
    }
}

/// Ticks of the counter that a turn has.
fn turn() -> u64 {
    (cpu::cntfrq_el0() / TURNS).max(1)
}

/// Asks for an interrupt on this CPU when a turn is over.
pub(crate) fn begin_turn() {
    set(Some(now().saturating_add(turn())));
}

/// Asks for an interrupt on this CPU at `time`, or for none.
pub(crate) fn set(time: Option<u64>) {
    if interrupt().is_none() {
        return;
    }
    match time {
        // SAFETY: this CPU's timer, which nobody else uses; its interrupt is enabled.
        Some(time) => unsafe {
            asm!("msr cntp_cval_el0, {}", "msr cntp_ctl_el0, {}", "isb",
                in(reg) time, in(reg) ENABLE, options(nostack, preserves_flags));
        },
        None => off(),
    }
}

/// No interrupt from this CPU's timer: what firmware left on, and once it has come (it stays
/// pending for as long as its condition holds).
pub(crate) fn off() {
    // SAFETY: as above.
    unsafe {
        asm!(
            "msr cntp_ctl_el0, xzr",
            "isb",
            options(nostack, preserves_flags)
        );
    }
}

/// The time that the timer compares with.
pub(crate) fn now() -> u64 {
    let now: u64;
    // SAFETY: reads a counter; in order with what came before.
    unsafe {
        asm!("isb", "mrs {}, cntpct_el0", out(reg) now, options(nostack, preserves_flags));
    }
    now
}
