//! Merges leaves of the linear map into larger ones where permissions agree, on demand and on idle CPUs.
//!
//! Each change of the linear map notes its range ([`note`]), widened to the largest leaf that could result. A
//! secondary CPU that waits for work examines the merge candidates ([`idle`]) once they have not changed for a
//! while. It works in steps, each of which holds the tables for the entries of a few tables. On a single CPU,
//! the boot CPU does this when the boot has nothing else to do ([`settle`]). `granule.merge=idle|off` turns
//! this on or off. Merging breaks no translation first, so no access is disturbed. The library frees a table
//! only once no CPU can walk it.
//!
//! The candidates are few ranges; one range too many joins the two closest, so nothing is forgotten
//! (`granule_kcore::merge_candidates`). A step looks at a few entries above the last level, merges the larger
//! leaves that end at each, and ends with the first last-level table, which it merges too. A change that
//! notes a range wakes one idle CPU, if none is awake.

use super::error::LinearError;
use super::kernel_tables::{self, Flush, Kernel, TableState, Tree};
use crate::arch::cpu;
use crate::cpu::jobs;
use crate::dev::intc;
use crate::percpu;
use arrayvec::ArrayVec;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule::arch::bbm::BbmLevel;
use granule::arch::{Kind, LeafSize, Level, VirtualAddress};
use granule::table::{Leaves, Merged, TableError, Visit};

/// Merging waits until a range has not changed for 1/`QUIET` second, because a caller that changes one page
/// soon changes others, or changes the same one back.
const QUIET: u64 = 500;

/// Most entries and tables that one step passes over before it releases the tables.
const MOST_SKIPPED: u32 = 64;

/// Whether idle CPUs merge.
static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);
/// Whether a CPU was woken, or woke, and has not gone to sleep since.
static AWAKE: AtomicBool = AtomicBool::new(false);
/// Whether there is a merge candidate.
static NOTED: AtomicBool = AtomicBool::new(false);
/// Tables and groups that idle CPUs merged.
static TABLES: AtomicU64 = AtomicU64::new(0);
static GROUPS: AtomicU64 = AtomicU64::new(0);

/// Sets whether idle CPUs merge (`granule.merge=`).
pub(crate) fn configure(when_idle: bool) {
    IN_BACKGROUND.store(when_idle, Ordering::Relaxed);
}

/// Merges the leaves of `pages` pages from `start` in the linear map, up to the largest leaves that the boot
/// may use, and returns what was merged. Guard pages stay pages. Leaves and groups that reach across the ends
/// of the range stay as they are. Takes the lock once and holds it for the whole range. Fails with
/// [`LinearError::TooEarly`], [`LinearError::Outside`], [`LinearError::Table`].
pub(crate) fn merge_linear_map(start: VirtualAddress, pages: u64) -> Result<Merged, LinearError> {
    kernel_tables::change(Flush::Now, |kernel, state, tree| {
        let bytes = kernel.bytes_in(start, pages)?;
        let end = start.0.wrapping_add(bytes);
        Ok(around_pools(kernel, state, tree, start.0..end)?)
    })
    .unwrap_or(Err(LinearError::TooEarly))
}

/// Merges every merge candidate at once, however recently it changed.
pub(crate) fn merge_candidates() -> Merged {
    let mut all = Merged::default();
    while let Some(Some(merged)) = kernel_tables::change(Flush::Now, |kernel, state, tree| {
        step(kernel, state, tree, None)
    }) {
        add(&mut all, Ok(merged));
    }
    all
}

/// Counts what idle CPUs merged.
fn count(merged: Merged) {
    TABLES.fetch_add(merged.tables, Ordering::Relaxed);
    GROUPS.fetch_add(merged.groups, Ordering::Relaxed);
}

/// Returns the merges of idle CPUs.
#[cfg(feature = "test-image")]
pub(crate) fn in_background() -> Merged {
    let mut all = Merged::default();
    all.tables = TABLES.load(Ordering::Relaxed);
    all.groups = GROUPS.load(Ordering::Relaxed);
    all
}

/// Whether merging is possible with this map.
fn merges(kernel: &Kernel) -> bool {
    kernel.bbm >= BbmLevel::Level1 && kernel.leaves != Leaves::PAGES
}

/// Notes that a part of the `bytes` bytes from `start` changed.
pub(super) fn note(kernel: &Kernel, state: &mut TableState, start: VirtualAddress, bytes: u64) {
    if !merges(kernel) {
        return;
    }
    let mask = kernel.largest - 1;
    // The widened range may extend beyond the linear map. That is harmless: a step skips addresses outside
    // the map.
    let (first, last) = (start.0 & !mask, (start.0 + (bytes - 1)) | mask);
    state.candidates.add(first, last, cpu::cntvct_el0());
    NOTED.store(true, Ordering::SeqCst);
}

/// Wakes a CPU that may have slept since a candidate was added, if there is one. Call it without the lock.
pub(crate) fn wake() {
    if !IN_BACKGROUND.load(Ordering::Relaxed) || AWAKE.load(Ordering::SeqCst) {
        return;
    }
    let this = percpu::this().number();
    let is_idle =
        |number: &usize| *number != this && percpu::is_online(*number) && jobs::is_free(*number);
    let idle = (1..percpu::ready()).find(is_idle);
    if let Some(number) = idle
        && !AWAKE.swap(true, Ordering::SeqCst)
    {
        intc::send_to(number);
    }
}

/// One step of merging, for an idle CPU.
pub(crate) fn idle() {
    if may_sleep() {
        return;
    }
    AWAKE.store(true, Ordering::SeqCst);
    let quiet = cpu::cntfrq_el0() / QUIET;
    let stepped =
        kernel_tables::try_change(|kernel, state, tree| step(kernel, state, tree, Some(quiet)));
    // Otherwise another CPU holds the tables, or every merge candidate has been examined.
    if let Some(Some(merged)) = stepped {
        count(merged);
    }
}

/// Whether there is no candidate, so that this CPU may sleep. Call it with interrupts masked, right before
/// sleeping: a CPU that notes a range after this call began sends an interrupt, unless it sees another CPU
/// awake.
pub(crate) fn may_sleep() -> bool {
    if !IN_BACKGROUND.load(Ordering::Relaxed) {
        return true;
    }
    // This order matters: a CPU that notes a range stores NOTED first and reads AWAKE afterwards.
    AWAKE.store(false, Ordering::SeqCst);
    !NOTED.load(Ordering::SeqCst)
}

/// Merges all merge candidates on a system with one CPU, when that CPU is idle.
pub(crate) fn settle() {
    if IN_BACKGROUND.load(Ordering::Relaxed) && percpu::online().len() == 1 {
        count(merge_candidates());
    }
}

/// Examines the beginning of the oldest candidate, if it has not changed for `quiet` ticks, and merges
/// there. Returns `None` if there is no candidate.
fn step(
    kernel: &Kernel,
    state: &mut TableState,
    tree: &mut Tree<'_>,
    quiet: Option<u64>,
) -> Option<Merged> {
    let note = state.candidates.oldest()?;
    let mut merged = Merged::default();
    if quiet.is_some_and(|quiet| cpu::cntvct_el0().wrapping_sub(note.time) < quiet) {
        return Some(merged);
    }
    let mut at = Some(note.start);
    for _ in 0..MOST_SKIPPED {
        let Some(start) = at.filter(|start| *start <= note.last) else {
            break;
        };
        let (chunk, is_table) = chunk_at(kernel, tree, start);
        if is_table {
            add(
                &mut merged,
                around_pools(kernel, state, tree, start..start.wrapping_add(chunk)),
            );
        }
        let end = start.wrapping_add(chunk);
        larger(kernel, state, tree, start, end, &mut merged);
        at = (end > start).then_some(end);
        if is_table {
            break;
        }
    }
    state
        .candidates
        .done(&note, at.filter(|start| *start <= note.last));
    if state.candidates.is_empty() {
        NOTED.store(false, Ordering::SeqCst);
    }
    Some(merged)
}

fn add(all: &mut Merged, more: Result<Merged, TableError>) {
    // The merge candidates are whole pages of the upper VA range, so this cannot fail.
    if let Ok(more) = more {
        all.tables += more.tables;
        all.groups += more.groups;
    }
}

/// The size in bytes of the chunk at `start`, which no leaf straddles. The flag is true for the range of one
/// last-level table, and false for one leaf or hole above the last level.
fn chunk_at(kernel: &Kernel, tree: &mut Tree<'_>, start: u64) -> (u64, bool) {
    let size = kernel.geometry.page_size();
    let mut level = kernel.geometry.start_level();
    // For an entry that points to a table, the walk goes on below.
    let seen = tree.visit(VirtualAddress(start), kernel.page(), |entry| {
        if entry.kind == Kind::Table {
            level = entry.level.next();
        }
        Visit::EVERYTHING
    });
    match (seen, level == Level::L3) {
        (Ok(_), true) => (size.entry_bytes(Level::L2), true),
        (Ok(_), false) => (size.entry_bytes(level), false),
        // The address is not in the upper VA range, so no table is there.
        (Err(_), _) => (u64::MAX - start, false),
    }
}

/// Merges the larger leaves that end where a chunk ended, from the smallest size up: blocks of a whole table,
/// and groups of blocks. Such a leaf may begin before the rest of the noted range, but not before the noted
/// range itself, because that consists of whole leaves of the largest size.
fn larger(
    kernel: &Kernel,
    state: &TableState,
    tree: &mut Tree<'_>,
    chunk: u64,
    end: u64,
    merged: &mut Merged,
) {
    let size = kernel.geometry.page_size();
    let mut sizes: ArrayVec<LeafSize, 10> = kernel.geometry.leaf_sizes().collect();
    sizes.reverse();
    for leaf in sizes {
        if leaf.level == Level::L3 || end & (leaf.bytes - 1) != 0 {
            continue;
        }
        let start = end.wrapping_sub(leaf.bytes);
        // The range lies in the chunk: in one leaf or hole, or in one table, which the step has merged.
        if start >= chunk && leaf.bytes <= end - chunk {
            continue;
        }
        if state.meets_pool(start, leaf.bytes) {
            continue;
        }
        // A block comes from one table that points to no table, and a group from adjacent leaves. Where
        // tables lie below those levels, nothing can be merged, and the search would be long.
        let below = size.entry_bytes(leaf.level);
        let tables = tree.visit(VirtualAddress(start), leaf.bytes, |entry| {
            let on_the_way = entry.bytes > below || (entry.bytes == below && !leaf.contiguous);
            match (entry.kind, on_the_way) {
                (Kind::Table, false) => ControlFlow::Break(()),
                (_, false) => ControlFlow::Continue(Visit::Skip),
                (_, true) => ControlFlow::Continue(Visit::Descend),
            }
        });
        if tables.is_ok_and(|tables| tables.is_continue()) {
            let start = VirtualAddress(start);
            add(merged, tree.merge(start, leaf.bytes, kernel.leaves));
        }
    }
}

/// Merges in a range of the linear map, which ends below the last address, around the guard pages in it.
fn around_pools(
    kernel: &Kernel,
    state: &TableState,
    tree: &mut Tree<'_>,
    range: Range<u64>,
) -> Result<Merged, TableError> {
    let mut all = Merged::default();
    let mut at = range.start;
    while at < range.end {
        let inside = |pool: &&Range<u64>| pool.end > at && pool.start < range.end;
        let pool = state
            .pools
            .iter()
            .filter(inside)
            .min_by_key(|pool| pool.start);
        let (end, next) = match pool {
            Some(pool) => (pool.start.max(at), pool.end),
            None => (range.end, range.end),
        };
        let merged = tree.merge(VirtualAddress(at), end - at, kernel.leaves)?;
        add(&mut all, Ok(merged));
        at = next;
    }
    Ok(all)
}
