//! Quiesces the devices that this kernel turned on: in the next kernel they must not interrupt, count or
//! write memory.
//!
//! No device here writes memory: the kernel drives only the UART and the interrupt controller.

use super::hook::KEXEC;
use crate::arch::counter;
use crate::dev::console::println;
use crate::dev::intc::StillOn;
use crate::dev::{intc, timer};
use crate::percpu;

/// Quiesces this CPU, which is the last one, and the shared interrupt controller. On failure all of it
/// is restored except the instruction counter. Interrupts must be masked.
pub(super) fn devices() -> Result<(), StillOn> {
    let this = percpu::this();
    timer::off();
    counter::stop();
    let loud = KEXEC.get().and_then(|hook| (hook.loud)());
    let quiesced = intc::quiesce_cpu(this)
        .and_then(|()| intc::quiesce_rest())
        .and_then(|()| loud.map_or(Ok(()), |number| Err(StillOn::enabled(number))));
    if quiesced.is_err() {
        undo();
    }
    quiesced
}

/// Lets this CPU take interrupts again.
pub(super) fn undo() {
    if let Err(error) = intc::restore(percpu::this()) {
        println!("granule: the interrupt controller cannot be set up again: {error}");
    }
}
