//! The kernel's locks: [`granule_kcore::lock`] bound to the running CPU.

use crate::arch::cpu;
use crate::percpu;
use granule_kcore::lock::{AnswersCalls, Cpu, Masked, Unmasked};

/// A value for one CPU at a time, also used in interrupts; see [`AnswersCalls`].
pub(crate) type Lock<T> = granule_kcore::lock::Lock<T, ThisCpu, AnswersCalls>;

/// A value for one CPU at a time, held for long, never used in interrupts; see [`Unmasked`].
pub(crate) type UnmaskedLock<T> = granule_kcore::lock::Lock<T, ThisCpu, Unmasked>;

/// A lock that is held for a few instructions; see [`Masked`].
pub(crate) type MaskedLock<T> = granule_kcore::lock::Lock<T, ThisCpu, Masked>;

/// [`MaskedLock`] without a value.
pub(crate) type RawMaskedLock = granule_kcore::lock::RawLock<ThisCpu, Masked>;

/// [`UnmaskedLock`] without a value.
pub(crate) type RawUnmaskedLock = granule_kcore::lock::RawLock<ThisCpu, Unmasked>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ThisCpu;

/// The function by which a waiting CPU answers calls. No CPU calls before it is set.
static ANSWER: spin::Once<fn()> = spin::Once::new();

pub(crate) fn answer_calls_by(answer: fn()) {
    ANSWER.call_once(|| answer);
}

/// DAIF.I.
const IRQ: u64 = 1 << 7;

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
    fn interrupts() -> u64 {
        cpu::interrupts()
    }
    fn are_let_in(state: u64) -> bool {
        state & IRQ == 0
    }
    fn answer_calls() {
        if let Some(answer) = ANSWER.get() {
            answer();
        }
    }
    fn relax() {
        cpu::relax();
    }
    fn now() -> u64 {
        cpu::counter_now()
    }
    fn frequency() -> u64 {
        cpu::cntfrq_el0()
    }
}
