//! Too much of everything: processes, memory, signals, arguments, descriptors, pipes; at once.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::{Victim, ends_or_is_killed, pause};
use crate::tests::memory::mapped;
use crate::tests::page;
use crate::tests::processes::{forked, settle, status_of};
use crate::{check, check_eq};
use core::sync::atomic::{AtomicU64, Ordering};
use granule_programs::calls::{
    self, CLOSE, CLOSE_RANGE, EAGAIN, ENOMEM, EXECVE, KILL, PIPE2, SIGKILL, call, fork, map, say,
};
use granule_programs::start::Start;

/// Runs two fork bombs up to the limit; the processes of the second take memory until there is none.
pub(in crate::tests) fn crowd(start: Start) {
    let page = page(start);
    let victim = Victim::new(page);
    for round in 0..2 {
        let bomb = forked(|| {
            // A group of its own.
            call(157, []);
            explode(page, round == 1)
        });
        settle();
        // The first of them ends when there is nothing left to be had, or is ended.
        ends_or_is_killed(bomb, "the first of the bomb");
        // It goes on without it, until it is ended, and so are those made meanwhile.
        pause(50);
        victim.looks_again();
        let mut left = 1;
        while left >= 0 {
            call(KILL, [bomb.wrapping_neg() as u64, SIGKILL]);
            loop {
                // WNOHANG, of that group.
                left = call(calls::WAIT4, [bomb.wrapping_neg() as u64, 0, 1]);
                if left <= 0 {
                    break;
                }
            }
        }
    }
    victim.end();
    let pid = forked(|| 6);
    check!(status_of(pid) == 6 << 8, "a child after the bomb");
    say(format_args!("crowded\n"));
}

/// Every process makes others for as long as it can, and takes memory.
fn explode(page: u64, takes_all: bool) -> i32 {
    let pages = if takes_all { 1 << 20 } else { 32 };
    let at = map(pages * page, calls::READ_WRITE).unwrap_or(0);
    let mut refused = 0;
    let mut touched = 0;
    while refused < 50 {
        match fork() {
            0 => refused = 0,
            EAGAIN | ENOMEM => {
                refused += 1;
                call(calls::SCHED_YIELD, []);
            }
            error => check!(error > 0, "fork: {error}"),
        }
        for _ in 0..if takes_all { 64 } else { 1 } {
            if at != 0 && touched < pages {
                let to = at + touched * page;
                // SAFETY: mapped above; out of memory ends this process, which is the point.
                unsafe { (to as *mut u64).write_volatile(to) };
                touched += 1;
            }
        }
    }
    0
}

/// The number of times that a handler ran.
static RAN: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: u64) {
    RAN.fetch_add(1, Ordering::Relaxed);
}

/// Everyone signals everyone, handlers within handlers, while some are killed.
pub(in crate::tests) fn signals(start: Start) {
    const SA_NODEFER: u64 = 0x4000_0000;
    let victim = Victim::new(page(start));
    let storm = forked(|| {
        call(157, []);
        for signal in [10, 12, 17] {
            let action = [count as *const () as u64, SA_NODEFER, 0, 0];
            check_eq!(
                call(134, [signal, action.as_ptr() as u64, 0, 8]),
                0,
                "rt_sigaction"
            );
        }
        let pids = [0_u32; 12].map(|_| {
            forked(|| {
                for round in 0..200 {
                    // The whole group, the sender among it.
                    call(KILL, [0, if round % 2 == 0 { 10 } else { 12 }]);
                }
                i32::from(RAN.load(Ordering::Relaxed) == 0)
            })
        });
        for (index, pid) in pids.into_iter().enumerate() {
            // SIGSTOP and SIGCONT, which do nothing without job control, and now and then SIGKILL.
            call(KILL, [pid as u64, 19]);
            call(KILL, [pid as u64, 18]);
            if index % 4 == 3 {
                call(KILL, [pid as u64, SIGKILL]);
            }
        }
        for pid in pids {
            let status = loop {
                match calls::wait(pid) {
                    Ok((_, status)) => break status,
                    Err(error) => check!(error == -4, "wait: {error}"),
                }
            };
            check!(status == 0 || status == 9, "one of the storm: {status:#x}");
        }
        0
    });
    check_eq!(status_of(storm), 0, "the storm");
    // A handler that faults, whose handler faults, on a stack that ends.
    check_eq!(
        status_of(forked(|| {
            extern "C" fn again(_: u64) {
                call(KILL, [call(calls::GETPID, []) as u64, 10]);
            }
            let action = [again as *const () as u64, SA_NODEFER, 0, 0];
            call(134, [10, action.as_ptr() as u64, 0, 8]);
            again(0);
            0
        })),
        11,
        "handlers without end"
    );
    // Signals to the first process, and signals that do not exist.
    let to_first = forked(|| {
        for signal in [9, 15, 19, 11, 1] {
            for number in [KILL, 130] {
                check_eq!(
                    call(number, [1, signal]),
                    0,
                    "a signal for the first process"
                );
            }
        }
        for signal in [65, 66, 255, 256, u64::MAX, 1 << 31] {
            check_eq!(call(KILL, [1, signal]), -22, "signal {signal}");
        }
        0
    });
    check!(status_of(to_first) == 0, "who signals the first process");
    masked();
    victim.end();
    say(format_args!("stormed\n"));
}

/// Signals that the first process blocks, and unblocks later, do not end it either.
fn masked() {
    let all = u64::MAX;
    check_eq!(
        call(135, [0, &raw const all as u64, 0, 8]),
        0,
        "rt_sigprocmask"
    );
    let pid = forked(|| {
        for signal in [9, 15, 10, 11, 6] {
            call(KILL, [1, signal]);
            call(131, [1, 1, signal]);
        }
        0
    });
    check!(status_of(pid) == 0, "who signals what is blocked");
    check_eq!(
        call(135, [1, &raw const all as u64, 0, 8]),
        0,
        "rt_sigprocmask"
    );
}

/// Descriptors, pipes and arguments, as many as there are.
pub(in crate::tests) fn pipes(start: Start) {
    let page = page(start);
    let victim = Victim::new(page);
    let pid = forked(|| {
        fill_pipes();
        0
    });
    check!(status_of(pid) == 0, "who fills pipes");
    // Many processes, each with as many as it can have, all of them full.
    let pids = [0_u32; 40].map(|_| {
        forked(|| {
            fill_pipes();
            0
        })
    });
    for pid in pids {
        ends_or_is_killed(pid, "one of those");
    }
    arguments();
    victim.end();
    say(format_args!("piped\n"));
}

fn fill_pipes() {
    const O_NONBLOCK: u64 = 0o4000;
    call(CLOSE_RANGE, [3, 63]);
    let mut made = 0;
    let mut both = [0_u32; 2];
    let error = loop {
        let error = call(PIPE2, [both.as_mut_ptr() as u64, O_NONBLOCK]);
        if error < 0 {
            break error;
        }
        made += 1;
        let bytes = [7_u8; 4096];
        let [_, into] = both;
        loop {
            let at = bytes.as_ptr() as u64;
            let some = call(calls::WRITE, [into.into(), at, 4096]);
            if some < 0 {
                check!(some == EAGAIN, "a full pipe: {some}");
                break;
            }
        }
    };
    // EMFILE; ENFILE, when all have as many as there are together; ENOMEM.
    check!(matches!(error, -24 | -23 | ENOMEM), "pipe {made}: {error}");
    // One end only, of every other one; then all, twice.
    for fd in (3..64).step_by(3) {
        call(CLOSE, [fd]);
    }
    for _ in 0..2 {
        call(CLOSE_RANGE, [3, u64::from(u32::MAX)]);
    }
    for fd in 3..70 {
        check_eq!(call(CLOSE, [fd]), -9, "descriptor {fd} was open");
    }
}

/// More arguments than there is room for, in number and in length.
fn arguments() {
    const E2BIG: i64 = -7;
    let bytes = 1 << 20;
    let text = mapped(bytes);
    let list = mapped(bytes);
    check!(text != 0 && list != 0, "no memory");
    let path = c"/init".as_ptr() as u64;
    // One that is long: 'x' without an end for 200 000 bytes.
    for at in text..text + 200_000 {
        // SAFETY: just mapped.
        unsafe { (at as *mut u8).write_volatile(b'x') };
    }
    let set = |index: u64, value: u64| {
        // SAFETY: just mapped, and in there.
        unsafe { ((list + 8 * index) as *mut u64).write_volatile(value) };
    };
    set(0, text);
    set(1, 0);
    for lists in [[list, 0], [0, list]] {
        let [arguments, environment] = lists;
        check_eq!(
            call(EXECVE, [path, arguments, environment]),
            E2BIG,
            "a long argument"
        );
    }
    // As many empty ones as a megabyte of pointers has, without an end.
    for index in 0..bytes / 8 {
        set(index, text + 200_000);
    }
    for lists in [[list, 0], [0, list], [list, list]] {
        let [arguments, environment] = lists;
        check_eq!(
            call(EXECVE, [path, arguments, environment]),
            E2BIG,
            "many arguments"
        );
    }
    // A path that is too long, or empty.
    for (path, error) in [(text, -36), (text + 200_000, -2)] {
        check_eq!(call(EXECVE, [path]), error, "execve of a path");
    }
}
