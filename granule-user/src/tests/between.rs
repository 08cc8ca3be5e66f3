//! Signals that come while processes are between two states: being forked.

use super::processes::forked;
use super::signals::{SIGKILL, SIGUSR1, count, handle, kill, pid, ran, sleep_ms};
use crate::calls::{self, call, say, wait};
use crate::check;
use crate::start::Start;

const KILL: u64 = 129;
const SETPGID: u64 = 154;

const WNOHANG: u64 = 1;

/// How often the tests look whether something has happened, ten milliseconds apart, before they take
/// it that it never will.
const LOOKS: u32 = 1000;

/// Looks until `there` says so; false if it never does.
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
    call(KILL, [pid as u64, 0, 0, 0, 0, 0]) == 0
}

/// Forgets children that have ended.
fn reap() {
    while call(calls::WAIT4, [u64::MAX, 0, WNOHANG, 0, 0, 0]) > 0 {}
}

fn lead_a_group() {
    let done = call(SETPGID, [0; 6]);
    check!(done == 0, "setpgid: {done}");
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
    // Without SA_RESTART: a fork does not ask for it.
    handle(SIGUSR1, count, 0);
    let parent = pid();
    let sender = forked(|| {
        for _ in 0..400 {
            kill(parent, SIGUSR1);
            for _ in 0..3 {
                call(calls::SCHED_YIELD, [0; 6]);
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
    check!(wait(-1) == Err(-10), "a child that fork did not tell of");
    check!(ran() > 0, "no handler ran beside {children} forks");
    say(format_args!("pelted\n"));
}
