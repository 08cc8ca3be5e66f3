//! Large leaves again where permissions agree: on demand, and by CPUs that have nothing else to do.
//!
//! Whatever changes the linear map notes the range ([`note`]), as far as the largest leaf reaches
//! that could come of it. A secondary CPU that waits for work looks at what was noted ([`idle`]) once
//! it has been left alone for a while, in steps that each hold the tables for the entries of a few
//! tables; the boot CPU without others does it when the boot has nothing else to do ([`settle`]).
//! Whether this happens is `granule.merge=idle|off`. Merging breaks nothing first, so nobody
//! notices; tables are given back once no CPU can walk them, which the library sees to.

use super::error::LinearError;
use super::live::{self, Flush, Kernel, Live, Tree};
use crate::arch::cpu;
use crate::cpu::jobs;
use crate::dev::gic;
use crate::percpu;
use arrayvec::ArrayVec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule::arch::bbm::BbmLevel;
use granule::arch::geometry::LeafSize;
use granule::arch::page_size::Level;
use granule::arch::{Kind, VirtualAddress};
use granule::table::{Leaves, Merged, TableError};
use granule_kcore::cpus::set::CpuSet;

/// Parts of a second that a range is left alone before it is merged: who changes one page changes
/// others soon, or the same one back.
const QUIET: u64 = 500;

/// Entries and tables that are passed over in one step at most, before the tables are let go.
const MOST_SKIPPED: u32 = 64;

/// Whether idle CPUs merge.
static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);
/// Whether a CPU was woken, or woke, and has not gone to sleep since.
static AWAKE: AtomicBool = AtomicBool::new(false);
/// Whether anything is noted.
static NOTED: AtomicBool = AtomicBool::new(false);
/// Tables and groups that idle CPUs merged.
static TABLES: AtomicU64 = AtomicU64::new(0);
static GROUPS: AtomicU64 = AtomicU64::new(0);

/// Sets whether idle CPUs merge (`granule.merge=`).
pub(crate) fn configure(when_idle: bool) {
    IN_BACKGROUND.store(when_idle, Ordering::Relaxed);
}

/// Merges all that agrees among `pages` pages from `start` in the linear map, into leaves as large as
/// the boot's may be, and gives what came of it. Guard pages stay pages. Leaves and groups that reach
/// across the ends of the range stay as they are. Takes the lock once, for as long as it takes.
///
/// # Errors
///
/// [`LinearError::TooEarly`], [`LinearError::Outside`], [`LinearError::Table`].
pub(crate) fn merge_linear_map(start: VirtualAddress, pages: u64) -> Result<Merged, LinearError> {
    live::change(Flush::Now, |kernel, live, tree| {
        let bytes = kernel.bytes_in(start, pages)?;
        let end = start.0.wrapping_add(bytes);
        Ok(around_pools(kernel, live, tree, start.0..end)?)
    })
    .unwrap_or(Err(LinearError::TooEarly))
}

/// Merges everything that is noted, without waiting.
pub(crate) fn merge_noted() -> Merged {
    let mut all = Merged::default();
    while let Some(Some(merged)) = live::change(Flush::Now, |kernel, live, tree| {
        step(kernel, live, tree, None)
    }) {
        all.tables += merged.tables;
        all.groups += merged.groups;
    }
    all
}

/// What CPUs merged when they had nothing else to do.
pub(crate) fn in_background() -> Merged {
    Merged {
        tables: TABLES.load(Ordering::Relaxed),
        groups: GROUPS.load(Ordering::Relaxed),
    }
}

/// Whether anything is ever merged.
fn merges(kernel: &Kernel) -> bool {
    kernel.bbm >= BbmLevel::Level1 && kernel.leaves != Leaves::PAGES
}

/// Remembers that something among `bytes` bytes from `start` changed.
pub(super) fn note(kernel: &Kernel, live: &mut Live, start: VirtualAddress, bytes: u64) {
    if !merges(kernel) {
        return;
    }
    let largest = kernel.geometry.leaf_sizes().map(|size| size.bytes).max();
    let mask = largest.unwrap_or(1) - 1;
    // What lies outside the linear map is not merged: a step keeps off it.
    let (first, last) = (start.0 & !mask, (start.0 + (bytes - 1)) | mask);
    live.candidates.add(first, last, cpu::cntvct_el0());
    NOTED.store(true, Ordering::SeqCst);
}

/// Wakes a CPU that may have slept since something was noted, if there is one. Without the lock.
pub(crate) fn wake() {
    if !IN_BACKGROUND.load(Ordering::Relaxed) || AWAKE.load(Ordering::SeqCst) {
        return;
    }
    let others = percpu::online().without(percpu::this().number()).without(0);
    let idle = others.iter().find(|number| jobs::is_free(*number));
    if let Some(number) = idle
        && !AWAKE.swap(true, Ordering::SeqCst)
    {
        gic::send(CpuSet::one(number));
    }
}

/// For a CPU that has nothing else to do: one step.
pub(crate) fn idle() {
    if may_sleep() {
        return;
    }
    AWAKE.store(true, Ordering::SeqCst);
    let quiet = cpu::cntfrq_el0() / QUIET;
    let stepped = live::try_change(|kernel, live, tree| step(kernel, live, tree, Some(quiet)));
    // Else someone else changes something, or has looked at all there was.
    if let Some(Some(merged)) = stepped {
        TABLES.fetch_add(merged.tables, Ordering::Relaxed);
        GROUPS.fetch_add(merged.groups, Ordering::Relaxed);
    }
}

/// Whether nothing is noted. Who notes something after this was asked, or before it was answered,
/// sends an interrupt unless it saw another CPU awake: so this is to be asked with interrupts
/// masked, right before sleeping.
pub(crate) fn may_sleep() -> bool {
    if !IN_BACKGROUND.load(Ordering::Relaxed) {
        return true;
    }
    // In this order: who notes something stores NOTED first and looks at AWAKE then.
    AWAKE.store(false, Ordering::SeqCst);
    !NOTED.load(Ordering::SeqCst)
}

/// For the only CPU, when it has nothing else to do.
pub(crate) fn settle() {
    if IN_BACKGROUND.load(Ordering::Relaxed) && percpu::online().len() == 1 {
        let merged = merge_noted();
        TABLES.fetch_add(merged.tables, Ordering::Relaxed);
        GROUPS.fetch_add(merged.groups, Ordering::Relaxed);
    }
}

/// Looks at the beginning of what was noted longest ago, if nobody noted it for `quiet` ticks, and
/// merges there. `None` if nothing is noted.
fn step(
    kernel: &Kernel,
    live: &mut Live,
    tree: &mut dyn Tree,
    quiet: Option<u64>,
) -> Option<Merged> {
    let note = live.candidates.oldest()?;
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
                around_pools(kernel, live, tree, start..start.wrapping_add(chunk)),
            );
        }
        let end = start.wrapping_add(chunk);
        larger(kernel, live, tree, start, end, &mut merged);
        at = (end > start).then_some(end);
        if is_table {
            break;
        }
    }
    live.candidates
        .done(&note, at.filter(|start| *start <= note.last));
    if live.candidates.is_empty() {
        NOTED.store(false, Ordering::SeqCst);
    }
    Some(merged)
}

fn add(all: &mut Merged, more: Result<Merged, TableError>) {
    // The ranges are whole pages of the kernel's half.
    if let Ok(more) = more {
        all.tables += more.tables;
        all.groups += more.groups;
    }
}

/// How many bytes from `start`, which nothing reaches across, are one last-level table (true), or
/// one leaf or nothing above that (false).
fn chunk_at(kernel: &Kernel, tree: &mut dyn Tree, start: u64) -> (u64, bool) {
    let size = kernel.geometry.page_size();
    let mut level = kernel.geometry.start_level();
    // An entry that is a table goes on below.
    let seen = tree.visit(VirtualAddress(start), kernel.page(), &mut |entry| {
        if entry.kind == Kind::Table {
            level = entry.level.next();
        }
        true
    });
    match (seen, level.is_last()) {
        (Ok(()), true) => (size.entry_bytes(Level::L2), true),
        (Ok(()), false) => (size.entry_bytes(level), false),
        // Not an address of this half: no table is there.
        (Err(_), _) => (u64::MAX - start, false),
    }
}

/// Merges what ends where a chunk ended, from the smallest on: blocks of a whole table, groups of
/// blocks. It may begin before what is left of the note, but not before the note: notes are whole
/// leaves of the largest size.
fn larger(
    kernel: &Kernel,
    live: &Live,
    tree: &mut dyn Tree,
    chunk: u64,
    end: u64,
    merged: &mut Merged,
) {
    let size = kernel.geometry.page_size();
    let mut sizes: ArrayVec<LeafSize, 10> = kernel.geometry.leaf_sizes().collect();
    sizes.reverse();
    for leaf in sizes {
        if leaf.level.is_last() || end & (leaf.bytes - 1) != 0 {
            continue;
        }
        let start = end.wrapping_sub(leaf.bytes);
        // It is, or is in, a leaf of that size.
        if start >= chunk && leaf.bytes <= end - chunk {
            continue;
        }
        if live.meets_pool(start, leaf.bytes) {
            continue;
        }
        // A block comes of one table that holds no table, a group of leaves beside each other:
        // where there are tables below those there is nothing to merge, and much to look at.
        let below = size.entry_bytes(leaf.level);
        let mut tables = 0u32;
        let seen = tree.visit(VirtualAddress(start), leaf.bytes, &mut |entry| {
            let on_the_way = entry.bytes > below || (entry.bytes == below && !leaf.contiguous);
            tables += u32::from(entry.kind == Kind::Table && !on_the_way);
            on_the_way
        });
        if seen.is_ok() && tables == 0 {
            let start = VirtualAddress(start);
            add(merged, tree.merge(start, leaf.bytes, kernel.leaves));
        }
    }
}

/// Merges in a range of the linear map, which ends below the last address, but not across guard
/// pages.
fn around_pools(
    kernel: &Kernel,
    live: &Live,
    tree: &mut dyn Tree,
    range: Range<u64>,
) -> Result<Merged, TableError> {
    let mut all = Merged::default();
    let mut at = range.start;
    while at < range.end {
        let inside = |pool: &&Range<u64>| pool.end > at && pool.start < range.end;
        let pool = live
            .pools
            .iter()
            .filter(inside)
            .min_by_key(|pool| pool.start);
        let (end, next) = match pool {
            Some(pool) => (pool.start.max(at), pool.end),
            None => (range.end, range.end),
        };
        let merged = tree.merge(VirtualAddress(at), end - at, kernel.leaves)?;
        all.tables += merged.tables;
        all.groups += merged.groups;
        at = next;
    }
    Ok(all)
}
