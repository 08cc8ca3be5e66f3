//! Jobs: work for the secondary CPUs outside of interrupts. Each CPU looks for its job in its idle loop
//! (`init::idle`).
//!
//! A job may take long, may be interrupted and parked, and may call other CPUs. One CPU gives out one job at
//! a time, and continues with something else meanwhile.

#![allow(unsafe_code, reason = "jobs on their givers' stacks")]

use super::ipi;
use crate::arch::cpu;
use crate::percpu::{self, PerCpu, per_cpu};
use core::sync::atomic::{AtomicPtr, Ordering};
use granule_kcore::cpus::set::{AtomicCpuSet, CpuSet};

/// A piece of work, and the set of CPUs that have not finished it.
pub(crate) struct Job<'a> {
    work: &'a (dyn Fn(&'static PerCpu) + Sync),
    left: AtomicCpuSet,
}

per_cpu! {
    /// The CPU's job.
    static JOB: AtomicPtr<Job<'static>> = AtomicPtr::new(core::ptr::null_mut());
}

/// Runs `work` on `others`, none of which may have a job, and `meanwhile` here. Returns the result of
/// `meanwhile` once all are done. `work` must end by itself or at a request of `meanwhile`. A CPU that
/// still runs `work` when this CPU waited `patience_s` seconds of its own time causes a panic that names it.
#[cfg_attr(
    not(feature = "test-image"),
    allow(dead_code, reason = "the jobs there are today are self-tests")
)]
pub(crate) fn run_while<R>(
    others: CpuSet,
    patience_s: u64,
    work: &(dyn Fn(&'static PerCpu) + Sync),
    meanwhile: impl FnOnce() -> R,
) -> R {
    let this = percpu::this().number();
    assert!(
        !others.contains(this) && !others.contains(0),
        "CPU {this} gives CPU {others} a job, which only another CPU can do that waits for one"
    );
    let job = Job {
        work,
        left: AtomicCpuSet::of(others),
    };
    // The pointers are not used once `left` is empty, for which this function waits below.
    let pointer = (&raw const job).cast_mut().cast::<Job<'static>>();
    for number in others.iter() {
        let old = JOB
            .of(number)
            .map(|job| job.swap(pointer, Ordering::Release));
        assert!(
            old.is_none_or(|old| old.is_null()),
            "CPU {number} has a job already"
        );
    }
    // An empty call wakes the CPUs from their idle loop.
    ipi::call(others, &|_| ());
    let result = meanwhile();
    let mut timeout = cpu::timeout(patience_s);
    loop {
        if job.left.is_empty(Ordering::Acquire) {
            return result;
        }
        assert!(
            !timeout.is_over(cpu::counter_now()),
            "CPU {} did not end its job within {patience_s} s",
            job.left.load(Ordering::Relaxed)
        );
        cpu::relax();
    }
}

/// Whether CPU `number` has no job.
pub(crate) fn is_free(number: usize) -> bool {
    let job = JOB.of(number);
    job.is_some_and(|job| job.load(Ordering::Relaxed).is_null())
}

/// The calling CPU's job, if it has one.
pub(crate) fn mine() -> Option<&'static Job<'static>> {
    let job = JOB.this().load(Ordering::Acquire);
    // SAFETY: the CPU that gave the job keeps it until this CPU clears its bit, in `Job::run`.
    unsafe { job.as_ref() }
}

impl Job<'_> {
    /// Runs this CPU's part of the job. The job must not be used afterwards.
    pub(crate) fn run(&self) {
        let this = percpu::this();
        (self.work)(this);
        JOB.this().store(core::ptr::null_mut(), Ordering::Relaxed);
        self.left.remove(this.number(), Ordering::Release);
    }
}
