//! Times of work by the virtual counter, and the lines that report them.
//!
//! No program reads the counter for anything else, so that a reader that counts them from outside
//! finds each piece of work: the one with the number `at` lies between the readings `2 * at` and `2 *
//! at + 1` of all that the program made.

#![allow(unsafe_code, reason = "reads of counters")]

use core::arch::asm;
use core::cmp::Ordering;
use core::fmt::Display;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use granule_programs::calls::say;

/// The time of a piece of work, and its number.
#[derive(Clone, Copy, Default)]
pub(crate) struct Took {
    pub(crate) ticks: u64,
    at: u64,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Does it, and takes the time.
#[inline(always)]
pub(crate) fn timed<T>(what: impl FnOnce() -> T) -> (Took, T) {
    let begun = now();
    let result = what();
    let ticks = now() - begun;
    (took(ticks), result)
}

/// The next piece of work, whose time a program that this one waited for has taken.
pub(crate) fn took(ticks: u64) -> Took {
    let at = NEXT.fetch_add(1, Relaxed);
    Took { ticks, at }
}

/// Returns the number of timed pieces of work.
pub(crate) fn pieces() -> u64 {
    NEXT.load(Relaxed)
}

/// Prints a line for all the times of a kind of work: `bench NAME best=1 median=2 worst=3 at=0`,
/// with the number of the fastest, the first of them if there are several.
pub(crate) fn print(name: impl Display, times: &mut [Took]) {
    times.sort_unstable_by(|one, other| match one.ticks.cmp(&other.ticks) {
        Ordering::Equal => one.at.cmp(&other.at),
        order => order,
    });
    let (Some(best), Some(worst)) = (times.first(), times.last()) else {
        return;
    };
    let median = times.get(times.len() / 2).map_or(0, |took| took.ticks);
    say(format_args!(
        "bench {name} best={} median={median} worst={} at={}\n",
        best.ticks, worst.ticks, best.at
    ));
}

/// The virtual counter, which EL0 may read on Linux as here.
fn now() -> u64 {
    let now: u64;
    // SAFETY: reads a counter, in order with what comes before.
    unsafe {
        asm!("isb", "mrs {}, cntvct_el0", out(reg) now, options(nostack, preserves_flags));
    }
    now
}

pub(crate) fn frequency() -> u64 {
    let frequency: u64;
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nostack, preserves_flags));
    }
    frequency
}
