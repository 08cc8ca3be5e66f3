//! Work for the secondary CPUs outside of interrupts: what they do when they are told to, and what
//! they do otherwise, which is to run tasks, to merge what became alike in the linear map, and to
//! wait.
//!
//! A job may take long, may be interrupted and parked in its middle, and may call other CPUs. There
//! is one at a time, from one CPU, which goes on with something else meanwhile.

use super::off;
use super::percpu::{self, PerCpu};
use crate::memory::merge;
use crate::user::sched;
use crate::{cpu, ipi};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::cpus::set::CpuSet;

/// Work, and who has not ended it yet.
pub(crate) struct Job<'a> {
    work: &'a (dyn Fn(&'static PerCpu) + Sync),
    left: AtomicU64,
}

impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job on {}", CpuSet(self.left.load(Ordering::Relaxed)))
    }
}

/// Runs `work` on `others`, none of which may have a job, and `meanwhile` here; returns what that
/// returned once all are done. `work` must end by itself, or because `meanwhile` told it to: one that
/// takes `patience_s` seconds longer is a panic that names its CPU.
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
        left: AtomicU64::new(others.0),
    };
    // The pointers' lifetime ends when `left` is empty, for which we wait below.
    let pointer = (&raw const job).cast_mut().cast::<Job<'static>>();
    for cpu in others.iter().filter_map(percpu::of) {
        let old = cpu.job.swap(pointer, Ordering::Release);
        assert!(old.is_null(), "CPU {} has a job already", cpu.number());
    }
    // Wakes them.
    ipi::call(others, &|_| ());
    let result = meanwhile();
    let start = cpu::counter_now();
    loop {
        let left = job.left.load(Ordering::Acquire);
        if left == 0 {
            return result;
        }
        assert!(
            cpu::counter_now().wrapping_sub(start) < patience_s * cpu::cntfrq_el0(),
            "CPU {} did not end its job within {patience_s} s",
            CpuSet(left)
        );
        cpu::relax();
    }
}

/// Does jobs, and waits between them, with interrupts let in.
pub(super) fn serve(this: &'static PerCpu) -> ! {
    loop {
        // Masked, so that a job that comes between the look and the wait is not slept over: a
        // pending interrupt ends the wait whether or not it is masked.
        let masked = cpu::mask_interrupts();
        let job = this.job.load(Ordering::Acquire);
        // With a job, too: whoever notes something must not take this CPU for one that merges.
        let nothing_noted = merge::may_sleep();
        let goes_off = off::is_asked(this);
        if job.is_null() && nothing_noted && !goes_off && sched::may_sleep() {
            cpu::wait_for_interrupt();
        }
        sched::woke();
        cpu::restore_interrupts(masked);
        if goes_off {
            if !nothing_noted {
                merge::wake();
            }
            off::go(this);
            continue;
        }
        if job.is_null() && !sched::run_one() {
            merge::idle();
            cpu::relax();
        }
        if !job.is_null() {
            if !nothing_noted {
                merge::wake();
            }
            // SAFETY: who gave the job keeps it until this CPU crosses itself off.
            let job = unsafe { &*job };
            (job.work)(this);
            this.job.store(core::ptr::null_mut(), Ordering::Relaxed);
            job.left
                .fetch_and(!CpuSet::one(this.number()).0, Ordering::Release);
        }
    }
}
