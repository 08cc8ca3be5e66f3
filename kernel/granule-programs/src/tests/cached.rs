//! The content of programs' files: one copy for all programs that run it, at once and later, until memory is short.

use super::alloc_failure::free;
use super::files::run;
use super::memory::{mapped, set};
use super::page;
use super::processes::{forked, status_of};
use crate::{check, check_eq};
use granule_programs::calls::say;
use granule_programs::start::{Start, number};

/// A child that executes another program than this one, with words that it ends by at once.
fn other() -> i64 {
    forked(|| run(b"/other\0", &[b"/other\0", b"none\0"]))
}

/// The second argument is the bytes of the other program's file, the third how it ends.
pub(super) fn cached(start: Start) {
    let page = page(start);
    let (bytes, ends) = (number(start.argument(2)), number(start.argument(3)) as u32);
    // What this process needs for children is there from here on.
    check!(status_of(forked(|| 0)) == 0, "a child");
    let before = free();
    let children = [0; 8].map(|_| other());
    for child in children {
        check_eq!(status_of(child), ends << 8, "the other program");
    }
    let after = free();
    let taken = before - after;
    // The last chunk is filled up, and there is the list of chunks.
    let most = bytes + 2 * (64 << 10);
    check!(
        (bytes..=most).contains(&taken),
        "a file of {bytes} bytes takes {taken}"
    );
    check!(status_of(other()) == ends << 8, "the other program again");
    check!(free() == after, "{after} bytes were free, now {}", free());
    // A process takes all memory there is, and is ended.
    let all = status_of(forked(|| {
        let at = mapped(1 << 34);
        for address in (at..).step_by(page as usize) {
            // Without memory this process ends, which is the point.
            set(address, 1);
        }
        0
    }));
    check!(all == 9, "who takes all memory: {all:#x}");
    check!(
        free() == before,
        "{before} bytes were free without the file, now {}",
        free()
    );
    check!(status_of(other()) == ends << 8, "the other program anew");
    check!(free() == after, "{after} bytes were free, now {}", free());
    say(format_args!("cached\n"));
}
