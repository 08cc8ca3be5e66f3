//! Actions that a program must not take: each ends the program that takes it, and no other.

#![allow(unsafe_code, reason = "deliberate faults")]

use super::page;
use crate::check;
use core::arch::asm;
use granule_programs::calls::{self, EFAULT, call, fork, map, say, wait};
use granule_programs::start::Start;

const SIGILL: u32 = 4;
const SIGTRAP: u32 = 5;
const SIGBUS: u32 = 7;
const SIGSEGV: u32 = 11;

/// The kernel's image.
const KERNEL: u64 = 0xffff_ffff_8000_0000;
/// The lowest address of the kernel's half that is in it at every size.
const UPPER: u64 = 0xffff_ffff_0000_0000;

fn read(address: u64) {
    // SAFETY: to fault.
    unsafe { (address as *const u8).read_volatile() };
}

fn write(address: u64) {
    // SAFETY: to fault.
    unsafe { (address as *mut u8).write_volatile(0) };
}

fn jump(address: u64) {
    // SAFETY: to fault.
    unsafe { asm!("blr {}", in(reg) address, clobber_abi("C")) };
}

/// Recurses until the stack ends.
#[inline(never)]
#[allow(unconditional_recursion, reason = "that is the point")]
fn overflow(depth: u64) -> u64 {
    let mut frame = [depth; 64];
    // SAFETY: an element of a local array.
    unsafe { (&raw mut frame[(depth % 64) as usize]).write_volatile(depth) };
    overflow(depth + 1) + core::hint::black_box(&frame)[0]
}

/// Each thing, and the signal that ends who does it.
const ALL: [(fn(), u32); 20] = [
    (|| read(0), SIGSEGV),
    (|| write(0), SIGSEGV),
    (|| read(KERNEL), SIGSEGV),
    (|| write(KERNEL), SIGSEGV),
    (|| jump(KERNEL), SIGSEGV),
    (|| read(UPPER), SIGSEGV),
    // Between the halves.
    (|| read(1 << 55), SIGSEGV),
    (|| jump(0), SIGSEGV),
    // Data, which is not executable.
    (
        || {
            let code = map(0x1_0000, calls::READ_WRITE).unwrap_or(0);
            // SAFETY: just mapped; RET.
            unsafe { (code as *mut u32).write_volatile(0xd65f_03c0) };
            jump(code);
        },
        SIGSEGV,
    ),
    // Code, which is not writable.
    (|| write(write as *const () as u64), SIGSEGV),
    (
        || {
            overflow(0);
        },
        SIGSEGV,
    ),
    // A misaligned program counter, where there is code.
    (|| jump(jump as *const () as u64 + 2), SIGBUS),
    // SAFETY: to fault.
    (|| unsafe { asm!("udf #7") }, SIGILL),
    // A register of the kernel's.
    (
        // SAFETY: to fault.
        || unsafe { asm!("mrs x9, ttbr1_el1", out("x9") _) },
        SIGILL,
    ),
    // The physical counter and its timer, the PMU's counter.
    (
        // SAFETY: to fault.
        || unsafe { asm!("mrs x9, cntpct_el0", out("x9") _) },
        SIGILL,
    ),
    (
        // SAFETY: to fault.
        || unsafe { asm!("msr cntp_ctl_el0, xzr") },
        SIGILL,
    ),
    (
        // SAFETY: to fault.
        || unsafe { asm!("mrs x9, pmccntr_el0", out("x9") _) },
        SIGILL,
    ),
    // SAFETY: to fault.
    (|| unsafe { asm!("hvc #0") }, SIGILL),
    // SAFETY: to fault.
    (|| unsafe { asm!("brk #3") }, SIGTRAP),
    // A stack pointer that leads nowhere, at a system call: the kernel has its own.
    (
        // SAFETY: nothing is read or written through it before the process ends itself by a fault.
        || unsafe {
            asm!(
                "mov x9, #0",
                "mov sp, x9",
                "mov x8, {pid}",
                "svc #0",
                "ldr x9, [sp]",
                pid = const calls::GETPID,
                out("x0") _,
                out("x8") _,
                out("x9") _,
            );
        },
        SIGSEGV,
    ),
];

/// Does one of them in this process.
pub(super) fn by(number: u64) -> i32 {
    if let Some((what, _)) = ALL.get(number as usize) {
        what();
    }
    3
}

pub(super) fn faults(_: Start) {
    for (number, (_, signal)) in ALL.iter().enumerate() {
        let pid = fork();
        if pid == 0 {
            calls::exit(by(number as u64));
        }
        let end = wait(pid);
        check!(end == Ok((pid, *signal)), "fault {number}: {end:?}");
    }
    say(format_args!("survived\n"));
}

/// Bad pointers in every system call that takes one.
pub(super) fn pointers(start: Start) {
    let page = page(start);
    let at = map(2 * page, calls::READ_WRITE).unwrap_or(0);
    let read_only = map(page, 1).unwrap_or(0);
    let none = map(page, 0).unwrap_or(0);
    // The hole comes last, or one of those would be in it.
    check!(calls::unmap(at + page, page) == 0, "munmap");
    let bad = [
        0,
        1,
        at + page,
        none,
        KERNEL,
        UPPER,
        1 << 55,
        u64::MAX,
        u64::MAX - 7,
    ];
    for address in bad {
        let result = call(calls::WRITE, [1, address, 8, 0, 0, 0]);
        check!(result == EFAULT, "write from {address:#x}: {result}");
        // Where the address is that of a result, too: the child is gone by then.
        let pid = fork();
        if pid == 0 {
            calls::exit(0);
        }
        let result = call(calls::WAIT4, [pid as u64, address, 0, 0, 0, 0]);
        let expected = if address == 0 { pid } else { EFAULT };
        check!(result == expected, "wait4 to {address:#x}: {result}");
        // CLONE_CHILD_SETTID.
        let result = call(calls::CLONE, [0x100_0011, 0, 0, 0, address, 0]);
        check!(result == EFAULT, "clone with {address:#x}: {result}");
        check!(
            expected == pid || wait(pid) == Err(-10),
            "forgotten, although nobody was notified"
        );
    }
    let pid = fork();
    if pid == 0 {
        calls::exit(0);
    }
    let result = call(calls::WAIT4, [pid as u64, read_only, 0, 0, 0, 0]);
    check!(result == EFAULT, "wait4 to what is read-only: {result}");
    // Over the end of what there is.
    let edge = at + page - 4;
    let result = call(calls::WRITE, [1, edge, 8, 0, 0, 0]);
    check!(result == EFAULT, "write over the end: {result}");
    check!(
        call(calls::WRITE, [7, at, 1, 0, 0, 0]) == -9,
        "a descriptor that there is not"
    );
    for number in [0, 1000, 100_000, u64::MAX] {
        let result = call(number, [u64::MAX; 6]);
        check!(result == -38, "system call {number}: {result}");
    }
    say(format_args!("pointed\n"));
}
