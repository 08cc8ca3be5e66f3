//! The request of a CPU that panics to all others: stop, and leave your registers for the core of this kernel.
//!
//! A CPU with interrupts masked does not see the interrupt by which it is asked, so where it may wait for long it looks
//! here. It stops by an exception, whose frame has its registers.

#![allow(unsafe_code, reason = "an exception on purpose")]

use crate::arch::cpu;
use crate::percpu;
use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The immediate of the BRK by which a CPU stops: `gl`.
pub(crate) const BRK: u64 = 0x676c;

/// The number of the CPU that asks, plus 1; 0 if none does.
static ASKED_BY: AtomicUsize = AtomicUsize::new(0);

/// Asks all other CPUs, in this CPU's name.
pub(crate) fn ask() {
    ASKED_BY.store(percpu::this().number() + 1, Ordering::Release);
}

/// Whether another CPU asks.
pub(crate) fn is_asked() -> bool {
    let by = ASKED_BY.load(Ordering::Relaxed);
    by != 0 && by != percpu::this().number() + 1
}

/// Stops this CPU if another one asks for it.
pub(crate) fn poll() {
    if is_asked() {
        // SAFETY: the handler of this exception does not return.
        unsafe { asm!("brk #{number}", number = const BRK, options(nomem, nostack)) };
    }
}

/// Does nothing more on this CPU, which another one may ask to stop.
pub(crate) fn wait() -> ! {
    loop {
        poll();
        cpu::relax();
    }
}
