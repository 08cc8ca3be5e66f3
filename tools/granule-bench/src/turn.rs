//! One turn: a subject, or the floor, maps, protects and unmaps a job's range once, and each step
//! is measured by the program's own clock or counter. The effect of the step is checked afterwards.

#![allow(
    unsafe_code,
    reason = "a subject that is gone before the arena's next reset"
)]

use crate::arena::Arena;
use crate::job::{Calls, Job, VIRTUAL};
use crate::subjects::{Floor, Found, Subject};
use anyhow::{Context, Result, ensure};

/// The leaves queried in a turn without a full check, of each tree.
const SAMPLE: u64 = 61;

/// The measured steps, in their order.
pub const STEPS: [&str; 3] = ["map", "protect", "unmap"];

/// The advance of the program's clock in each of the steps.
pub type Measured = [u64; 3];

/// Runs `work`. Returns its result, and the advance of the clock.
fn measure<T>(now: fn() -> u64, work: impl FnOnce() -> T) -> (T, u64) {
    let before = now();
    let value = work();
    (value, now().wrapping_sub(before))
}

/// Measures the floor, and `memset` of the same bytes. With `check` each entry is looked at after each step.
pub fn floor(job: &Job, arena: &Arena, check: bool, now: fn() -> u64) -> Result<(Measured, u64)> {
    let tables = job.trees * job.tables();
    arena.reset();
    // SAFETY: gone at the end of this function, before the next reset.
    let mut floor = unsafe { Floor::new(job)? };
    arena.sweep(tables);
    let ((), memset) = measure(now, || floor.memset());
    arena.sweep(tables);
    let ((), map) = measure(now, || floor.map());
    ensure!(!check || floor.is_mapped(), "the floor does not map");
    arena.sweep(tables);
    let ((), protect) = measure(now, || floor.protect());
    ensure!(!check || floor.is_protected(), "the floor does not protect");
    arena.sweep(tables);
    let ((), unmap) = measure(now, || floor.unmap());
    ensure!(!check || floor.is_unmapped(), "the floor does not unmap");
    Ok(([map, protect, unmap], memset))
}

/// Measures a subject, and counts its tables. After each step all leaves are queried, or a sample
/// of them.
pub fn subject(
    job: &Job,
    subject: &mut dyn Subject,
    arena: &Arena,
    check_all: bool,
    now: fn() -> u64,
) -> Result<(Measured, u64)> {
    let tables = job.trees * job.tables();
    subject.forget(job.trees as usize);
    arena.reset();
    if job.calls == Calls::Page {
        subject.prepare(job).context("mapping what stays")?;
    }

    arena.sweep(tables);
    let (done, map) = measure(now, || subject.map(job));
    done.context("map")?;
    let taken = arena.taken();
    check(job, subject, check_all, Some(true)).context("after map")?;

    arena.sweep(tables);
    let (done, protect) = measure(now, || subject.protect(job));
    done.context("protect")?;
    check(job, subject, check_all, Some(false)).context("after protect")?;

    arena.sweep(tables);
    let (done, unmap) = measure(now, || subject.unmap(job));
    done.context("unmap")?;
    check(job, subject, check_all, None).context("after unmap")?;

    subject.forget(job.trees as usize);
    Ok(([map, protect, unmap], taken))
}

/// Queries the subject for leaves, all or a sample: mapped as the job has it, writable or not, or not
/// at all; and for what lies next to the range, which must not be mapped.
fn check(job: &Job, subject: &dyn Subject, all: bool, writable: Option<bool>) -> Result<()> {
    let bytes = job.leaf.bytes();
    let leaves = job.bytes / bytes;
    let step = if all { 1 } else { leaves.div_ceil(SAMPLE) };
    for tree in 0..job.trees as usize {
        let sample = (0..leaves).step_by(step as usize).chain([leaves - 1]);
        for leaf in sample {
            // Not only the first page of a block.
            let offset = leaf * bytes + (leaf * 4096) % bytes;
            // Earlier mappings stay as they are.
            let kept = job.is_kept(leaf * bytes).then_some(true);
            let expected = kept.or(writable).map(|writable| Found {
                output: job.physical() + offset,
                bytes,
                writable,
            });
            let found = subject.query(tree, VIRTUAL + offset);
            ensure!(
                found == expected,
                "tree {tree}, {:#x}: expected {expected:?}, its query returns {found:?}",
                VIRTUAL + offset
            );
        }
        for outside in [VIRTUAL - 4096, VIRTUAL + job.bytes] {
            let found = subject.query(tree, outside);
            ensure!(
                found.is_none(),
                "tree {tree}, {outside:#x} is outside of the range, its query returns {found:?}"
            );
        }
    }
    Ok(())
}
