//! The limit of the number of areas: `limit [AREAS]`, 65530 by default. A call that would make more changes nothing.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::memory::mapped;
use super::page;
use crate::check;
use granule_programs::calls::{
    self, ENOMEM, MMAP, PROT_READ, READ_WRITE, call, fork, map, protect, say, unmap, wait,
};
use granule_programs::start::{Start, number};

const DEFAULT: u64 = 65_530;
/// Areas that the program has besides, at most.
const OWN: u64 = 16;
const PROT_EXEC: u64 = 4;
const MADV_NOHUGEPAGE: u64 = 15;
const PRIVATE_ANONYMOUS_FIXED: u64 = 0x32;

pub(super) fn limit(start: Start) {
    let page = page(start);
    let most = match number(start.argument(2)) {
        0 => DEFAULT,
        most => most,
    };
    let bytes = (most + 8) * page;
    let at = mapped(bytes);
    // Every other page becomes an area, and the page before it too.
    let (mut areas, mut next) = (1, at + page);
    let refused = loop {
        let done = protect(next, page, PROT_READ);
        if done != 0 {
            break done;
        }
        (areas, next) = (areas + 2, next + 2 * page);
        check!(areas <= most, "{areas} areas");
    };
    check!(
        refused == ENOMEM && areas + OWN > most,
        "{refused} after {areas} areas"
    );
    // With the last page there is one more, if there was room for one.
    let last = protect(at + bytes - page, page, PROT_READ);
    check!(last == 0 || last == ENOMEM, "mprotect: {last}");
    let value = next as *mut u64;
    // SAFETY: memory that the test mapped, and that is writable if nothing changed.
    unsafe { value.write_volatile(7) };
    let hole = unmap(next, page);
    let fixed = [next, page, PROT_READ, PRIVATE_ANONYMOUS_FIXED, u64::MAX, 0];
    let fixed = call(MMAP, fixed);
    let other = map(page, PROT_READ | PROT_EXEC).err().unwrap_or(0);
    let advised = call(calls::MADVISE, [next, page, MADV_NOHUGEPAGE]);
    check!(
        [hole, fixed, other, advised] == [ENOMEM; 4],
        "munmap {hole}, mmap {fixed} and {other}, madvise {advised}"
    );
    // SAFETY: as above.
    let kept = unsafe { value.read_volatile() };
    check!(kept == 7, "{kept}");
    // A child has as many.
    let pid = fork();
    if pid == 0 {
        // SAFETY: as above.
        unsafe { value.write_volatile(8) };
        let refused = protect(next, page, PROT_READ);
        calls::exit(i32::from(refused != ENOMEM));
    }
    check!(wait(pid) == Ok((pid, 0)), "a child with as many");
    // Fewer are allowed, and then more again.
    check!(protect(at, bytes, READ_WRITE) == 0, "all of it");
    check!(protect(next, page, PROT_READ) == 0, "one again");
    check!(unmap(at, bytes) == 0, "munmap");
    say(format_args!("limited\n"));
}
