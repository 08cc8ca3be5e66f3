//! The console lines about kexec that a program can cause. Each kind has its own rate limit, so an
//! endless repetition of one line does not hide the others.

use crate::arch::cpu;
use crate::dev::console::println;
use crate::lock::Lock;
use granule_kcore::rate_limit::RateLimit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A next kernel was loaded.
    Loaded,
    /// The call itself: descriptors, flags, magic numbers, the command line.
    Call,
    /// The image is invalid.
    Image,
    /// The place of a segment.
    Place,
    /// No memory for bookkeeping.
    Memory,
    /// No pages for the segments.
    Pages,
    /// No pages for the transition.
    Over,
    /// The machine's device tree, or the machine itself.
    Machine,
    /// Another caller is loading or leaving.
    Busy,
    /// The next kernel is loaded, but leaving for it was refused.
    Stays,
}

const KINDS: usize = Subject::Stays as usize + 1;

/// Prints a line of `kind`, if its rate limit allows it.
pub(crate) fn say(kind: Subject, say: impl FnOnce()) {
    static LIMITS: Lock<[RateLimit; KINDS]> = Lock::new([RateLimit::NEW; KINDS]);

    let now = cpu::counter_now();
    let permit = LIMITS.with(|limits| limits.get_mut(kind as usize)?.take(now, cpu::cntfrq_el0()));
    let Some(permit) = permit else { return };
    if permit.left_out > 0 {
        println!(
            "granule: kexec: {} lines as the next one were left out",
            permit.left_out
        );
    }
    say();
    if permit.last {
        println!("granule: kexec: more lines as this one come once a second at most");
    }
}
