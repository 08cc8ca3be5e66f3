//! Calls between CPUs: runs a function on other CPUs, in their interrupt handler, while the caller
//! waits.
//!
//! Each CPU has an inbox for one call. The caller puts its call, which lies on its own stack, into
//! the inboxes, sends the interrupt, and waits until each CPU has cleared its bit. A waiting CPU
//! answers calls to itself, so two CPUs may call each other.
//!
//! A called function must not take a lock that a caller may hold, must not call other CPUs, and
//! should be short. It runs with interrupts masked.

#![allow(unsafe_code, reason = "calls on their callers' stacks")]

use crate::arch::cpu;
use crate::dev::intc;
use crate::percpu::{self, PerCpu, per_cpu, stop};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use granule_kcore::cpus::set::{AtomicCpuSet, CpuSet};

/// Seconds that a CPU may take to answer, of the caller's own time. Answers take microseconds.
const PATIENCE_S: u64 = 10;

/// A function to run, and the set of CPUs that have not run it yet.
pub(crate) struct Call<'a> {
    work: &'a (dyn Fn(&'static PerCpu) + Sync),
    left: AtomicCpuSet,
}

per_cpu! {
    /// The call that the CPU is to answer.
    static INBOX: AtomicPtr<Call<'static>> = AtomicPtr::new(core::ptr::null_mut());
}

per_cpu! {
    /// The number of calls that the CPU has answered.
    static ANSWERED: AtomicU64 = AtomicU64::new(0);
}

/// The number of calls that CPU `number` has answered.
pub(crate) fn answered(number: usize) -> u64 {
    ANSWERED
        .of(number)
        .map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Runs `work` on `cpus`, which may include this CPU, and returns when all have finished.
///
/// Panics, naming the CPU, when one does not answer. Interrupts must not be masked here, unless no
/// other CPU can be calling.
pub(crate) fn call(cpus: CpuSet, work: &(dyn Fn(&'static PerCpu) + Sync)) {
    let this = percpu::this();
    call_while(cpus.without(this.number()), work, || {
        if cpus.contains(this.number()) {
            work(this);
        }
    });
}

/// Starts `work` on `others`, which must not include this CPU, and runs `meanwhile` here. Returns
/// the result of `meanwhile` when all others are done.
pub(crate) fn call_while<R>(
    others: CpuSet,
    work: &(dyn Fn(&'static PerCpu) + Sync),
    meanwhile: impl FnOnce() -> R,
) -> R {
    debug_assert!(!others.contains(percpu::this().number()));
    let call = Call {
        work,
        left: AtomicCpuSet::of(others),
    };
    post(&call, others);
    let result = meanwhile();
    // The function must not return earlier, because the other CPUs hold pointers to the call. A
    // panic ends the kernel without unwinding.
    if !others.is_empty() {
        wait(
            || call.left.is_empty(Ordering::Acquire),
            || call.left.load(Ordering::Relaxed),
        );
    }
    result
}

fn post(call: &Call<'_>, others: CpuSet) {
    // The pointers are not used once `left` is empty, for which `call_while` waits.
    let pointer = (&raw const *call).cast_mut().cast::<Call<'static>>();
    for number in others.iter() {
        let Some(inbox) = INBOX.of(number) else {
            continue;
        };
        // The inbox may hold another CPU's call until its owner answers that.
        wait(
            || {
                let put = inbox.compare_exchange(
                    core::ptr::null_mut(),
                    pointer,
                    Ordering::Release,
                    Ordering::Relaxed,
                );
                put.is_ok()
            },
            || CpuSet::one(number),
        );
    }
    if !others.is_empty() {
        intc::send(others);
    }
}

/// Waits until `done`, and answers calls meanwhile. `left` returns the CPUs that it waits for.
fn wait(mut done: impl FnMut() -> bool, left: impl Fn() -> CpuSet) {
    let this = percpu::this();
    let mut timeout = cpu::timeout(PATIENCE_S);
    let mut answered = ANSWERED.this().load(Ordering::Relaxed);
    loop {
        if done() {
            return;
        }
        answer_or_stop();
        let now = ANSWERED.this().load(Ordering::Relaxed);
        if now != answered {
            // This CPU was away, perhaps parked, and the others may have been too, so the wait
            // starts again.
            answered = now;
            timeout.restart();
        }
        assert!(
            !timeout.is_over(cpu::counter_now()),
            "CPU {} did not answer CPU {}'s call within {PATIENCE_S} s",
            left(),
            this.number()
        );
        cpu::relax();
    }
}

/// Answers a call, and stops where a CPU that panics asks for it. Waiting CPUs do so, with interrupts masked or not.
pub(crate) fn answer_or_stop() {
    stop::poll();
    answer();
}

/// Runs the call in this CPU's inbox, if there is one. Called by the interrupt handler, and while
/// waiting.
pub(crate) fn answer() {
    let this = percpu::this();
    let masked = cpu::mask_interrupts();
    let call = INBOX.this().swap(core::ptr::null_mut(), Ordering::Acquire);
    if !call.is_null() {
        // SAFETY: the caller keeps the call alive until this CPU clears its bit, below.
        let call = unsafe { &*call };
        (call.work)(this);
        ANSWERED.this().fetch_add(1, Ordering::Relaxed);
        call.left.remove(this.number(), Ordering::Release);
    }
    cpu::restore_interrupts(masked);
}
