//! Memory: mapped, unmapped, protected, grown, used up.

#![allow(unsafe_code, reason = "memory that the test mapped, and faults")]

use super::page;
use crate::{check, check_eq};
use granule_programs::calls::{self, EINVAL, ENOMEM, call, fork, map, protect, say, unmap, wait};
use granule_programs::start::Start;

/// Whether an access of a child to `address` ends it by SIGSEGV.
fn faults(address: u64, write: bool) -> bool {
    let pid = fork();
    if pid == 0 {
        let at = address as *mut u8;
        // SAFETY: the parent's memory, or it is to fault.
        unsafe {
            if write {
                at.write_volatile(1);
            } else {
                at.read_volatile();
            }
        }
        calls::exit(0);
    }
    match wait(pid) {
        Ok((_, status)) => {
            check!(
                status == 0 || status == 11,
                "status {status:#x} at {address:#x}"
            );
            status == 11
        }
        Err(error) => {
            check!(false, "wait: {error}");
            false
        }
    }
}

pub(super) fn memory(start: Start) {
    let page = page(start);
    let at = mapped(16 * page);
    check!(at != 0 && at.is_multiple_of(page), "mapped at {at:#x}");
    check!(!faults(at + 15 * page, true), "the last page");
    // A hole.
    check!(unmap(at + 4 * page, 2 * page) == 0, "munmap");
    check!(
        faults(at + 4 * page, false) && faults(at + 6 * page - 1, true),
        "a hole"
    );
    check!(
        !faults(at + 4 * page - 1, true) && !faults(at + 6 * page, true),
        "beside the hole"
    );
    // Read-only, and nothing at all.
    check!(protect(at, page, 1) == 0, "mprotect");
    check!(!faults(at, false) && faults(at, true), "read-only");
    check!(protect(at, page, 0) == 0, "mprotect");
    check!(faults(at, false), "no access");
    check!(protect(at, page, calls::READ_WRITE) == 0, "mprotect");
    check!(!faults(at, true), "writable again");
    check!(
        protect(at + 3 * page, 2 * page, 1) == ENOMEM,
        "mprotect over a hole"
    );
    // Arguments that make no sense.
    check!(unmap(at + 1, page) == EINVAL, "misaligned");
    check!(unmap(at, 0) == EINVAL, "nothing");
    check!(
        call(calls::MMAP, [at + 1, page, 3, 0x32]) == EINVAL,
        "fixed and misaligned"
    );
    check!(call(calls::MMAP, [0, page, 3, 0x32]) < 0, "the null page");
    check!(
        call(calls::MMAP, [0, u64::MAX, 3, 0x22]) == ENOMEM,
        "too much"
    );
    check!(
        call(calls::MMAP, [1 << 60, page, 3, 0x32]) == ENOMEM,
        "outside"
    );
    check!(unmap(1 << 63, page) == EINVAL, "the kernel's");
    check!(
        protect(0xffff_ffff_8000_0000, page, 3) == ENOMEM,
        "the kernel's"
    );
    for shared in [1, 3] {
        check!(
            call(calls::MMAP, [0, page, 3, 0x20 | shared]) == EINVAL,
            "shared memory, which there is not"
        );
    }
    // Over what is there, and zero again.
    set(at, 9);
    let over = call(calls::MMAP, [at, page, 3, 0x32]);
    check!(over == at as i64 && get(at) == 0, "mapped over: {over:#x}");
    set(at, 9);
    check!(call(calls::MADVISE, [at, page, 4]) == 0, "madvise");
    check!(get(at) == 0, "not needed, and still there");
    // Many areas: their list grows.
    for index in 0..200 {
        let one = mapped(2 * page);
        check!(one != 0 && protect(one, page, 1) == 0, "area {index}");
        set(one + page, index);
    }
    check!(!faults(at, true), "a fork of many areas");
    say(format_args!("mapped\n"));
}

/// The bytes that groups of every page size divide: the largest group.
const GROUP: u64 = 2 << 20;

/// Memory that is touched from its beginning to its end, so that its pages become groups; then what
/// cuts groups: other rights for one page, a hole, a child that writes.
pub(super) fn groups(start: Start) {
    let page = page(start);
    let found = mapped(4 * GROUP);
    let at = found.next_multiple_of(GROUP);
    let pages = 3 * GROUP / page;
    let of = |index: u64| at + index * page;
    let all = |from: u64, what: &str| {
        for index in from..pages {
            check_eq!(get(of(index)), index + 1, "{what}: page {index}");
        }
    };
    for index in 0..pages {
        set(of(index), index + 1);
    }
    all(0, "touched");
    // One page of the first group cannot be written, its neighbours can.
    check!(protect(of(5), page, 1) == 0, "mprotect");
    check!(faults(of(5), true), "a page of a group, read-only");
    check!(!faults(of(4), true) && !faults(of(6), true), "beside it");
    check!(protect(of(5), page, 3) == 0, "mprotect");
    set(of(5), 6);
    all(0, "writable again");
    // A child writes one page of the last group, and sees the others of before.
    let last = pages - 3;
    let pid = fork();
    if pid == 0 {
        set(of(last), 0);
        for index in 0..pages {
            let expected = if index == last { 0 } else { index + 1 };
            check!(get(of(index)) == expected, "the child's page {index}");
        }
        calls::exit(0);
    }
    check!(matches!(wait(pid), Ok((_, 0))), "the child");
    all(0, "after a child wrote");
    // All of it again, which nobody shares any more.
    for index in 0..pages {
        set(of(index), index + 1);
    }
    // A hole that begins and ends within groups.
    check!(unmap(of(0), 3 * page) == 0, "munmap");
    check!(faults(of(2), false) && !faults(of(3), true), "a hole");
    set(of(3), 4);
    all(3, "after a hole");
    say(format_args!("grouped\n"));
}

/// VMAs with other rights beside each other, in what was one group of pages: each has its own
/// rights, whatever is written, goes, and comes again.
pub(super) fn areas(start: Start) {
    let page = page(start);
    for index in [0, 7] {
        let pid = fork();
        if pid == 0 {
            calls::exit(beside(page, index));
        }
        check_eq!(wait(pid), Ok((pid, 11)), "what is read-only was written");
    }
    say(format_args!("apart\n"));
}

/// Writes, at last, to a page that is read-only.
fn beside(page: u64, index: u64) -> i32 {
    // Whole groups of any page size.
    let bytes = 4 << 20;
    let at = mapped(bytes);
    for number in 0..bytes / page {
        set(at + number * page, number + 1);
    }
    check!(protect(at, bytes, 1) == 0, "mprotect");
    // The first part of a group may be written again.
    let cut = at + (2 << 20) - 8 * page;
    check!(protect(at, cut - at, calls::READ_WRITE) == 0, "mprotect");
    // A page of its second part goes, and comes again.
    let one = cut + index * page;
    let gone = call(calls::MADVISE, [one, page, 4]);
    check!(gone == 0 && get(one) == 0, "madvise: {gone}");
    set(cut - page, 7);
    check!(get(cut - page) == 7, "what may be written");
    set(one, 9);
    0
}

/// Memory that can be read and written, zero at first.
pub(super) fn mapped(bytes: u64) -> u64 {
    let found = map(bytes, calls::READ_WRITE);
    check!(found.is_ok(), "{bytes} bytes cannot be mapped: {found:?}");
    found.unwrap_or(0)
}

pub(super) fn get(address: u64) -> u64 {
    // SAFETY: memory that the test mapped.
    unsafe { (address as *const u64).read_volatile() }
}

/// Writes a word. A process that has no memory for it ends.
pub(super) fn set(address: u64, value: u64) {
    // SAFETY: as above, and nobody else has it.
    unsafe { (address as *mut u64).write_volatile(value) };
}

fn brk(to: u64) -> u64 {
    call(calls::BRK, [to]) as u64
}

pub(super) fn heap(start: Start) {
    let page = page(start);
    let begin = brk(0);
    check!(begin != 0, "no heap");
    check!(brk(begin + 100) == begin + 100, "a little");
    set(begin, 1);
    check!(brk(begin + 20 * page + 8) == begin + 20 * page + 8, "more");
    check!(get(begin) == 1, "lost");
    set(begin + 20 * page, 2);
    check!(
        brk(begin - 1) == begin + 20 * page + 8,
        "below its beginning"
    );
    check!(brk(u64::MAX) == begin + 20 * page + 8, "everything");
    check!(brk(begin + page) == begin + page, "less");
    check!(faults(begin + 20 * page, false), "what was given back");
    check!(brk(begin + 21 * page) == begin + 21 * page, "again");
    check!(get(begin + 20 * page) == 0, "not zero");
    say(format_args!("grown\n"));
}

/// Uses up all memory, in a child: that is ended or refused, the others go on.
pub(super) fn full(start: Start) {
    let page = page(start);
    for _ in 0..2 {
        let pid = fork();
        if pid == 0 {
            let huge = mapped(1 << 34);
            let mut at = huge;
            loop {
                set(at, 1);
                at += page;
            }
        }
        let end = wait(pid);
        check!(
            matches!(end, Ok((_, 9))),
            "who uses up all memory ends by {end:?}"
        );
    }
    let at = mapped(page);
    set(at, 1);
    say(format_args!("filled\n"));
}
