//! Processes: forks, copies, turns, ends.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::files::{pipe, read, run, write};
use super::memory::{get, mapped, set};
use super::page;
use crate::{check, check_eq};
use core::arch::asm;
use granule_programs::calls::{self, DUP3, KILL, call, say, unmap, wait, wish_page_size};
use granule_programs::start::Start;

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
    let ended = wait(pid);
    check!(
        matches!(ended, Ok((found, _)) if found == pid),
        "wait for {pid}: {ended:?}"
    );
    ended.unwrap_or_default().1
}

/// Makes the stack that a process needs its own, while there is memory: no page of it is missing later, or shared since
/// a fork.
#[inline(never)]
pub(super) fn settle() {
    let mut room = [0_u8; 0x1_0000];
    for byte in room.iter_mut().step_by(512) {
        // SAFETY: an element of a local array.
        unsafe { (&raw mut *byte).write_volatile(1) };
    }
}

/// One child, its number, its end.
fn fork_once() {
    let pid = forked(|| 42);
    check!(status_of(pid) == 42 << 8, "status");
}

pub(super) fn fork(_: Start) {
    check_eq!(call(calls::GETPID, []), 1, "the first process");
    check!(wait(-1) == Err(-10), "children that there are not");
    let pid = forked(|| {
        let parent = call(calls::GETPPID, []);
        i32::from(parent != 1)
    });
    check!(status_of(pid) == 0, "the child's parent");
    check!(wait(pid) == Err(-10), "a child twice");
    fork_once();
    // WNOHANG.
    let pid = forked(|| {
        for _ in 0..100 {
            call(calls::SCHED_YIELD, []);
        }
        7
    });
    let mut status = 0u32;
    loop {
        let found = call(calls::WAIT4, [u64::MAX, &raw mut status as u64, 1]);
        check!(found == 0 || found == pid, "wait4: {found}");
        if found == pid {
            break;
        }
        call(calls::SCHED_YIELD, []);
    }
    check!(status == 7 << 8, "status {status:#x}");
    say(format_args!("forked\n"));
}

/// Parent and child each see their own writes only, in every page.
pub(super) fn copies(start: Start) {
    let page = page(start);
    let pages = 100;
    let at = mapped(pages * page);
    let all = || (0..pages).map(|index| at + index * page);
    for address in all() {
        check!(get(address) == 0, "memory that is not zero at {address:#x}");
        set(address, address);
    }
    let pid = forked(|| {
        for address in all() {
            check!(
                get(address) == address,
                "the child reads {:#x}",
                get(address)
            );
            set(address, !address);
        }
        // A grandchild, of pages that are copies themselves.
        let pid = forked(|| {
            for address in all() {
                check!(
                    get(address) == !address,
                    "the grandchild reads {:#x}",
                    get(address)
                );
                set(address, 5);
            }
            0
        });
        check!(status_of(pid) == 0, "the grandchild");
        for address in all() {
            check!(
                get(address) == !address,
                "the child reads {:#x} after",
                get(address)
            );
        }
        0
    });
    for address in all() {
        check!(
            get(address) == address,
            "the parent reads {:#x}",
            get(address)
        );
        set(address, address + 1);
    }
    check!(status_of(pid) == 0, "the child");
    for address in all() {
        check!(
            get(address) == address + 1,
            "the parent reads {:#x}",
            get(address)
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
                    call(calls::SCHED_YIELD, []);
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
                call(calls::SCHED_YIELD, []);
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
    call(DUP3, [held as u64, HELD as u64]);
    call(DUP3, [ready as u64, READY as u64]);
    for _ in 0..2 {
        for made in 0..COUNT {
            let pid = calls::fork();
            if pid == 0 {
                wish_page_size(4 << 10);
                run(b"/init\0", &[b"/init\0", b"waits\0"]);
                calls::exit(1);
            }
            check!(pid > 0, "fork after {made}: {pid}");
        }
        for number in 0..COUNT {
            check_eq!(read(there, &mut [0]), 1, "the sign of program {number}");
        }
        call(KILL, [u64::MAX, 9]);
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
        call(KILL, [pid as u64, 9]);
        check!(status_of(pid) == 9, "who never calls");
    }
    say(format_args!("preempted\n"));
}

/// A child with its parent's memory: what it writes stays, and the parent waits for its end.
pub(super) fn vfork(start: Start) {
    let page = page(start);
    let at = mapped(page);
    let stack = mapped(0x4_0000);
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
    check!(get(at) == 77, "the parent did not wait: {}", get(at));
    check!(status_of(pid) == 9 << 8, "status");
    say(format_args!("lent\n"));
}

/// Children of who has ended are the first process's.
pub(super) fn orphans(_: Start) {
    let pid = forked(|| {
        for _ in 0..5 {
            forked(|| {
                // Until the parent has gone.
                while call(calls::GETPPID, []) != 1 {
                    call(calls::SCHED_YIELD, []);
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
            cpu() as i32
        });
    }
    for _ in 0..children {
        let ended = wait(-1);
        check!(ended.is_ok(), "wait: {ended:?}");
        used |= 1 << (ended.unwrap_or_default().1 >> 8);
    }
    say(format_args!("on {} CPUs\n", used.count_ones()));
}

/// The CPU that runs this process.
pub(super) fn cpu() -> u32 {
    let mut cpu = 0u32;
    check_eq!(call(calls::GETCPU, [&raw mut cpu as u64]), 0, "getcpu");
    cpu
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
    while call(calls::WAIT4, [u64::MAX, 0, 1]) >= 0 {}
}

/// Registers stay a process's own while others run.
pub(super) fn registers(_: Start) {
    let mut pids = [0; 6];
    for (number, pid) in pids.iter_mut().enumerate() {
        *pid = forked(|| i32::from(!registers_stay(number as u64 + 1, 200)));
    }
    for pid in pids {
        check!(status_of(pid) == 0, "registers of {pid}");
    }
    say(format_args!("kept\n"));
}

/// Puts something made of `seed` into registers of every kind, and looks whether it stays there over so many turns,
/// each with a call.
pub(super) fn registers_stay(seed: u64, rounds: u64) -> bool {
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
            "mov x20, {seed}",
            "mov x28, {seed}",
            "and {word}, {seed}, #7",
            "lsl {word}, {word}, #22",
            "msr fpcr, {word}",
            "mov {lost}, #0",
            "2:",
            "mov x8, {yields}",
            "svc #0",
            // Turns end here too.
            "mov {word}, #0x8000",
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
            "eor {word}, x20, {seed}",
            "orr {lost}, {lost}, {word}",
            "eor {word}, x28, {seed}",
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
            seed = in(reg) seed | 0xa5a5_0000_0000_0000,
            word = out(reg) _,
            lost = out(reg) lost,
            rounds = inout(reg) rounds => _,
            yields = const calls::SCHED_YIELD,
            out("x0") _,
            out("x8") _,
            out("x20") _,
            out("x28") _,
        );
    }
    lost == 0
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
        call(calls::SCHED_YIELD, []);
    }
    say(format_args!("left\n"));
}

/// Powers the machine off, in the process of the second argument: the first one, or a child's child, with
/// processes in every state.
pub(super) fn power_off(start: Start) {
    left(start);
    let off = || {
        const MAGIC: u64 = 0xfee1_dead;
        // Ctrl-Alt-Del off, as an init does at first; a command that is missing; power off.
        for (command, expected) in [(0, 0), (0x0123_4567, calls::EINVAL), (0x4321_fedc, -1)] {
            check_eq!(
                call(calls::REBOOT, [MAGIC, 0x2812_1969, command]),
                expected,
                "{command:#x}"
            );
        }
        1
    };
    if start.argument(2) == b"init" {
        off();
    }
    let child = forked(|| status_of(forked(off)) as i32);
    // Never returns.
    status_of(child);
    check!(false, "still here");
}
