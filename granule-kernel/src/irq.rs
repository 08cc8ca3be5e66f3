//! What a CPU does with an interrupt.

use crate::smp::percpu;
use crate::user::{sched, timer};
use crate::{gic, ipi};
use core::sync::atomic::Ordering;

/// Deals with one interrupt; false if it is one that nobody asked for. Called by the vectors, with
/// interrupts masked.
pub(crate) fn handle() -> Result<(), u32> {
    // None: it went away between being signalled and now.
    let Some(taken) = gic::acknowledge() else {
        return Ok(());
    };
    percpu::this().interrupts.fetch_add(1, Ordering::Relaxed);
    if taken.is_call() {
        ipi::answer();
    } else if timer::interrupt() == Some(taken.number()) {
        sched::tick();
    } else {
        return Err(taken.number());
    }
    gic::end(taken);
    Ok(())
}
