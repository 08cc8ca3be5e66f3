//! Allocation-failure injection (`granule.test=alloc-failure`): a child makes calls of every kind while the
//! n-th allocation fails, or every one from the n-th on. The child gets an error or is ended, and all its
//! pages are free afterwards.
//!
//! The second argument is the step from one n to the next, 1 if it is missing.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::processes::{forked, status_of};
use super::{number, page};
use crate::check;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_programs::calls::{self, call, map, protect, say, unmap};
use granule_programs::start::Start;

const OPENAT: u64 = 56;
const CLOSE: u64 = 57;
const PIPE2: u64 = 59;
const READ: u64 = 63;
const KILL: u64 = 129;
const SIGALTSTACK: u64 = 132;
const RT_SIGACTION: u64 = 134;
const SETSID: u64 = 157;
const PRCTL: u64 = 167;
const SYSINFO: u64 = 179;
const EXECVE: u64 = 221;
const HERE: u64 = -100_i64 as u64;

/// The kernel's number for the injection: see its `selftest::alloc_failure`.
const INJECTION: u64 = 0x4752_414e;

/// Makes allocation number `first` fail, and every later one if `all` is not 0. Returns the number of
/// allocations since the last call.
pub(super) fn arm(first: u64, all: u64) -> i64 {
    call(PRCTL, [INJECTION, first, all, 0, 0, 0])
}

/// Bytes of RAM that are free.
pub(super) fn free() -> u64 {
    let mut info = [0_u64; 16];
    let result = call(SYSINFO, [info.as_mut_ptr() as u64, 0, 0, 0, 0, 0]);
    check!(result == 0, "sysinfo: {result}");
    info[5]
}

/// Checks that a call succeeded, or failed for want of memory; false then.
#[track_caller]
fn went_well(result: i64) -> bool {
    // EAGAIN, ENOMEM, ENFILE.
    check!(
        result >= 0 || matches!(result, -11 | -12 | -23),
        "without memory: {result} at {}",
        core::panic::Location::caller()
    );
    result >= 0
}

fn get(address: u64) -> u64 {
    // SAFETY: memory that this test mapped.
    unsafe { (address as *const u64).read_volatile() }
}

fn set(address: u64, value: u64) {
    // SAFETY: as above; without memory this process ends, which is the point.
    unsafe { (address as *mut u64).write_volatile(value) };
}

fn mapped(bytes: u64) -> Option<u64> {
    match map(bytes, calls::READ_WRITE) {
        Ok(at) => Some(at),
        Err(error) => {
            went_well(error);
            None
        }
    }
}

static RAN: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: u64) {
    RAN.fetch_add(1, Ordering::Relaxed);
}

/// Something of everything that takes memory.
fn work(page: u64) -> i32 {
    let Some(at) = mapped(8 * page) else {
        return 0;
    };
    for index in 0..4 {
        set(at + index * page, index + 1);
    }
    copies(at, page);
    pipes(at, page);
    areas(page);
    handler(page);
    heap(page);
    files(at, page);
    programs();
    for index in 0..4 {
        let found = get(at + index * page);
        check!(found == index + 1, "page {index} has {found:#x}");
    }
    0
}

/// A child, its copies, the parent's.
fn copies(at: u64, page: u64) {
    let pid = calls::fork();
    if pid == 0 {
        for index in 0..3 {
            check!(get(at + index * page) == index + 1, "the child's page");
            set(at + index * page, 99);
        }
        calls::exit(4);
    }
    set(at + page, 2);
    if went_well(pid) {
        let status = status_of(pid);
        check!(status == 4 << 8 || status == 9, "the child: {status:#x}");
    }
}

/// Bytes through two pipes, the last of them into memory that was not there.
fn pipes(at: u64, page: u64) {
    for round in 0..2 {
        let mut both = [0_u32; 2];
        if !went_well(call(PIPE2, [both.as_mut_ptr() as u64, 0, 0, 0, 0, 0])) {
            continue;
        }
        let [out, into] = both.map(u64::from);
        let wrote = call(calls::WRITE, [into, at, 3000, 0, 0, 0]);
        if went_well(wrote) {
            let to = at + (5 + round) * page;
            let got = call(READ, [out, to, 3000, 0, 0, 0]);
            if went_well(got) {
                check!(
                    got == wrote && get(to) == 1,
                    "a pipe gave {got}: {}",
                    get(to)
                );
            }
        }
        for end in both {
            let closed = call(CLOSE, [end.into(), 0, 0, 0, 0, 0]);
            check!(closed == 0, "close: {closed}");
        }
    }
}

/// So many areas that their list grows, and holes in them.
fn areas(page: u64) {
    let Some(at) = mapped(70 * page) else {
        return;
    };
    for index in (0..70).step_by(2) {
        went_well(protect(at + index * page, page, 1));
    }
    set(at + page, 5);
    went_well(unmap(at + 2 * page, page));
    check!(get(at + page) == 5, "beside a hole");
    let _ = unmap(at, 70 * page);
}

/// A handler on a stack that was not there.
fn handler(page: u64) {
    let Some(at) = mapped(0x1_0000 + page) else {
        return;
    };
    let stack = [at, 0, 0x1_0000];
    let set = call(SIGALTSTACK, [stack.as_ptr() as u64, 0, 0, 0, 0, 0]);
    check!(set == 0, "sigaltstack: {set}");
    // SA_ONSTACK.
    let action = [count as *const () as u64, 0x0800_0000, 0, 0];
    let set = call(RT_SIGACTION, [10, action.as_ptr() as u64, 0, 8, 0, 0]);
    check!(set == 0, "rt_sigaction: {set}");
    let before = RAN.load(Ordering::Relaxed);
    let own = call(calls::GETPID, [0; 6]) as u64;
    let sent = call(KILL, [own, 10, 0, 0, 0, 0]);
    check!(sent == 0, "kill: {sent}");
    check!(RAN.load(Ordering::Relaxed) == before + 1, "no handler ran");
}

fn heap(page: u64) {
    let begin = call(calls::BRK, [0; 6]) as u64;
    let end = begin + 2 * page;
    if call(calls::BRK, [end, 0, 0, 0, 0, 0]) as u64 == end {
        set(end - 8, 3);
        check!(get(end - 8) == 3, "the heap");
        call(calls::BRK, [begin, 0, 0, 0, 0, 0]);
    }
}

fn files(at: u64, page: u64) {
    let path = c"/init".as_ptr() as u64;
    let fd = call(OPENAT, [HERE, path, 0, 0, 0, 0]);
    if went_well(fd) {
        went_well(call(READ, [fd as u64, at + 7 * page, 64, 0, 0, 0]));
        call(CLOSE, [fd as u64, 0, 0, 0, 0, 0]);
    }
}

/// A program in the place of a child.
fn programs() {
    let pid = calls::fork();
    if pid == 0 {
        let words = [c"init", c"exit", c"5"].map(|word| word.as_ptr() as u64);
        let list = [words[0], words[1], words[2], 0];
        let failed = call(
            EXECVE,
            [c"/init".as_ptr() as u64, list.as_ptr() as u64, 0, 0, 0, 0],
        );
        check!(!went_well(failed), "execve came back with {failed}");
        calls::exit(6);
    }
    if went_well(pid) {
        let status = status_of(pid);
        check!(
            matches!(status, 0x500 | 0x600 | 9),
            "who ran a program: {status:#x}"
        );
    }
}

/// One child, which works with the `first` allocation failing; how it ended, and how many there
/// were.
fn round(page: u64, first: u64, all: u64) -> (u32, i64) {
    let pid = forked(|| {
        call(SETSID, [0; 6]);
        arm(first, all);
        work(page)
    });
    let status = status_of(pid);
    let made = arm(0, 0);
    // Children that the process left.
    call(KILL, [pid.wrapping_neg() as u64, 9, 0, 0, 0, 0]);
    while calls::wait(-1).is_ok() {}
    (status, made)
}

/// A page is so much less that is free, also where a frame has room for several.
fn one_page(page: u64) {
    let at = mapped(2 * page).unwrap_or(0);
    set(at, 1);
    let before = free();
    set(at + page, 1);
    let taken = before - free();
    check!(taken == page, "a page takes {taken} bytes");
    check!(unmap(at, 2 * page) == 0, "munmap");
}

pub(super) fn every_allocation(start: Start) {
    let page = page(start);
    let step = number(start.argument(2)).max(1);
    check!(arm(0, 0) == 0, "not offered: granule.test=alloc-failure");
    one_page(page);
    let (status, all) = round(page, u64::MAX, 0);
    check!(
        status == 0 && all > 20,
        "with memory: {status:#x}, {all} allocations"
    );
    let before = free();
    let (mut well, mut ended, mut faulted, mut reached, mut rounds) = (0, 0, 0, 0, 0);
    for first in (1..=all as u64).step_by(step as usize) {
        for behind in [0, 1] {
            let (status, made) = round(page, first, behind);
            match status {
                0 => well += 1,
                9 => ended += 1,
                // A handler's stack.
                11 => faulted += 1,
                _ => check!(false, "allocation {first} fails, {behind}: {status:#x}"),
            }
            rounds += 1;
            reached += u64::from(made >= first as i64);
            let now = free();
            check!(
                now == before,
                "allocation {first} fails, {behind}: {before} bytes were free, now {now}"
            );
        }
    }
    check!(
        reached * 10 >= rounds * 9,
        "{reached} of {rounds} rounds ran out"
    );
    check!(ended > 0 && well > 0, "{well} went on, {ended} ended");
    say(format_args!(
        "{all} allocations, {rounds} rounds: {well} went on, {ended} ended, {faulted} had no stack\n"
    ));
    say(format_args!("alloc-failure\n"));
}
