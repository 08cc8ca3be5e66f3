//! One turn: a subject, or the floor, maps, protects and unmaps a job's range once, and each step
//! is measured by the program's own clock or counter. The effect of the step is checked afterwards.

#![allow(unsafe_code, reason = "a subject that is gone before the next reset")]

use crate::arena::Arena;
use crate::job::{Job, STEPS, VIRTUAL};
use crate::subjects::{Floor, Found, Subject};
use anyhow::{Context, Result, ensure};

/// The leaves or calls queried in a turn without a full check, of each tree.
const SAMPLE: u64 = 61;

/// The advance of the program's clock in each of [`STEPS`]; 0 for a step that the job has not.
pub type Measured = [u64; STEPS.len()];

/// Runs `work`. Returns its result, and the advance of the clock.
fn measure<T>(now: fn() -> u64, work: impl FnOnce() -> T) -> (T, u64) {
    let before = now();
    let value = work();
    (value, now().wrapping_sub(before))
}

/// Whether single leaves are queried in a step of their own.
fn has_query(job: &Job) -> bool {
    job.steps().len() == STEPS.len()
}

/// Measures the floor, and `memset` of the same bytes. With `check` each entry is looked at after each step.
pub fn floor(job: &Job, arena: &Arena, check: bool, now: fn() -> u64) -> Result<(Measured, u64)> {
    let bytes = job.table_bytes();
    arena.reset();
    // SAFETY: gone at the end of this function, before the next reset.
    let mut floor = unsafe { Floor::new(job)? };
    arena.sweep(bytes);
    let ((), memset) = measure(now, || floor.memset());
    arena.sweep(bytes);
    let ((), map) = measure(now, || floor.map());
    ensure!(!check || floor.is_mapped(), "the floor does not map");
    let mut query = 0;
    if has_query(job) {
        arena.sweep(bytes);
        ((), query) = measure(now, || floor.query());
    }
    arena.sweep(bytes);
    let ((), protect) = measure(now, || floor.protect());
    ensure!(!check || floor.is_protected(), "the floor does not protect");
    arena.sweep(bytes);
    let ((), unmap) = measure(now, || floor.unmap());
    ensure!(!check || floor.is_unmapped(), "the floor does not unmap");
    Ok(([map, protect, unmap, query], memset))
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
    let bytes = job.table_bytes();
    subject.forget(job.trees as usize);
    arena.reset();
    if job.has_kept() {
        subject.prepare(job).context("mapping what stays")?;
    }

    arena.sweep(bytes);
    let (done, map) = measure(now, || subject.map(job));
    done.context("map")?;
    let taken = arena.taken() / job.leaf.page_bytes();
    check(job, subject, check_all, Some(true)).context("after map")?;

    let mut query = 0;
    if has_query(job) {
        arena.sweep(bytes);
        let (sum, time) = measure(now, || subject.query_each(job));
        query = time;
        let outputs = job.each().map(|(_, output)| output);
        let expected = outputs.fold(0, u64::wrapping_add).wrapping_mul(job.trees);
        ensure!(
            sum == expected,
            "its queries return outputs whose sum is {sum:#x}, expected {expected:#x}"
        );
    }

    arena.sweep(bytes);
    let (done, protect) = measure(now, || subject.protect(job));
    done.context("protect")?;
    check(job, subject, check_all, Some(false)).context("after protect")?;

    arena.sweep(bytes);
    let (done, unmap) = measure(now, || subject.unmap(job));
    done.context("unmap")?;
    check(job, subject, check_all, None).context("after unmap")?;

    subject.forget(job.trees as usize);
    Ok(([map, protect, unmap, query], taken))
}

/// Queries the subject for leaves, all or a sample: mapped as the job has it, writable or not, or not
/// at all; and for what lies next to the range, which must not be mapped.
fn check(job: &Job, subject: &dyn Subject, all: bool, writable: Option<bool>) -> Result<()> {
    let bytes = job.leaf.bytes();
    let look = |tree: usize, start: u64| {
        // Not only the first page of a block.
        let offset = start + (start / bytes * 4096) % bytes;
        // Earlier mappings stay as they are.
        let kept = job.is_kept(start).then_some(true);
        let named = writable.filter(|_| job.is_named(start));
        let expected = kept.or(named).map(|writable| Found {
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
        Ok(())
    };
    let every = |count: u64| if all { 1 } else { count.div_ceil(SAMPLE) } as usize;
    for tree in 0..job.trees as usize {
        if all || job.calls.is_range() {
            let leaves = job.bytes / bytes;
            for leaf in (0..leaves).step_by(every(leaves)).chain([leaves - 1]) {
                look(tree, leaf * bytes)?;
            }
        } else {
            let calls = job.call_count() / job.trees;
            for (start, _) in job.each().step_by(every(calls)) {
                let first = start - VIRTUAL;
                look(tree, first)?;
                look(tree, first + job.call_bytes() - bytes)?;
            }
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
