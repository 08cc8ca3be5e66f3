//! Silences what this kernel turned on: in the next kernel it must not interrupt, count or write memory.
//!
//! No device here writes memory: the kernel drives only the UART and the interrupt controller.

use super::hook::{KEXEC, KexecHook};
use crate::arch::counter;
use crate::dev::console::println;
use crate::dev::gic;
use crate::dev::gic::quiet::StillOn;
use crate::dev::timer;
use crate::percpu;

/// Silences this CPU, which is the last one, and the shared interrupt controller. On failure all of it
/// is restored except the instruction counter. Interrupts must be masked.
pub(super) fn devices() -> Result<(), StillOn> {
    let this = percpu::this();
    timer::off();
    counter::stop();
    let loud = KEXEC.get().and_then(KexecHook::loud);
    let quiet = gic::quiet_cpu(this)
        .and_then(|()| gic::quiet_rest())
        .and_then(|()| loud.map_or(Ok(()), |number| Err(StillOn::enabled(number))));
    if quiet.is_err() {
        undo();
    }
    quiet
}

/// Lets this CPU take interrupts again.
pub(super) fn undo() {
    if let Err(error) = gic::restore(percpu::this()) {
        println!("granule: the interrupt controller cannot be set up again: {error}");
    }
}
