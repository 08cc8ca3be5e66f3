//! What must be still when the next kernel begins: nothing that this kernel has turned on may
//! interrupt it, count for it, or write to its memory.
//!
//! No device writes to memory here: the UART and the interrupt controller are all that is driven.

use super::hook::{KEXEC, KexecHook};
use crate::arch::counter;
use crate::dev::console::println;
use crate::dev::gic;
use crate::dev::gic::quiet::StillOn;
use crate::dev::timer;
use crate::percpu;

/// Makes this CPU, which is the last one, and what all share quiet; all but the counting of instructions is
/// as it was if something of it is not. Interrupts must be masked.
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

/// This CPU takes interrupts again.
pub(super) fn undo() {
    if let Err(error) = gic::restore(percpu::this()) {
        println!("granule: the interrupt controller cannot be set up again: {error}");
    }
}
