//! The physical timer of each CPU, which ends time slices and wakes sleeping tasks.
//!
//! The register names are CNTP's. At EL2 with E2H they access the EL2 physical timer, which has
//! another interrupt (the device tree names both, see `granule_kcore::devicetree::intc::timer`).

#![allow(unsafe_code, reason = "the timer's registers")]

use crate::arch::cpu;
use crate::dev::driver::Driver;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};
use granule_boot::driver::Requirement;

pub(crate) static DRIVER: Driver = Driver::new("arm-timer", Requirement::Any);

/// The interrupt's number, or 0 for none.
static INTERRUPT: AtomicU32 = AtomicU32::new(0);

/// Time slices a second.
const TIME_SLICES: u64 = 100;

/// CNTP_CTL.ENABLE.
const ENABLE: u64 = 1;

/// Sets the interrupt's number, when the interrupt controller is set up for each CPU.
pub(crate) fn use_interrupt(number: u32) {
    INTERRUPT.store(number, Ordering::Relaxed);
}

/// The interrupt's number, if the timer has one.
pub(crate) fn interrupt() -> Option<u32> {
    match INTERRUPT.load(Ordering::Relaxed) {
        0 => None,
        number => Some(number),
    }
}

/// Length of a time slice in ticks of the counter.
fn time_slice() -> u64 {
    (cpu::cntfrq_el0() / TIME_SLICES).max(1)
}

/// Programs this CPU's timer to interrupt at the end of a time slice.
pub(crate) fn begin_time_slice() {
    set(Some(now().saturating_add(time_slice())));
}

/// Programs this CPU's timer to interrupt at `time`, or disables it.
pub(crate) fn set(time: Option<u64>) {
    if interrupt().is_none() {
        return;
    }
    match time {
        // SAFETY: only this module uses this CPU's timer, and the interrupt is enabled.
        Some(time) => unsafe {
            asm!("msr cntp_cval_el0, {}", "msr cntp_ctl_el0, {}", "isb",
                in(reg) time, in(reg) ENABLE, options(nostack, preserves_flags));
        },
        None => off(),
    }
}

/// Disables this CPU's timer interrupt, which firmware may have left on. Also used after each
/// interrupt, because it stays pending as long as its condition holds.
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

/// The counter that the timer compares with.
pub(crate) fn now() -> u64 {
    let now: u64;
    // SAFETY: reads a counter, in order with earlier instructions.
    unsafe {
        asm!("isb", "mrs {}, cntpct_el0", out(reg) now, options(nostack, preserves_flags));
    }
    now
}
