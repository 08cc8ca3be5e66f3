//! `rt_sigreturn` with frames that no kernel wrote: of all of the processor's state that stands in
//! one, a program chooses its condition flags.

#![allow(unsafe_code, reason = "frames of signals that no kernel wrote")]

use super::{KERNEL, Victim};
use crate::tests::page;
use crate::tests::processes::{forked, status_of};
use crate::{check, check_eq};
use core::arch::asm;
use granule_programs::calls::{RT_SIGRETURN, map, say};
use granule_programs::start::Start;

const SIGSEGV: u32 = 11;
const SIGILL: u32 = 4;
const SIGBUS: u32 = 7;

/// Words of a frame: `siginfo`, `ucontext`, then records beside the registers.
const WORDS: usize = 592;
const X: usize = 16 + 23;
const SP: usize = X + 31;
const PC: usize = SP + 1;
const PSTATE: usize = PC + 1;
const RECORD: usize = PSTATE + 2;
const FPSIMD: u64 = 0x210_4650_8001;

fn target() -> u64 {
    landed as *const () as u64
}

/// Where a frame leads: x0 and x1 are its own, and the flags are what is left of PSTATE.
#[unsafe(naked)]
unsafe extern "C" fn landed() {
    core::arch::naked_asm!(
        // Only at EL0, with nothing masked, is a call of the kernel what it is here.
        "mrs x2, nzcv",
        "cmp x2, x1",
        "cset x0, ne",
        "mov x8, #94",
        "svc #0",
        "brk #4",
    )
}

fn go(frame: &[u64; WORDS]) -> ! {
    // SAFETY: what comes is up to the frame.
    unsafe {
        asm!(
            "mov sp, {sp}",
            "svc #0",
            "brk #5",
            sp = in(reg) frame.as_ptr(),
            in("x8") RT_SIGRETURN,
            options(noreturn)
        )
    }
}

/// A frame like the kernel's own, on a stack of its own.
fn frame(at: u64, stack: u64, pstate: u64) -> &'static mut [u64; WORDS] {
    // SAFETY: mapped by the caller for this, aligned, and used by one at a time.
    let frame = unsafe { &mut *(at as *mut [u64; WORDS]) };
    frame.fill(0);
    frame[X + 1] = pstate & 0xf000_0000;
    frame[SP] = stack;
    frame[PC] = target();
    frame[PSTATE] = pstate;
    frame[RECORD] = FPSIMD;
    frame
}

pub(in crate::tests) fn frames(start: Start) {
    let page = page(start);
    let victim = Victim::new(page);
    let bytes = 0x1_0000;
    let at = map(bytes, 3).unwrap_or(0);
    let stack = map(bytes, 3).unwrap_or(0) + bytes;
    check!(at != 0 && stack != bytes, "no memory");
    let ends = |frame: &[u64; WORDS]| status_of(forked(|| go(frame)));
    // Every exception level, both stacks, AArch32, all masks, single step, illegal state.
    for pstate in [
        0,
        0xf000_0000,
        0x6000_0000,
        0b0101,
        0b0100,
        0b1001,
        0b1000,
        0b1101,
        0b1_0000,
        0b1_0011,
        0xf << 6,
        0xf << 6 | 0b0101,
        1 << 20,
        1 << 21,
        1 << 22 | 1 << 23,
        u64::MAX,
        0xffff_ffff,
        0xf000_03c5,
    ] {
        check_eq!(ends(frame(at, stack, pstate)), 0, "PSTATE {pstate:#x}");
    }
    // Each single bit of it, at once with a program counter in the kernel.
    for bit in 0..64 {
        let hostile = frame(at, stack, 1 << bit);
        check!(ends(hostile) == 0, "bit {bit} of PSTATE");
        let hostile = frame(at, stack, 1 << bit | 0b0101);
        hostile[PC] = KERNEL + 0x1_0000;
        check_eq!(ends(hostile), SIGSEGV, "bit {bit} and the kernel's code");
    }
    for (pc, expected) in [
        (0, SIGSEGV),
        (1 << 55, SIGSEGV),
        (!3_u64, SIGSEGV),
        (target() + 2, SIGBUS),
        (stack - 64, SIGSEGV),
    ] {
        let hostile = frame(at, stack, 0);
        hostile[PC] = pc;
        check_eq!(ends(hostile), expected, "a program counter of {pc:#x}");
    }
    // Records that are none, where the kernel's own are.
    for record in [0, 1, FPSIMD + 1, FPSIMD & 0xffff_ffff, u64::MAX] {
        let hostile = frame(at, stack, 0);
        hostile[RECORD] = record;
        check_eq!(ends(hostile), SIGSEGV, "the record {record:#x}");
    }
    // All of it anything.
    let mut number = 88_172_645_463_325_252_u64;
    for round in 0..200 {
        let hostile = frame(at, stack, 0);
        for word in hostile.iter_mut() {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            *word = number;
        }
        if round % 2 == 0 {
            hostile[RECORD] = FPSIMD;
        }
        if round % 4 == 0 {
            hostile[PC] = target();
        }
        let status = ends(hostile);
        check!(
            matches!(status, SIGSEGV | SIGILL | SIGBUS | 0 | 0x100),
            "a frame of anything: {status:#x}"
        );
    }
    nowhere();
    victim.end();
    say(format_args!("returned\n"));
}

/// Frames at addresses that lead nowhere.
fn nowhere() {
    for sp in [
        0,
        8,
        KERNEL,
        KERNEL + 0x1000,
        1 << 55,
        u64::MAX - 15,
        u64::MAX,
    ] {
        let status = status_of(forked(|| {
            // SAFETY: the stack is used by nobody before the process ends.
            unsafe {
                asm!(
                    "mov sp, {sp}",
                    "svc #0",
                    "brk #6",
                    sp = in(reg) sp,
                    in("x8") RT_SIGRETURN,
                    options(noreturn)
                )
            }
        }));
        check!(status == SIGSEGV, "a frame at {sp:#x}: {status:#x}");
    }
}
