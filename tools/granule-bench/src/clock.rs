//! The clock, and where the thread runs.
//!
//! Time is the thread's own CPU time: on a machine that does other work too, being put aside for
//! it is not the subject's time. What the others do to the caches is; ratios within a round and
//! many rounds are for that.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CPU time so far.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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
