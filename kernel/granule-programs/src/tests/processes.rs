//! Processes: forks, copies, turns, ends.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::files::{DUP3, pipe, read, write};
use super::page;
use crate::check;
use core::arch::asm;
use granule_programs::calls::{self, EXECVE, call, map, say, unmap, wait, wish_page_size};
use granule_programs::start::Start;

const KILL: u64 = 129;

/// Forks, and does `child` in the child, which ends with what that gives.
pub(super) fn forked(child: impl FnOnce() -> i32) -> i64 {
    let pid = calls::fork();
    if pid == 0 {
        calls::exit(child());
    }
    check!(pid > 0, "fork: {pid}");
    pid
}

/// Waits for this child; its status.
pub(super) fn status_of(pid: i64) -> u32 {
    match wait(pid) {
        Ok((found, status)) => {
            check!(found == pid, "waited for {pid}, found {found}");
            status
        }
        Err(error) => {
            check!(false, "wait for {pid}: {error}");
            0
        }
    }
}

/// One child, its number, its end.
fn fork_once() {
    let pid = forked(|| 42);
    check!(status_of(pid) == 42 << 8, "status");
}

pub(super) fn fork(_: Start) {
    let own = call(calls::GETPID, [0; 6]);
    check!(own == 1, "the first process is {own}");
    check!(wait(-1) == Err(-10), "children that there are not");
    let pid = forked(|| {
        let parent = call(calls::GETPPID, [0; 6]);
        i32::from(parent != 1)
    });
    check!(status_of(pid) == 0, "the child's parent");
    check!(wait(pid) == Err(-10), "a child twice");
    fork_once();
    // WNOHANG.
    let pid = forked(|| {
        for _ in 0..100 {
            call(calls::SCHED_YIELD, [0; 6]);
        }
        7
    });
    let mut status = 0u32;
    loop {
        let found = call(calls::WAIT4, [u64::MAX, &raw mut status as u64, 1, 0, 0, 0]);
        check!(found == 0 || found == pid, "wait4: {found}");
        if found == pid {
            break;
        }
        call(calls::SCHED_YIELD, [0; 6]);
    }
    check!(status == 7 << 8, "status {status:#x}");
    say(format_args!("forked\n"));
}

/// The word at an address.
fn word(address: u64) -> u64 {
    // SAFETY: memory that the test mapped.
    unsafe { (address as *const u64).read_volatile() }
}

fn set_word(address: u64, value: u64) {
    // SAFETY: memory that the test mapped, and nobody else has.
    unsafe { (address as *mut u64).write_volatile(value) };
}

/// Parent and child each see their own writes only, in every page.
pub(super) fn copies(start: Start) {
    let page = page(start);
    let pages = 100;
    let at = map(pages * page, calls::READ_WRITE).unwrap_or(0);
    let all = || (0..pages).map(|index| at + index * page);
    for address in all() {
        check!(
            word(address) == 0,
            "memory that is not zero at {address:#x}"
        );
        set_word(address, address);
    }
    let pid = forked(|| {
        for address in all() {
            check!(
                word(address) == address,
                "the child reads {:#x}",
                word(address)
            );
            set_word(address, !address);
        }
        // A grandchild, of pages that are copies themselves.
        let pid = forked(|| {
            for address in all() {
                check!(
                    word(address) == !address,
                    "the grandchild reads {:#x}",
                    word(address)
                );
                set_word(address, 5);
            }
            0
        });
        check!(status_of(pid) == 0, "the grandchild");
        for address in all() {
            check!(
                word(address) == !address,
                "the child reads {:#x} after",
                word(address)
            );
        }
        0
    });
    for address in all() {
        check!(
            word(address) == address,
            "the parent reads {:#x}",
            word(address)
        );
        set_word(address, address + 1);
    }
    check!(status_of(pid) == 0, "the child");
    for address in all() {
        check!(
            word(address) == address + 1,
            "the parent reads {:#x}",
            word(address)
        );
    }
    check!(unmap(at, pages * page) == 0, "munmap");
    say(format_args!("copied\n"));
}

/// Many processes that live at once, each with children of its own.
pub(super) fn storm(_: Start) {
    for _ in 0..4 {
        let mut pids = [0; 16];
        for pid in &mut pids {
            *pid = forked(|| {
                for _ in 0..4 {
                    fork_once();
                    call(calls::SCHED_YIELD, [0; 6]);
                }
                3
            });
        }
        for pid in pids {
            check!(status_of(pid) == 3 << 8, "status");
        }
    }
    say(format_args!("stormed\n"));
}

/// Forks until that is refused, and goes on.
pub(super) fn bomb(_: Start) {
    let mut count = 0u32;
    loop {
        let pid = calls::fork();
        if pid == 0 {
            // Waits for nothing that ever comes: until the first process ends all.
            loop {
                call(calls::SCHED_YIELD, [0; 6]);
            }
        }
        if pid < 0 {
            check!(pid == -11, "fork: {pid}");
            break;
        }
        count += 1;
    }
    say(format_args!("{count} processes beside the first\n"));
}

/// The descriptors of each of the thousand: the pipe at which it waits, and the one into which it
/// writes when it is ready.
const HELD: i64 = 20;
const READY: i64 = 21;

/// A thousand programs at once, with the smallest pages that they can have: each waits, and is ended. Then there is
/// room for as many again.
pub(super) fn thousand(_: Start) {
    const COUNT: usize = 1000;
    let (held, _held_open) = pipe(0);
    let (there, ready) = pipe(0);
    call(DUP3, [held as u64, HELD as u64, 0, 0, 0, 0]);
    call(DUP3, [ready as u64, READY as u64, 0, 0, 0, 0]);
    for _ in 0..2 {
        for made in 0..COUNT {
            let pid = calls::fork();
            if pid == 0 {
                wish_page_size(4 << 10);
                let path = c"/init".as_ptr() as u64;
                let arguments = [path, c"waits".as_ptr() as u64, 0];
                call(EXECVE, [path, arguments.as_ptr() as u64, 0, 0, 0, 0]);
                calls::exit(1);
            }
            check!(pid > 0, "fork after {made}: {pid}");
        }
        for number in 0..COUNT {
            let got = read(there, &mut [0]);
            check!(got == 1, "the sign of program {number}: {got}");
        }
        call(KILL, [u64::MAX, 9, 0, 0, 0, 0]);
        for _ in 0..COUNT {
            match wait(-1) {
                Ok((_, status)) => check!(status == 9, "status {status:#x}"),
                Err(error) => check!(false, "wait4: {error}"),
            }
        }
        check!(wait(-1) == Err(-10), "one more child");
    }
    say(format_args!("a thousand, twice\n"));
}

/// One of the thousand.
pub(super) fn waits(_: Start) {
    write(READY, b"x");
    read(HELD, &mut [0]);
}

/// A process that never calls the kernel does not keep others from running.
pub(super) fn preempt(_: Start) {
    let mut pids = [0; 8];
    for pid in &mut pids {
        *pid = forked(|| {
            loop {
                core::hint::spin_loop();
            }
        });
    }
    for _ in 0..3 {
        fork_once();
    }
    // Not left behind: tests beside this one would wait for their time slices.
    for pid in pids {
        call(KILL, [pid as u64, 9, 0, 0, 0, 0]);
        check!(status_of(pid) == 9, "who never calls");
    }
    say(format_args!("preempted\n"));
}

/// A child with its parent's memory: what it writes stays, and the parent waits for its end.
pub(super) fn vfork(start: Start) {
    let page = page(start);
    let at = map(page, calls::READ_WRITE).unwrap_or(0);
    let stack = map(0x4_0000, calls::READ_WRITE).unwrap_or(0);
    const VM_VFORK: u64 = 0x4100 | 17;
    let pid: i64;
    // SAFETY: the child runs on memory of its own, calls the kernel and ends; the parent finds all
    // registers as they were.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            // Long enough for a parent that does not wait to be seen.
            "mov x10, #1000",
            "1: mov x8, {yields}",
            "svc #0",
            "sub x10, x10, #1",
            "cbnz x10, 1b",
            "mov x9, #77",
            "str x9, [x11]",
            "mov x0, #9",
            "mov x8, {exit}",
            "svc #0",
            "2:",
            in("x8") calls::CLONE,
            inlateout("x0") VM_VFORK => pid,
            in("x1") stack + 0x4_0000,
            in("x2") 0u64,
            in("x3") 0u64,
            in("x4") 0u64,
            in("x11") at,
            yields = const calls::SCHED_YIELD,
            exit = const calls::EXIT_GROUP,
            out("x9") _,
            out("x10") _,
        );
    }
    check!(pid > 0, "clone: {pid}");
    check!(word(at) == 77, "the parent did not wait: {}", word(at));
    check!(status_of(pid) == 9 << 8, "status");
    say(format_args!("lent\n"));
}

/// Children of who has ended are the first process's.
pub(super) fn orphans(_: Start) {
    let pid = forked(|| {
        for _ in 0..5 {
            forked(|| {
                // Until the parent has gone.
                while call(calls::GETPPID, [0; 6]) != 1 {
                    call(calls::SCHED_YIELD, [0; 6]);
                }
                11
            });
        }
        0
    });
    check!(status_of(pid) == 0, "the parent");
    for _ in 0..5 {
        let found = wait(-1);
        check!(matches!(found, Ok((_, 0xb00))), "an orphan: {found:?}");
    }
    check!(wait(-1) == Err(-10), "one more");
    say(format_args!("orphaned\n"));
}

/// Runs as many children as the second argument gives, busy at the same time, and prints on how
/// many CPUs.
pub(super) fn spread(start: Start) {
    let mut used = 0u64;
    let children = super::number(start.argument(2));
    for _ in 0..children {
        forked(|| {
            let begun = counter();
            while counter() - begun < frequency() / 4 {}
            let mut cpu = 0u32;
            let result = call(calls::GETCPU, [&raw mut cpu as u64, 0, 0, 0, 0, 0]);
            check!(result == 0, "getcpu: {result}");
            cpu as i32
        });
    }
    for _ in 0..children {
        used |= 1 << (status_of_any() >> 8);
    }
    say(format_args!("on {} CPUs\n", used.count_ones()));
}

/// Waits for any child; its status.
fn status_of_any() -> u32 {
    match wait(-1) {
        Ok((_, status)) => status,
        Err(error) => {
            check!(false, "wait: {error}");
            0
        }
    }
}

pub(super) fn counter() -> u64 {
    let value: u64;
    // SAFETY: reads a counter that programs may read.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack)) };
    value
}

pub(super) fn frequency() -> u64 {
    let value: u64;
    // SAFETY: as above.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) value, options(nomem, nostack)) };
    value
}

/// Is gone as soon as the last of its children can be reaped; they end one after the
/// other, each on another CPU where there are so many.
pub(super) fn hasty(_: Start) {
    say(format_args!("hastened\n"));
    for child in 0..3 {
        forked(|| {
            let begun = counter();
            while counter() - begun < child * frequency() / 50 {}
            0
        });
    }
    // WNOHANG, until there are none.
    while call(calls::WAIT4, [u64::MAX, 0, 1, 0, 0, 0]) >= 0 {}
}

/// FP and SIMD registers, and the thread pointer, stay a process's own while others run.
pub(super) fn registers(_: Start) {
    let mut pids = [0; 6];
    for (number, pid) in pids.iter_mut().enumerate() {
        *pid = forked(|| keep(number as u64 + 1));
    }
    for pid in pids {
        check!(status_of(pid) == 0, "registers of {pid}");
    }
    say(format_args!("kept\n"));
}

/// Puts `seed` into registers and looks whether it stays there over many turns; 0 if so.
fn keep(seed: u64) -> i32 {
    let lost: u64;
    // SAFETY: uses only registers that it names; the thread pointer is nobody's here.
    unsafe {
        asm!(
            ".arch_extension fp",
            ".arch_extension simd",
            "msr tpidr_el0, {seed}",
            "dup v0.2d, {seed}",
            "dup v7.2d, {seed}",
            "dup v31.2d, {seed}",
            "and {word}, {seed}, #7",
            "lsl {word}, {word}, #22",
            "msr fpcr, {word}",
            "mov {lost}, #0",
            "2:",
            "mov x8, {yields}",
            "svc #0",
            // Turns end here too.
            "mov {word}, #0x4000",
            "3: sub {word}, {word}, #1",
            "cbnz {word}, 3b",
            "umov {word}, v0.d[1]",
            "eor {word}, {word}, {seed}",
            "orr {lost}, {lost}, {word}",
            "umov {word}, v7.d[0]",
            "eor {word}, {word}, {seed}",
            "orr {lost}, {lost}, {word}",
            "umov {word}, v31.d[1]",
            "eor {word}, {word}, {seed}",
            "orr {lost}, {lost}, {word}",
            "mrs {word}, tpidr_el0",
            "eor {word}, {word}, {seed}",
            "orr {lost}, {lost}, {word}",
            "mrs {word}, fpcr",
            "eor {word}, {word}, {seed}, lsl #22",
            "and {word}, {word}, #0x1c00000",
            "orr {lost}, {lost}, {word}",
            // Of exception vectors, which EL0 may read.
            "mrs {word}, tpidrro_el0",
            "orr {lost}, {lost}, {word}",
            "subs {rounds}, {rounds}, #1",
            "b.ne 2b",
            ".arch_extension nosimd",
            ".arch_extension nofp",
            seed = in(reg) seed,
            word = out(reg) _,
            lost = out(reg) lost,
            rounds = inout(reg) 200u64 => _,
            yields = const calls::SCHED_YIELD,
            out("x0") _,
            out("x8") _,
        );
    }
    i32::from(lost != 0)
}

/// Leaves processes behind in every state; the kernel ends and counts them.
pub(super) fn left(_: Start) {
    for _ in 0..4 {
        // One that runs.
        forked(|| {
            loop {
                core::hint::spin_loop();
            }
        });
        // One that nobody reaps.
        forked(|| 0);
        // One that sleeps for ever.
        forked(|| {
            let child = forked(|| {
                loop {
                    core::hint::spin_loop();
                }
            });
            status_of(child) as i32
        });
    }
    for _ in 0..50 {
        call(calls::SCHED_YIELD, [0; 6]);
    }
    say(format_args!("left\n"));
}
