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

use super::processes::{forked, status_of};
use crate::check;
use core::arch::asm;
use granule_programs::calls::{self, call, map};

const DUP3: u64 = 24;
pub(super) const CLOSE: u64 = 57;
pub(super) const PIPE2: u64 = 59;
pub(super) const READ: u64 = 63;
pub(super) const NANOSLEEP: u64 = 101;
pub(super) const KILL: u64 = 129;
pub(super) const CLOSE_RANGE: u64 = 436;

pub(super) const SIGKILL: u64 = 9;
const SIGTERM: u64 = 15;

/// The kernel's image.
pub(super) const KERNEL: u64 = 0xffff_ffff_8000_0000;
/// The lowest address of the kernel's half that is in it at every size.
pub(super) const UPPER: u64 = 0xffff_ffff_0000_0000;

/// Waits so many milliseconds; what a signal cuts short is not made up for.
pub(super) fn pause(ms: u64) {
    let time = [ms / 1000, ms % 1000 * 1_000_000];
    call(NANOSLEEP, [time.as_ptr() as u64, 0, 0, 0, 0, 0]);
}

/// A process beside, which ends badly if anything of its own changes.
pub(super) struct Victim {
    pid: i64,
    /// Where a byte comes from each time that it looked.
    looked: i64,
}

const PAGES: u64 = 16;
/// The descriptor that the victim is heard by.
const LOOKED: u64 = 62;

impl Victim {
    pub(super) fn new(page: u64) -> Self {
        const O_NONBLOCK: u64 = 0o4000;
        let mut both = [0_u32; 2];
        let made = call(PIPE2, [both.as_mut_ptr() as u64, O_NONBLOCK, 0, 0, 0, 0]);
        check!(made == 0, "pipe2: {made}");
        let [first, tells] = both.map(i64::from);
        // Out of the way of what tests open and close.
        let looked = call(DUP3, [first as u64, LOOKED, 0, 0, 0, 0]);
        check!(looked == LOOKED as i64, "dup3: {looked}");
        call(CLOSE, [first as u64, 0, 0, 0, 0, 0]);
        let pid = forked(|| {
            call(CLOSE, [looked as u64, 0, 0, 0, 0, 0]);
            watch(page, tells)
        });
        call(CLOSE, [tells as u64, 0, 0, 0, 0, 0]);
        let victim = Self { pid, looked };
        // Its memory is there before anybody can take it all.
        victim.looks_again();
        victim
    }

    /// Takes what it reported so far; returns whether it did.
    fn has_looked(&self) -> bool {
        let mut bytes = [0_u8; 64];
        let mut any = false;
        loop {
            let at = bytes.as_mut_ptr() as u64;
            let some = call(READ, [self.looked as u64, at, 64, 0, 0, 0]);
            check!(
                some != 0,
                "the victim has ended: {:?}",
                calls::wait(self.pid)
            );
            if some < 0 {
                check!(some == -11, "the victim's pipe: {some}");
                return any;
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

    /// It looks once more, and is ended.
    pub(super) fn end(self) {
        self.looks_again();
        call(KILL, [self.pid as u64, SIGTERM, 0, 0, 0, 0]);
        let status = status_of(self.pid);
        check!(status == SIGTERM as u32, "the victim ended by {status:#x}");
        call(CLOSE, [self.looked as u64, 0, 0, 0, 0, 0]);
    }
}

/// Returns the contents of a word of the victim's.
const fn pattern(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555
}

/// Looks at its memory, registers and what it is, again and again.
#[allow(unsafe_code, reason = "memory that the victim mapped")]
fn watch(page: u64, tells: i64) -> i32 {
    let own = call(calls::GETPID, [0; 6]);
    let bytes = PAGES * page;
    let at = map(bytes, calls::READ_WRITE).unwrap_or(0);
    check!(at != 0, "no memory for the victim");
    // A word in each stretch as long as a cache line.
    let words = || (at..at + bytes).step_by(64);
    for address in words() {
        // SAFETY: just mapped.
        unsafe { (address as *mut u64).write_volatile(pattern(address)) };
    }
    // Half of it is not to be written, by nobody.
    calls::protect(at, bytes / 2, 1);
    loop {
        for address in words() {
            // SAFETY: mapped above.
            let found = unsafe { (address as *const u64).read_volatile() };
            check!(
                found == pattern(address),
                "the victim's {address:#x} is {found:#x}"
            );
        }
        check!(registers_stay(own as u64), "the victim's registers");
        let pid = call(calls::GETPID, [0; 6]);
        check!(pid == own, "the victim is {pid}");
        let byte = 1_u8;
        let written = call(
            calls::WRITE,
            [tells as u64, &raw const byte as u64, 1, 0, 0, 0],
        );
        // Nobody may have looked for long: then the pipe is full.
        check!(
            written == 1 || written == -11,
            "the victim cannot report: {written}"
        );
    }
}

/// Puts something in registers of every kind, and looks whether it stays there while turns end and
/// calls are made.
#[allow(unsafe_code, reason = "looks at registers")]
fn registers_stay(seed: u64) -> bool {
    let lost: u64;
    // SAFETY: uses only registers that it names; the thread pointer is nobody's here.
    unsafe {
        asm!(
            ".arch_extension fp",
            ".arch_extension simd",
            "msr tpidr_el0, {seed}",
            "dup v3.2d, {seed}",
            "dup v30.2d, {seed}",
            "mov x20, {seed}",
            "mov x28, {seed}",
            "mov {lost}, #0",
            "mov {word}, #0x8000",
            "3: sub {word}, {word}, #1",
            "cbnz {word}, 3b",
            "mov x8, {yields}",
            "svc #0",
            "umov {word}, v3.d[1]",
            "eor {word}, {word}, {seed}",
            "orr {lost}, {lost}, {word}",
            "umov {word}, v30.d[0]",
            "eor {word}, {word}, {seed}",
            "orr {lost}, {lost}, {word}",
            "eor {word}, x20, {seed}",
            "orr {lost}, {lost}, {word}",
            "eor {word}, x28, {seed}",
            "orr {lost}, {lost}, {word}",
            "mrs {word}, tpidr_el0",
            "eor {word}, {word}, {seed}",
            "orr {lost}, {lost}, {word}",
            // Of exception vectors, which EL0 may read.
            "mrs {word}, tpidrro_el0",
            "orr {lost}, {lost}, {word}",
            ".arch_extension nosimd",
            ".arch_extension nofp",
            seed = in(reg) seed | 0xa5a5_0000_0000_0000,
            word = out(reg) _,
            lost = out(reg) lost,
            yields = const calls::SCHED_YIELD,
            out("x0") _,
            out("x8") _,
            out("x20") _,
            out("x28") _,
        );
    }
    lost == 0
}

/// The end of a child with a time limit.
pub(super) enum End {
    Status(u32),
    TooLong,
}

/// Waits for a child; ends it, and its group, after so many milliseconds.
pub(super) fn end_of(pid: i64, ms: u64) -> End {
    const WNOHANG: u64 = 1;
    let mut status = 0_u32;
    let at = &raw mut status as u64;
    for _ in 0..ms {
        let found = call(calls::WAIT4, [pid as u64, at, WNOHANG, 0, 0, 0]);
        check!(found == 0 || found == pid, "wait for {pid}: {found}");
        if found == pid {
            return End::Status(status);
        }
        pause(1);
    }
    call(KILL, [pid as u64, SIGKILL, 0, 0, 0, 0]);
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
pub(super) fn end_all_others() {
    if call(calls::GETPID, [0; 6]) != 1 {
        while matches!(call(calls::WAIT4, [u64::MAX, 0, 1, 0, 0, 0]), 1..) {}
        return;
    }
    call(KILL, [u64::MAX, SIGKILL, 0, 0, 0, 0]);
    while calls::wait(-1).is_ok() {}
}
