//! Signals that come while processes are between two states: being forked, waiting for the process
//! that has their memory, left behind by a parent that never waited.

#![allow(unsafe_code, reason = "children on other stacks")]

use super::files::{close, pipe, read, write};
use super::hostile::{End, end_of};
use super::memory::mapped;
use super::processes::{forked, status_of};
use super::signals::{
    SIGCHLD, SIGUSR1, block, count, handle, kill, pid, ran, sleep_ms, timed_wait,
};
use crate::{check, check_eq};
use core::arch::asm;
use granule_programs::calls::{
    self, KILL, RT_SIGACTION, SETSID, SIGKILL, WNOHANG, call, say, wait,
};
use granule_programs::start::Start;

/// The number of times that the tests look whether something has happened, ten milliseconds apart,
/// before they take it that it never will.
const LOOKS: u32 = 1000;

/// Polls `there` until it is true; false if it never is.
fn comes(mut there: impl FnMut() -> bool) -> bool {
    for _ in 0..LOOKS {
        if there() {
            return true;
        }
        sleep_ms(10);
    }
    false
}

/// Whether a process or group can be sent to.
fn is_there(pid: i64) -> bool {
    call(KILL, [pid as u64]) == 0
}

/// Forgets children that have ended.
fn reap() {
    while call(calls::WAIT4, [u64::MAX, 0, WNOHANG]) > 0 {}
}

fn lead_a_group() {
    check_eq!(call(SETSID, []), pid(), "setsid");
}

/// A group in which everybody forks and ends at once dies by one signal, whomever it meets.
pub(super) fn comets(_: Start) {
    for round in 0..15 {
        let group = forked(|| {
            lead_a_group();
            loop {
                if calls::fork() > 0 {
                    return 0;
                }
            }
        });
        check!(comes(|| is_there(-group)), "no group {group}");
        for _ in 0..5 {
            sleep_ms(3);
            reap();
        }
        kill(-group, SIGKILL);
        let gone = || {
            reap();
            !is_there(-group)
        };
        check!(
            comes(gone),
            "round {round}: group {group} has outlived a SIGKILL"
        );
    }
    say(format_args!("burnt out\n"));
}

/// A fork that a signal with a handler comes upon is made all the same, once.
pub(super) fn pelted(_: Start) {
    // Without SA_RESTART: a fork does not need it.
    handle(SIGUSR1, count, 0);
    let parent = pid();
    let sender = forked(|| {
        for _ in 0..400 {
            kill(parent, SIGUSR1);
            for _ in 0..3 {
                call(calls::SCHED_YIELD, []);
            }
        }
        3
    });
    let mut children = 0;
    loop {
        let child = forked(|| 7);
        children += 1;
        let (found, status) = loop {
            match wait(-1) {
                Ok(found) => break found,
                Err(error) => check!(error == -4, "wait: {error}"),
            }
        };
        if found == sender {
            check!(status == 3 << 8, "the sender: {status:#x}");
            while let Err(error) = wait(child) {
                check!(error == -4, "wait for {child}: {error}");
            }
            break;
        }
        check!(
            (found, status) == (child, 7 << 8),
            "child {child}, found {found}: {status:#x}"
        );
    }
    check!(wait(-1) == Err(-10), "a child that fork did not return");
    check!(ran() > 0, "no handler ran beside {children} forks");
    say(format_args!("pelted\n"));
}

/// A parent that waits for the child that has its memory is ended by SIGKILL, and the child goes on.
pub(super) fn lender(_: Start) {
    let (out, into) = pipe(0);
    let stack = mapped(0x4_0000);
    let lender = forked(|| {
        lead_a_group();
        borrowed_for_ever(stack + 0x4_0000, into as u64);
        1
    });
    close(into);
    check_eq!(read(out, &mut [0]), 1, "the borrower says nothing");
    kill(lender, SIGKILL);
    let End::Status(status) = end_of(lender, 10 * u64::from(LOOKS)) else {
        return check!(false, "process {lender} has outlived a SIGKILL");
    };
    check_eq!(status, SIGKILL as u32, "the lender");
    // Its memory is still somebody's.
    let borrower = call(calls::WAIT4, [u64::MAX, 0, WNOHANG]);
    check!(borrower == 0, "the borrower has ended: {borrower}");
    kill(-lender, SIGKILL);
    let found = wait(-1);
    check!(
        matches!(found, Ok((_, status)) if status == SIGKILL as u32),
        "the borrower: {found:?}"
    );
    say(format_args!("ended\n"));
}

/// Makes a child that has this process's memory, and a stack, writes a byte into a pipe and never
/// ends; does not come back before that one does.
fn borrowed_for_ever(stack: u64, into: u64) {
    const VM_VFORK: u64 = 0x4100 | 17;
    // SAFETY: the child runs on a stack of its own and uses nothing but registers; the parent finds
    // all of them as they were.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x0, x9",
            "mov x1, sp",
            "sub x1, x1, #16",
            "mov x2, #1",
            "mov x8, {write}",
            "svc #0",
            "1: mov x8, {yields}",
            "svc #0",
            "b 1b",
            "2:",
            in("x8") calls::CLONE,
            inlateout("x0") VM_VFORK => _,
            in("x1") stack,
            in("x2") 0u64,
            in("x3") 0u64,
            in("x4") 0u64,
            in("x9") into,
            write = const calls::WRITE,
            yields = const calls::SCHED_YIELD,
        );
    }
}

/// A child of this process ends and leaves one that has ended before; gives the numbers of both.
fn leave_one_behind() -> (i64, i64) {
    let (out, into) = pipe(0);
    let parent = forked(|| {
        // So that it keeps those that have ended, whatever it has from its own parent.
        handle(SIGCHLD, count, 0);
        block(0);
        let child = forked(|| 11);
        write(into, &child.to_ne_bytes());
        // A parent is notified of one that it can reap.
        i32::from(!comes(|| ran() == 1))
    });
    let mut number = [0; 8];
    check_eq!(read(out, &mut number), 8, "the child's number");
    close(out);
    close(into);
    (parent, i64::from_ne_bytes(number))
}

/// The first process is notified of those that had ended before they became its children.
pub(super) fn adopted(_: Start) {
    handle(SIGCHLD, count, 0);
    block(1 << (SIGCHLD - 1));
    let (parent, child) = leave_one_behind();
    check!(status_of(parent) == 0, "the parent");
    // The first of those that come while one is pending is the one that is reported.
    let taken = timed_wait(1 << (SIGCHLD - 1));
    check_eq!(taken, Some((SIGCHLD, child)), "of {parent}'s child {child}");
    check!(status_of(child) == 11 << 8, "the orphan");
    // A process that ignores the signal is not kept waiting for them.
    let ignore = [1_u64, 0, 0, 0];
    check_eq!(
        call(RT_SIGACTION, [SIGCHLD, ignore.as_ptr() as u64, 0, 8]),
        0,
        "rt_sigaction"
    );
    block(0);
    let (parent, child) = leave_one_behind();
    check!(comes(|| !is_there(parent)), "process {parent} stays");
    check!(!is_there(child), "nobody waits for {child}, and it stays");
    check!(wait(-1) == Err(-10), "children that nobody waits for");
    say(format_args!("adopted\n"));
}
