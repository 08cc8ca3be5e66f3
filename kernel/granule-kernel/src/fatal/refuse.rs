//! Ends a boot that cannot continue with the MMU on. One line gives the reason.

use crate::arch::cpu;
use crate::dev::console::{self, println};
use crate::dev::psci;
use crate::handover::boot_record::{self, Reason};
use crate::trace::recorder;
use core::fmt::{self, Write};
use granule_kcore::line::Line;

/// Prints why, and powers off.
pub(crate) fn refuse(why: fmt::Arguments<'_>) -> ! {
    end("refused", Reason::Refused, why)
}

/// The value, unless the boot cannot continue without it.
pub(crate) fn unless_ok<T, E: fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| refuse(format_args!("{error}")))
}

/// Prints what the self-check found, and powers off.
pub(crate) fn self_check_failed(what: fmt::Arguments<'_>) -> ! {
    end("self-check-failed", Reason::SelfCheck, what)
}

fn end(outcome: &str, reason: Reason, why: fmt::Arguments<'_>) -> ! {
    let mut line = Line::<200>::new();
    // Text that does not fit is cut off here; the console has all of it.
    let _ = line.write_fmt(why);
    // Before the first access to the console, which may be the cause.
    boot_record::finished(Some((reason, line.bytes())));
    println!("granule: {outcome}: {why}");
    println!("@granule outcome={outcome}");
    println!("@granule reason={why}");
    println!("@granule end");
    recorder::finish(false);
    console::flush();
    psci::system_off();
    cpu::halt()
}
