//! Signals: handlers, masks, interrupted calls, faults with a handler.

#![allow(unsafe_code, reason = "registers, and frames that the kernel writes")]

use super::files::{close, pipe, read, write};
use super::processes::{forked, status_of};
use crate::{check, check_eq};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_programs::calls::{
    self, KILL, NANOSLEEP, RT_SIGACTION, RT_SIGPROCMASK, RT_SIGSUSPEND, RT_SIGTIMEDWAIT, SIGKILL,
    WNOHANG, call, say,
};
use granule_programs::start::Start;

pub(super) const SIGUSR1: u64 = 10;
const SIGSEGV: u64 = 11;
pub(super) const SIGCHLD: u64 = 17;

const SA_SIGINFO: u64 = 4;
const SA_RESTART: u64 = 0x1000_0000;

/// The number of times that a handler ran, and the signal and the sender of the last time.
static RAN: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);

pub(super) extern "C" fn count(signal: u64, info: *const u64, _context: *mut u64) {
    RAN.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel gives a `siginfo` of 16 words.
    let sender = unsafe { info.add(2).read() };
    LAST.store(signal | sender << 32, Ordering::SeqCst);
    // All that a call may change, is changed.
    // SAFETY: registers that this function may use; d16 is not kept by calls.
    unsafe {
        asm!(
            ".arch_extension fp",
            ".arch_extension simd",
            "movi v16.16b, #0x77",
            ".arch_extension nosimd",
            ".arch_extension nofp",
            "mov x9, #-1",
            out("x9") _, options(nomem, nostack)
        );
    }
}

/// A handler of faults that goes on behind the instruction, with the address in x0.
extern "C" fn skip(_: u64, info: *const u64, context: *mut u64) {
    RAN.fetch_add(1, Ordering::SeqCst);
    // SAFETY: a `siginfo` and a `ucontext`, as the ABI has them: the address of the fault; x0 and pc
    // in words.
    unsafe {
        let address = info.add(2).read();
        context.add(23).write(address);
        let pc = context.add(55);
        pc.write(pc.read() + 4);
    }
}

pub(super) fn handle(signal: u64, handler: extern "C" fn(u64, *const u64, *mut u64), flags: u64) {
    let action = [handler as usize as u64, flags | SA_SIGINFO, 0, 0];
    check_eq!(
        call(RT_SIGACTION, [signal, action.as_ptr() as u64, 0, 8]),
        0,
        "rt_sigaction {signal}"
    );
}

pub(super) fn kill(pid: i64, signal: u64) {
    check_eq!(call(KILL, [pid as u64, signal]), 0, "kill {pid}");
}

pub(super) fn pid() -> i64 {
    call(calls::GETPID, [])
}

pub(super) fn ran() -> u64 {
    RAN.load(Ordering::SeqCst)
}

/// Blocks these signals and no others.
pub(super) fn block(set: u64) {
    check_eq!(
        call(RT_SIGPROCMASK, [2, &raw const set as u64, 0, 8]),
        0,
        "rt_sigprocmask"
    );
}

/// Takes one of these signals that has come, and its sender.
pub(super) fn timed_wait(set: u64) -> Option<(u64, i64)> {
    let now = [0_u64; 2];
    take(set, now.as_ptr() as u64)
}

/// As [`timed_wait`], until the time at `time`, or for ever.
fn take(set: u64, time: u64) -> Option<(u64, i64)> {
    let mut info = [0_u64; 16];
    let at = info.as_mut_ptr();
    let set = &raw const set as u64;
    let taken = call(RT_SIGTIMEDWAIT, [set, at as u64, time, 8]);
    // SAFETY: just written by the kernel, behind the compiler's back.
    let sender = unsafe { at.add(2).read_volatile() };
    u64::try_from(taken)
        .ok()
        .map(|signal| (signal, i64::from(sender as u32)))
}

pub(super) fn sleep_ms(ms: u64) -> i64 {
    let time = [ms / 1000, ms % 1000 * 1_000_000];
    call(NANOSLEEP, [time.as_ptr() as u64])
}

pub(super) fn signals(_: Start) {
    // As a child: the first process is spared what others are not.
    check!(status_of(forked(all)) == 0, "what the child tried");
    say(format_args!("signalled\n"));
}

fn all() -> i32 {
    handlers();
    faults();
    children();
    notified_first();
    interrupted();
    awaited();
    0
}

fn handlers() {
    handle(SIGUSR1, count, 0);
    let (before, after): (u64, u64);
    let sent: i64;
    // SAFETY: a system call; x9 and d16 are looked at behind it.
    unsafe {
        asm!(
            ".arch_extension fp",
            ".arch_extension simd",
            "mov x9, #77",
            "movi v16.16b, #0x33",
            "svc #0",
            "mov {before}, x9",
            "umov {after}, v16.d[1]",
            ".arch_extension nosimd",
            ".arch_extension nofp",
            before = out(reg) before,
            after = out(reg) after,
            in("x8") KILL,
            inlateout("x0") pid() => sent,
            in("x1") SIGUSR1,
            out("x9") _,
            options(nostack)
        );
    }
    check!(sent == 0 && ran() == 1, "kill: {sent}, {} handlers", ran());
    check!(before == 77, "x9 behind a handler: {before}");
    check!(
        after == 0x3333_3333_3333_3333,
        "v16 behind a handler: {after:#x}"
    );
    check_eq!(
        LAST.load(Ordering::SeqCst),
        SIGUSR1 | (pid() as u64) << 32,
        "last"
    );
    // A blocked signal comes when it is unblocked, once.
    block(1 << (SIGUSR1 - 1));
    kill(pid(), SIGUSR1);
    kill(pid(), SIGUSR1);
    check!(ran() == 1, "a blocked signal");
    block(0);
    check!(ran() == 2, "a signal that is let in: {}", ran());
    // Or for the time of a call.
    block(1 << (SIGUSR1 - 1));
    kill(pid(), SIGUSR1);
    let none = 0_u64;
    let ended = call(RT_SIGSUSPEND, [&raw const none as u64, 8]);
    check!(ended == -4 && ran() == 3, "rt_sigsuspend: {ended}");
    kill(pid(), SIGUSR1);
    check!(ran() == 3, "the mask of before is back");
    block(0);
    check!(ran() == 4, "{}", ran());
}

fn faults() {
    handle(SIGSEGV, skip, 0);
    let before = ran();
    for address in [8_u64, 0xffff_ffff_8000_0000, 1 << 40] {
        let found: u64;
        // SAFETY: the handler goes on behind the load.
        unsafe {
            asm!("ldr x0, [{}]", in(reg) address, out("x0") found, options(nostack));
        }
        check!(
            found == address,
            "the fault was at {address:#x}: {found:#x}"
        );
    }
    check!(ran() == before + 3, "{} faults", ran() - before);
}

fn children() {
    handle(SIGCHLD, count, SA_RESTART);
    let before = ran();
    block(1 << (SIGCHLD - 1));
    let child = forked(|| 5);
    let none = 0_u64;
    while ran() == before {
        call(RT_SIGSUSPEND, [&raw const none as u64, 8]);
    }
    check_eq!(
        LAST.load(Ordering::SeqCst),
        SIGCHLD | (child as u64) << 32,
        "last"
    );
    block(0);
    check!(status_of(child) == 5 << 8, "how it ended");
    let child = forked(|| {
        loop {
            sleep_ms(1000);
        }
    });
    kill(child, SIGKILL);
    check!(status_of(child) == SIGKILL as u32, "killed");
    check!(call(KILL, [child as u64]) == -3, "it is gone");
}

/// The handler has run when a parent has its child's status, by whichever call.
fn notified_first() {
    handle(SIGCHLD, count, SA_RESTART);
    for round in 0..200 {
        let before = ran();
        let child = forked(|| 0);
        // Without a pause, so that it calls in the moment in which the child can be reaped.
        while call(calls::WAIT4, [child as u64, 0, WNOHANG]) != child {}
        check!(
            ran() > before,
            "round {round}: reaped before the signal came"
        );
    }
}

/// A read that waits is ended by a signal, or goes on if the action has SA_RESTART.
fn interrupted() {
    for (flags, expected) in [(0, -4), (SA_RESTART, 1)] {
        handle(SIGUSR1, count, flags);
        let (out, into) = pipe(0);
        let (parent, before) = (pid(), ran());
        let child = forked(|| {
            sleep_ms(30);
            kill(parent, SIGUSR1);
            sleep_ms(30);
            write(into, b"y") as i32 - 1
        });
        let got = read(out, &mut [0]);
        check!(ran() > before, "no handler");
        check_eq!(got, expected, "read with flags {flags:#x}");
        check!(status_of(child) == 0, "who sent");
        for fd in [out, into] {
            close(fd);
        }
    }
}

/// A blocked signal ends the wait for it, however long that may last.
fn awaited() {
    block(1 << (SIGUSR1 - 1));
    let parent = pid();
    let child = forked(|| {
        sleep_ms(30);
        kill(parent, SIGUSR1);
        // Its end would wake its parent, too. Time enough for the slowest machine.
        sleep_ms(20_000);
        kill(parent, SIGKILL);
        1
    });
    check_eq!(
        take(1 << (SIGUSR1 - 1), 0),
        Some((SIGUSR1, child)),
        "rt_sigtimedwait"
    );
    kill(child, SIGKILL);
    check!(status_of(child) == SIGKILL as u32, "who sent");
    block(0);
}

/// DIT and SSBS.
fn timing_bits() -> [u64; 2] {
    let (dit, ssbs): (u64, u64);
    // SAFETY: both registers exist on the CPU of the test.
    unsafe { asm!("mrs {}, s3_3_c4_c2_5", "mrs {}, s3_3_c4_c2_6", out(reg) dit, out(reg) ssbs) };
    [dit, ssbs]
}

static IN_HANDLER: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

extern "C" fn note_and_clear(_: u64, _: *const u64, _: *mut u64) {
    for (note, bit) in IN_HANDLER.iter().zip(timing_bits()) {
        note.store(bit, Ordering::SeqCst);
    }
    // SAFETY: as in `timing_bits`; they change timing only.
    unsafe { asm!("msr s3_3_c4_c2_5, xzr", "msr s3_3_c4_c2_6, xzr") };
}

/// Code that runs in constant time does so in a handler, and behind it.
pub(super) fn pstate(_: Start) {
    const BITS: [u64; 2] = [1 << 24, 1 << 12];
    handle(SIGUSR1, note_and_clear, 0);
    // SAFETY: as in `timing_bits`.
    unsafe {
        asm!("msr s3_3_c4_c2_5, {}", "msr s3_3_c4_c2_6, {}", in(reg) BITS[0], in(reg) BITS[1])
    };
    kill(pid(), SIGUSR1);
    check_eq!(timing_bits(), BITS, "behind the handler");
    let inside = IN_HANDLER.each_ref().map(|bit| bit.load(Ordering::SeqCst));
    check_eq!(inside, BITS, "in the handler");
    say(format_args!("kept\n"));
}
