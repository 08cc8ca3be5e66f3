//! Handles a CPU's interrupts: answers a call from another CPU, or calls the interrupt's handler.

use super::ipi;
use crate::arch::cpu;
use crate::dev::{intc, timer};

/// The handler of the timer's interrupt, called with interrupts masked.
static TICK: spin::Once<fn()> = spin::Once::new();

/// Installs `tick` as the handler of the timer's interrupt.
pub(crate) fn on_tick(tick: fn()) {
    TICK.call_once(|| tick);
}

/// Handles one interrupt. An interrupt without a handler is an error, with its number. Called by
/// the vectors, with interrupts masked.
pub(crate) fn handle() -> Result<(), u32> {
    cpu::unmask_fiqs();
    // `None`: the interrupt went away after it was signalled.
    let Some(taken) = intc::acknowledge() else {
        return Ok(());
    };
    if taken.is_call() {
        ipi::answer();
    } else if timer::interrupt() == Some(taken.number())
        && let Some(tick) = TICK.get()
    {
        tick();
    } else {
        return Err(taken.number());
    }
    intc::end(taken);
    Ok(())
}
