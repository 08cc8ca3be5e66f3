//! The clock, and where the thread runs.
//!
//! Time is the thread's own CPU time: on a machine that does other work too, being put aside for
//! it is not the subject's time. What the others do to the caches is; ratios within a round and
//! many rounds are for that.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CPU time that `work` takes.
pub(crate) fn time<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let before = now();
    let value = work();
    let after = now();
    (value, after - before)
}

fn now() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    // Exact: a thread does not run for 2^53 ns.
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Stays on CPU `cpu` from now on.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    anyhow::ensure!(
        cpu < CpuSet::MAX_CPU,
        "there is no CPU {cpu}; leave out --cpu to take the one that the program runs on"
    );
    set.set(cpu);
    sched_setaffinity(None, &set)
        .with_context(|| format!("cannot run on CPU {cpu}; leave out --cpu or name another"))
}

/// The CPU that the thread runs on now.
pub(crate) fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}
