//! The lines about kexec that a program can cause, each kind under a limit of its own, so that a line
//! that is caused without end does not hide the others.

use crate::arch::cpu;
use crate::dev::console::println;
use crate::lock::Lock;
use granule_kcore::rate_limit::RateLimit;

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A next kernel is loaded.
    Loaded,
    /// The call itself: descriptors, flags, numbers, the command line.
    Call,
    /// The image is none.
    Image,
    /// A segment's place.
    Place,
    /// No memory for what is to be known.
    Memory,
    /// No pages for the segments.
    Pages,
    /// No pages for what leads over.
    Over,
    /// The machine's tree or the machine itself.
    Machine,
    /// Somebody else is at it.
    Busy,
    /// It is loaded, and not left for.
    Stays,
}

const KINDS: usize = Kind::Stays as usize + 1;

/// Prints a line of a kind, if its limit allows that.
pub(crate) fn say(kind: Kind, say: impl FnOnce()) {
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
