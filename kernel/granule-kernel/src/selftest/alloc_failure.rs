//! Allocation-failure injection: the n-th allocation for a process fails, or every one from the n-th on.
//! Nothing else lives here.
//!
//! `granule.test=alloc-failure` on the command line offers programs a `prctl` for it
//! ([`is_asked`]), so that one boot runs as many rounds as a test needs: a parent forks a child,
//! the child arms the injection and works until an allocation fails, and the parent counts the free
//! memory. An allocation counts if it is made by a process that armed the injection or descends
//! from one: frames, blocks of frames, and reservations for tables, of programs and of the kernel.

use crate::arch::cpu;
use crate::sched;
use crate::sched::MOST_TASKS;
use crate::task::task_table::Task;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule_kcore::parameters::Parameters;

/// The first argument of the `prctl`: "GRAN" in ASCII, which no other `prctl` uses.
const WHAT: u64 = 0x4752_414e;

/// Whether programs may arm the injection.
static OFFERED: AtomicBool = AtomicBool::new(false);
static ARMED: AtomicBool = AtomicBool::new(false);
/// One bit for each task whose allocations count, by the task's place.
static COUNTED: [AtomicU64; MOST_TASKS / 64] = [const { AtomicU64::new(0) }; MOST_TASKS / 64];
/// Allocations since the injection was armed.
static MADE: AtomicU64 = AtomicU64::new(0);
/// Number of the first allocation that fails, from 1.
static FIRST: AtomicU64 = AtomicU64::new(0);
/// Whether all later allocations fail too.
static ALL: AtomicBool = AtomicBool::new(false);

/// Offers the injection if the command line requests it.
pub(super) fn open(parameters: &Parameters<'_>) {
    let asked = parameters.test.asks_for(b"alloc-failure");
    OFFERED.store(asked, Ordering::Relaxed);
}

/// Whether a `prctl` with this first argument is for the injection.
pub(super) fn is_asked(what: u64) -> bool {
    what == WHAT && OFFERED.load(Ordering::Relaxed)
}

/// Arms the injection for `task` and its future children: allocation number `first` fails, and if `all` is
/// not 0 every later one too. None fails if `first` is 0. Returns the number of allocations since the last
/// call.
pub(super) fn arm(task: &Task, first: u64, all: u64) -> u64 {
    ARMED.store(false, Ordering::SeqCst);
    for word in &COUNTED {
        word.store(0, Ordering::Relaxed);
    }
    let made = MADE.swap(0, Ordering::Relaxed);
    FIRST.store(first, Ordering::Relaxed);
    ALL.store(all != 0, Ordering::Relaxed);
    if first != 0 {
        mark(task.place(), true);
        ARMED.store(true, Ordering::SeqCst);
    }
    made
}

fn mark(place: usize, counts: bool) {
    let Some(word) = COUNTED.get(place / 64) else {
        return;
    };
    let bit = 1 << (place % 64);
    if counts {
        word.fetch_or(bit, Ordering::Relaxed);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

fn counts(place: usize) -> bool {
    let word = COUNTED.get(place / 64);
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (place % 64) & 1 != 0)
}

/// A child inherits its parent's setting.
pub(super) fn inherit(parent: &Task, child: &Task) {
    mark(child.place(), counts(parent.place()));
}

/// The hook: whether the next allocation must fail.
pub(super) static REFUSES: fn() -> bool = || ARMED.load(Ordering::Relaxed) && counted();

#[cold]
fn counted() -> bool {
    let masked = cpu::mask_interrupts();
    let place = sched::current();
    cpu::restore_interrupts(masked);
    if !place.is_some_and(counts) {
        return false;
    }
    let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
    let first = FIRST.load(Ordering::Relaxed);
    number == first || number > first && ALL.load(Ordering::Relaxed)
}
