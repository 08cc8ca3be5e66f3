//! Memory that runs out where a test says: the n-th allocation that is made for a process, or every
//! one from the n-th on, fails. Nothing else lives here.
//!
//! `granule.test=scarce` on the command line gives programs a `prctl` of their own for it
//! ([`is_asked`]), so that one boot has as many rounds as a test wants: a parent forks a child, which
//! arms it and works until it runs out, and the parent counts the memory that is left. Allocations
//! count while they are made by a process that armed it or descends from one: frames, blocks of
//! them, and reservations for tables, of programs and of the kernel.

use crate::arch::cpu;
use crate::mm::hook::AllocationHook;
use crate::user::MOST_TASKS;
use crate::user::sched;
use crate::user::task::Task;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule_kcore::parameters::Parameters;

/// The first argument of the `prctl`: "GRAN" in ASCII, which no other has.
const WHAT: u64 = 0x4752_414e;

/// Whether programs may arm it.
static OFFERED: AtomicBool = AtomicBool::new(false);
/// Whether somebody has.
static ARMED: AtomicBool = AtomicBool::new(false);
/// The places of the tasks whose allocations count, a bit each.
static COUNTED: [AtomicU64; MOST_TASKS / 64] = [const { AtomicU64::new(0) }; MOST_TASKS / 64];
/// Allocations since it was armed.
static MADE: AtomicU64 = AtomicU64::new(0);
/// The first that fails, from 1.
static FIRST: AtomicU64 = AtomicU64::new(0);
/// Whether all behind it fail, too.
static ALL: AtomicBool = AtomicBool::new(false);

/// Offers it if the command line asks for that.
pub(super) fn open(parameters: &Parameters<'_>) {
    let asked = parameters.test.asks_for(b"scarce");
    OFFERED.store(asked, Ordering::Relaxed);
}

/// Whether a `prctl` with this first argument means it.
pub(super) fn is_asked(what: u64) -> bool {
    what == WHAT && OFFERED.load(Ordering::Relaxed)
}

/// From here on the `first` allocation for `task` and its children to come fails, and if `all` is
/// not 0 those behind it; none does if `first` is 0. Gives how many there were since the last time.
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

/// A child has what its parent has.
pub(super) fn inherit(parent: &Task, child: &Task) {
    mark(child.place(), counts(parent.place()));
}

/// The allocations that fail.
pub(super) struct Refusals;

impl AllocationHook for Refusals {
    fn refuses(&self) -> bool {
        ARMED.load(Ordering::Relaxed) && counted()
    }
}

#[cold]
fn counted() -> bool {
    let masked = cpu::mask_interrupts();
    let place = sched::current().map(Task::place);
    cpu::restore_interrupts(masked);
    if !place.is_some_and(counts) {
        return false;
    }
    let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
    let first = FIRST.load(Ordering::Relaxed);
    number == first || number > first && ALL.load(Ordering::Relaxed)
}
