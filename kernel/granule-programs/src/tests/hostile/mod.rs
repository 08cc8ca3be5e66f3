//! Hostile programs, each beside a victim that checks its own memory and registers all the time:
//! whatever they do ends them, and no other program.
//!
//! The attacks are in the files below; the victim and the shared code are here.

mod crowd;
mod frames;
mod instructions;
mod malformed;
mod pointers;
mod random;
mod rows;

pub(super) use crowd::{crowd, pipes, signals};
pub(super) use frames::frames;
pub(super) use instructions::instructions;
pub(super) use malformed::malformed;
pub(super) use pointers::pointers;
pub(super) use random::random;

use super::files::{close, pipe, read, write};
use super::memory::{get, mapped, set};
use super::processes::{forked, registers_stay, status_of};
use crate::{check, check_eq};
use granule_programs::calls::{self, DUP3, EAGAIN, KILL, NANOSLEEP, SIGKILL, WNOHANG, call};

const SIGTERM: u64 = 15;

/// The kernel's image.
pub(in crate::tests) const KERNEL: u64 = 0xffff_ffff_8000_0000;
/// The lowest address of the kernel's half that is in it at every size.
pub(in crate::tests) const UPPER: u64 = 0xffff_ffff_0000_0000;

/// Waits so many milliseconds; what a signal cuts short is not made up for.
pub(super) fn pause(ms: u64) {
    let time = [ms / 1000, ms % 1000 * 1_000_000];
    call(NANOSLEEP, [time.as_ptr() as u64]);
}

/// A process beside, which ends badly if anything of its own changes.
pub(super) struct Victim {
    pid: i64,
    /// Where a byte comes from each time that it looked.
    looked: i64,
}

const PAGES: u64 = 16;
/// The descriptor that the victim is heard by.
const LOOKED: i64 = 62;

impl Victim {
    pub(super) fn new(page: u64) -> Self {
        const O_NONBLOCK: u64 = 0o4000;
        let (first, reports) = pipe(O_NONBLOCK);
        // Out of the way of what tests open and close.
        let looked = call(DUP3, [first as u64, LOOKED as u64]);
        check_eq!(looked, LOOKED, "dup3");
        close(first);
        let pid = forked(|| {
            close(looked);
            watch(page, reports)
        });
        close(reports);
        let victim = Self { pid, looked };
        // Its memory is there before anybody can take it all.
        victim.looks_again();
        victim
    }

    /// Takes what it reported so far; returns whether it did.
    fn has_looked(&self) -> bool {
        let mut any = false;
        loop {
            match read(self.looked, &mut [0; 64]) {
                0 => check!(false, "the victim has ended: {:?}", calls::wait(self.pid)),
                EAGAIN => return any,
                some => check!(some > 0, "the victim's pipe: {some}"),
            }
            any = true;
        }
    }

    /// Waits until it has looked once more, from beginning to end.
    pub(super) fn looks_again(&self) {
        self.has_looked();
        for _ in 0..2 {
            while !self.has_looked() {
                pause(1);
            }
        }
    }

    /// It looks once more, and is ended, as all other processes are.
    pub(super) fn end(self) {
        self.looks_again();
        call(KILL, [self.pid as u64, SIGTERM]);
        check_eq!(status_of(self.pid), SIGTERM as u32, "the victim's end");
        close(self.looked);
        end_all_others();
    }
}

/// Returns the contents of a word of the victim's.
const fn pattern(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555
}

/// Looks at its memory, registers and what it is, again and again.
fn watch(page: u64, reports: i64) -> i32 {
    let own = call(calls::GETPID, []);
    let bytes = PAGES * page;
    let at = mapped(bytes);
    // A word in each stretch as long as a cache line.
    let words = || (at..at + bytes).step_by(64);
    words().for_each(|address| set(address, pattern(address)));
    // Half of it is not to be written, by nobody.
    calls::protect(at, bytes / 2, 1);
    loop {
        for address in words() {
            check_eq!(get(address), pattern(address), "the victim's {address:#x}");
        }
        check!(registers_stay(own as u64, 1), "the victim's registers");
        check_eq!(call(calls::GETPID, []), own, "the victim's number");
        // Nobody may have looked for long: then the pipe is full.
        let written = write(reports, &[1]);
        check!(
            matches!(written, 1 | EAGAIN),
            "the victim cannot report: {written}"
        );
    }
}

/// The end of a child with a time limit.
pub(in crate::tests) enum End {
    Status(u32),
    TooLong,
}

/// Waits for a child; ends it, and its group, after so many milliseconds.
pub(in crate::tests) fn end_of(pid: i64, ms: u64) -> End {
    let mut status = 0_u32;
    let at = &raw mut status as u64;
    for _ in 0..ms {
        let found = call(calls::WAIT4, [pid as u64, at, WNOHANG]);
        check!(found == 0 || found == pid, "wait for {pid}: {found}");
        if found == pid {
            return End::Status(status);
        }
        pause(1);
    }
    call(KILL, [pid as u64, SIGKILL]);
    let status = status_of(pid);
    // It may have ended meanwhile.
    if status == SIGKILL as u32 {
        End::TooLong
    } else {
        End::Status(status)
    }
}

/// Ends all processes but the first, which calls, and waits for each. Any other process has tests beside it, and
/// looks only for children of its own that have ended.
fn end_all_others() {
    if call(calls::GETPID, []) != 1 {
        while matches!(call(calls::WAIT4, [u64::MAX, 0, 1]), 1..) {}
        return;
    }
    call(KILL, [u64::MAX, SIGKILL]);
    while calls::wait(-1).is_ok() {}
}

/// Waits for a child, which must have ended with 0 or by SIGKILL.
pub(super) fn ends_or_is_killed(pid: i64, what: &str) {
    let status = status_of(pid);
    check!(matches!(status, 0 | 9), "{what}: {status:#x}");
}
