//! Actions that a program must not take: each ends the program that takes it, and no other.

#![allow(unsafe_code, reason = "deliberate faults")]

use super::hostile::{KERNEL, UPPER};
use super::memory::mapped;
use super::page;
use super::processes::{forked, status_of};
use crate::{check, check_eq};
use core::arch::asm;
use granule_programs::calls::{self, EBADF, EFAULT, call, map, say, wait};
use granule_programs::start::Start;

const SIGBUS: u32 = 7;
const SIGSEGV: u32 = 11;

fn read(address: u64) {
    // SAFETY: to fault.
    unsafe { (address as *const u8).read_volatile() };
}

fn write(address: u64) {
    // SAFETY: to fault.
    unsafe { (address as *mut u8).write_volatile(0) };
}

/// Jumps to where code begins, and two bytes further.
fn jump_misaligned() {
    let target = jump_misaligned as *const () as u64 + 2;
    // SAFETY: to fault.
    unsafe { asm!("blr {}", in(reg) target, clobber_abi("C")) };
}

/// Recurses until the stack ends.
#[inline(never)]
#[allow(unconditional_recursion, reason = "that is the point")]
fn overflow(depth: u64) {
    let mut frame = [depth; 64];
    // SAFETY: an element of a local array.
    unsafe { (&raw mut frame[(depth % 64) as usize]).write_volatile(depth) };
    overflow(depth + 1);
    core::hint::black_box(&frame);
}

/// Each thing, and the signal that ends who does it. Single instructions, and accesses to what is not a program's, are
/// in [`hostile`](super::hostile::instructions).
const ALL: [(fn(), u32); 5] = [
    (|| read(0), SIGSEGV),
    // Code, which is not writable.
    (|| write(write as *const () as u64), SIGSEGV),
    (|| overflow(0), SIGSEGV),
    // A misaligned program counter, where there is code.
    (jump_misaligned, SIGBUS),
    // The kernel's image, where it is mapped.
    (|| read(0xffff_ffff_8000_0000), SIGSEGV),
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
        let status = status_of(forked(|| by(number as u64)));
        check_eq!(status, *signal, "fault {number}");
    }
    say(format_args!("survived\n"));
}

/// Bad pointers in every system call that takes one.
pub(super) fn pointers(start: Start) {
    let page = page(start);
    let at = mapped(2 * page);
    let read_only = map(page, 1).unwrap_or(0);
    let none = map(page, 0).unwrap_or(0);
    let write_from = |address| call(calls::WRITE, [1, address, 8]);
    let wait_to = |pid: i64, address| call(calls::WAIT4, [pid as u64, address]);
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
        check_eq!(write_from(address), EFAULT, "write from {address:#x}");
        // Where the address is that of a result, too: the child is gone by then.
        let pid = forked(|| 0);
        let expected = if address == 0 { pid } else { EFAULT };
        check_eq!(wait_to(pid, address), expected, "wait4 to {address:#x}");
        // CLONE_CHILD_SETTID.
        let cloned = call(calls::CLONE, [0x100_0011, 0, 0, 0, address]);
        check_eq!(cloned, EFAULT, "clone with {address:#x}");
        let forgotten = expected == pid || wait(pid) == Err(-10);
        check!(forgotten, "forgotten, although nobody was notified");
    }
    let waited = wait_to(forked(|| 0), read_only);
    check_eq!(waited, EFAULT, "wait4 to what is read-only");
    // Over the end of what there is.
    check_eq!(write_from(at + page - 4), EFAULT, "write over the end");
    let written = call(calls::WRITE, [7, at, 1]);
    check_eq!(written, EBADF, "a descriptor that there is not");
    for number in [0, 1000, 100_000, u64::MAX] {
        check_eq!(call(number, [u64::MAX; 6]), -38, "system call {number}");
    }
    say(format_args!("pointed\n"));
}
