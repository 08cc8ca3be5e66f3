//! What a CPU does with an interrupt: it answers a call, or calls whoever asked for the interrupt.

use super::ipi;
use crate::dev::{gic, timer};

/// What the timer's interrupt calls, with interrupts masked.
static TICK: spin::Once<fn()> = spin::Once::new();

/// From here on the timer's interrupt calls `tick`.
pub(crate) fn on_tick(tick: fn()) {
    TICK.call_once(|| tick);
}

/// Deals with one interrupt; its number if it is one that nobody asked for. Called by the vectors,
/// with interrupts masked.
pub(crate) fn handle() -> Result<(), u32> {
    // None: it went away between being signalled and now.
    let Some(taken) = gic::acknowledge() else {
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
    gic::end(taken);
    Ok(())
}
