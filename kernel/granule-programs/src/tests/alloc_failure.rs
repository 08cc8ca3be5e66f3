//! Allocation-failure injection (`granule.test=alloc-failure`): a child makes calls of every kind while the
//! n-th allocation fails, or every one from the n-th on. The child gets an error or is ended, and all its
//! pages are free afterwards.
//!
//! The second argument is the step from one n to the next, 1 if it is missing.

use super::files::run;
use super::memory::{get, mapped, set};
use super::processes::{forked, status_of};
use super::{number, page};
use crate::{check, check_eq};
use core::sync::atomic::{AtomicU64, Ordering};
use granule_programs::calls::{
    self, CLOSE, HERE, KILL, OPENAT, PIPE2, PRCTL, READ, RT_SIGACTION, SETSID, SIGALTSTACK,
    SYSINFO, call, map, protect, say, unmap,
};
use granule_programs::start::Start;

/// The kernel's number for the injection: see its `selftest::alloc_failure`.
const INJECTION: u64 = 0x4752_414e;

/// Makes allocation number `first` fail, and every later one if `all` is not 0. Returns the number of
/// allocations since the last call.
pub(super) fn arm(first: u64, all: u64) -> i64 {
    call(PRCTL, [INJECTION, first, all])
}

/// Bytes of RAM that are free.
pub(super) fn free() -> u64 {
    let mut info = [0_u64; 16];
    check_eq!(call(SYSINFO, [info.as_mut_ptr() as u64]), 0, "sysinfo");
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

fn mapped_if_possible(bytes: u64) -> Option<u64> {
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
    let Some(at) = mapped_if_possible(8 * page) else {
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
        check_eq!(get(at + index * page), index + 1, "page {index}");
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
        if !went_well(call(PIPE2, [both.as_mut_ptr() as u64])) {
            continue;
        }
        let [out, into] = both.map(u64::from);
        let wrote = call(calls::WRITE, [into, at, 3000]);
        if went_well(wrote) {
            let to = at + (5 + round) * page;
            let got = call(READ, [out, to, 3000]);
            if went_well(got) {
                check!(
                    got == wrote && get(to) == 1,
                    "a pipe gave {got}: {}",
                    get(to)
                );
            }
        }
        for end in both {
            check_eq!(call(CLOSE, [end.into()]), 0, "close");
        }
    }
}

/// So many areas that their list grows, and holes in them.
fn areas(page: u64) {
    let Some(at) = mapped_if_possible(70 * page) else {
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
    let Some(at) = mapped_if_possible(0x1_0000 + page) else {
        return;
    };
    let stack = [at, 0, 0x1_0000];
    check_eq!(call(SIGALTSTACK, [stack.as_ptr() as u64]), 0, "sigaltstack");
    // SA_ONSTACK.
    let action = [count as *const () as u64, 0x0800_0000, 0, 0];
    check_eq!(
        call(RT_SIGACTION, [10, action.as_ptr() as u64, 0, 8]),
        0,
        "rt_sigaction"
    );
    let before = RAN.load(Ordering::Relaxed);
    let own = call(calls::GETPID, []) as u64;
    check_eq!(call(KILL, [own, 10]), 0, "kill");
    check!(RAN.load(Ordering::Relaxed) == before + 1, "no handler ran");
}

fn heap(page: u64) {
    let begin = call(calls::BRK, []) as u64;
    let end = begin + 2 * page;
    if call(calls::BRK, [end]) as u64 == end {
        set(end - 8, 3);
        check!(get(end - 8) == 3, "the heap");
        call(calls::BRK, [begin]);
    }
}

fn files(at: u64, page: u64) {
    let path = c"/init".as_ptr() as u64;
    let fd = call(OPENAT, [HERE, path]);
    if went_well(fd) {
        went_well(call(READ, [fd as u64, at + 7 * page, 64]));
        call(CLOSE, [fd as u64]);
    }
}

/// A program in the place of a child.
fn programs() {
    let pid = calls::fork();
    if pid == 0 {
        let failed = run(b"/init\0", &[b"init\0", b"exit\0", b"5\0"]).into();
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
        call(SETSID, []);
        arm(first, all);
        work(page)
    });
    let status = status_of(pid);
    let made = arm(0, 0);
    // Children that the process left.
    call(KILL, [pid.wrapping_neg() as u64, 9]);
    while calls::wait(-1).is_ok() {}
    (status, made)
}

/// A page is so much less that is free, also where a frame has room for several.
fn one_page(page: u64) {
    let at = mapped(2 * page);
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
            check_eq!(
                free(),
                before,
                "allocation {first} fails, {behind}: bytes that are free"
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
