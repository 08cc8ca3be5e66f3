//! The content of programs' files: one copy for all programs that run it, at once and later, until memory is short.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::alloc_failure::free;
use super::page;
use super::processes::{forked, status_of};
use crate::check;
use core::ffi::CStr;
use granule_programs::calls::{self, EXECVE, call, map, say};
use granule_programs::start::{Start, number};

/// Another program than this one, with words that it ends by at once.
const OTHER: &CStr = c"/other";

/// A child that executes the other program.
fn other() -> i64 {
    forked(|| {
        let arguments = [OTHER.as_ptr() as u64, c"none".as_ptr() as u64, 0];
        let path = OTHER.as_ptr() as u64;
        call(EXECVE, [path, arguments.as_ptr() as u64, 0, 0, 0, 0]) as i32
    })
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
        let status = status_of(child);
        check!(status == ends << 8, "the other program: {status:#x}");
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
        let at = map(1 << 34, calls::READ_WRITE).unwrap_or(0);
        for address in (at..).step_by(page as usize) {
            // SAFETY: just mapped; without memory this process ends, which is the point.
            unsafe { (address as *mut u64).write_volatile(1) };
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
