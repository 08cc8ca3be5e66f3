//! The kernel's lock: [`granule_kcore::lock`] on the CPU that this code runs on.

use crate::smp::percpu;
use crate::{cpu, ipi};
use granule_kcore::lock::Cpu;

/// A value for one CPU at a time.
pub(crate) type Lock<T> = granule_kcore::lock::Lock<T, ThisCpu>;

/// The CPU that this code runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThisCpu;

/// DAIF.I.
const IRQ: u64 = 1 << 7;
/// Holders take microseconds; this is for a machine that is emulated and starved.
const PATIENCE_S: u64 = 10;

impl Cpu for ThisCpu {
    fn number() -> usize {
        percpu::this().number()
    }
    fn mask() -> u64 {
        cpu::mask_interrupts()
    }
    fn restore(before: u64) {
        cpu::restore_interrupts(before);
    }
    fn were_let_in(before: u64) -> bool {
        before & IRQ == 0
    }
    fn wait(let_in: bool) {
        if let_in {
            // Sooner than the interrupt, which comes too.
            ipi::answer();
        }
        cpu::relax();
    }
    fn now() -> u64 {
        cpu::counter_now()
    }
    fn is_too_long_ago(time: u64) -> bool {
        cpu::counter_now().wrapping_sub(time) > PATIENCE_S * cpu::cntfrq_el0()
    }
}
