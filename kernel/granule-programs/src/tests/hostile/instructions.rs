//! Instructions that are not a program's, and accesses to what is not its own.

#![allow(unsafe_code, reason = "deliberate faults")]

use super::{KERNEL, UPPER, Victim};
use crate::tests::memory::mapped;
use crate::tests::page;
use crate::tests::processes::{forked, status_of};
use crate::{check, check_eq};
use core::arch::asm;
use granule_programs::calls::{self, KILL, SIGKILL, call, protect, say};
use granule_programs::start::Start;

const SIGILL: u32 = 4;
const SIGTRAP: u32 = 5;
const SIGBUS: u32 = 7;
const SIGSEGV: u32 = 11;

/// Runs one word of code with `x0` in its register; it may come back.
fn run(code: u64, x0: u64) {
    // SAFETY: one instruction and a return, in memory that the caller made for it; what it does to
    // this process, this process bears.
    unsafe { asm!("blr {code}", code = in(reg) code, inout("x0") x0 => _, clobber_abi("C")) };
}

/// Memory with these words in it and a return behind them, to be executed.
fn code(page: u64, words: &[u32]) -> u64 {
    const RET: u32 = 0xd65f_03c0;
    let at = mapped(page);
    for (index, word) in words.iter().chain(&[RET]).enumerate() {
        // SAFETY: just mapped, and large enough.
        unsafe { (at as *mut u32).add(index).write_volatile(*word) };
    }
    check!(protect(at, page, 5) == 0, "code cannot be made executable");
    at
}

/// `MRS`, `MSR` and `SYS` by their fields, with x0.
const fn system(read: u32, op0: u32, op1: u32, crn: u32, crm: u32, op2: u32) -> u32 {
    0xd500_0000 | read << 21 | op0 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5
}

/// Single instructions that end who does them by SIGILL, with what they are.
const UNDEFINED: &[(u32, &str)] = &[
    (0, "udf #0"),
    (0xffff_ffff, "all ones"),
    (0xd400_0002, "hvc #0"),
    (0xd400_0003, "smc #0"),
    (0xd69f_03e0, "eret"),
    (0xd6bf_03e0, "drps"),
    (0xd503_42df, "msr daifset, #2"),
    (0xd503_42ff, "msr daifclr, #2"),
    (0xd500_40bf, "msr spsel, #0"),
    (0xd500_419f, "msr pan, #1"),
    (system(1, 3, 3, 4, 2, 1), "mrs daif"),
    (system(0, 3, 3, 4, 2, 1), "msr daif"),
    (system(0, 3, 0, 1, 0, 0), "msr sctlr_el1"),
    (system(1, 3, 0, 1, 0, 0), "mrs sctlr_el1"),
    (system(0, 3, 0, 1, 0, 2), "msr cpacr_el1"),
    (system(0, 3, 0, 2, 0, 0), "msr ttbr0_el1"),
    (system(0, 3, 0, 2, 0, 1), "msr ttbr1_el1"),
    (system(1, 3, 0, 2, 0, 1), "mrs ttbr1_el1"),
    (system(0, 3, 0, 2, 0, 2), "msr tcr_el1"),
    (system(1, 3, 0, 4, 0, 0), "mrs spsr_el1"),
    (system(0, 3, 0, 4, 0, 1), "msr elr_el1"),
    (system(0, 3, 0, 4, 1, 0), "msr sp_el0"),
    (system(1, 3, 0, 4, 2, 2), "mrs currentel"),
    (system(1, 3, 0, 5, 2, 0), "mrs esr_el1"),
    (system(1, 3, 0, 6, 0, 0), "mrs far_el1"),
    (system(0, 3, 0, 10, 2, 0), "msr mair_el1"),
    (system(0, 3, 0, 12, 0, 0), "msr vbar_el1"),
    (system(0, 3, 0, 13, 0, 4), "msr tpidr_el1"),
    (system(0, 3, 3, 13, 0, 3), "msr tpidrro_el0"),
    (system(1, 3, 4, 1, 1, 0), "mrs hcr_el2"),
    (system(0, 3, 4, 1, 1, 0), "msr hcr_el2"),
    (system(1, 3, 6, 1, 1, 0), "mrs scr_el3"),
    (system(0, 3, 0, 12, 12, 7), "msr icc_igrpen1_el1"),
    (system(0, 3, 0, 12, 11, 5), "msr icc_sgi1r_el1"),
    (system(1, 3, 3, 14, 0, 1), "mrs cntpct_el0"),
    (system(0, 3, 3, 14, 2, 1), "msr cntp_ctl_el0"),
    (system(0, 3, 3, 14, 2, 2), "msr cntp_cval_el0"),
    (system(0, 3, 3, 14, 3, 1), "msr cntv_ctl_el0"),
    (system(0, 3, 3, 14, 3, 2), "msr cntv_cval_el0"),
    (system(0, 3, 0, 14, 1, 0), "msr cntkctl_el1"),
    (system(0, 3, 3, 14, 0, 0), "msr cntfrq_el0"),
    (system(0, 3, 3, 9, 12, 0), "msr pmcr_el0"),
    (system(1, 3, 3, 9, 13, 0), "mrs pmccntr_el0"),
    (system(0, 3, 3, 9, 14, 0), "msr pmuserenr_el0"),
    (system(0, 2, 0, 0, 2, 2), "msr mdscr_el1"),
    (system(0, 2, 0, 0, 0, 5), "msr dbgbcr0_el1"),
    (system(0, 2, 0, 1, 0, 4), "msr oslar_el1"),
    (system(0, 1, 0, 7, 6, 1), "dc ivac"),
    (system(0, 1, 0, 7, 6, 2), "dc isw"),
    (system(0, 1, 0, 7, 14, 2), "dc cisw"),
    (system(0, 1, 0, 7, 5, 0), "ic iallu"),
    (system(0, 1, 0, 7, 1, 0), "ic ialluis"),
    (system(0, 1, 0, 8, 7, 0), "tlbi vmalle1"),
    (system(0, 1, 0, 8, 3, 0), "tlbi vmalle1is"),
    (system(0, 1, 0, 8, 3, 1), "tlbi vae1is"),
    (system(0, 1, 4, 8, 7, 0), "tlbi alle2"),
    (system(0, 1, 0, 7, 8, 0), "at s1e1r"),
    // HLT is undefined without a debugger that has halting debug on.
    (0xd440_0000, "hlt #0"),
    // To the debugger, of which there is none.
    (0xd4a0_0001, "dcps1"),
];

/// Instructions that a program may execute: it goes on.
const ALLOWED: &[(u32, &str)] = &[
    (0xd503_207f, "wfi"),
    (0xd503_205f, "wfe"),
    (0xd503_209f, "sev"),
    (0xd503_203f, "yield"),
    (0xd503_22df, "a hint that is none"),
    (system(1, 3, 3, 14, 0, 2), "mrs cntvct_el0"),
    (system(1, 3, 3, 14, 0, 0), "mrs cntfrq_el0"),
    (system(1, 3, 3, 0, 0, 1), "mrs ctr_el0"),
    (system(1, 3, 3, 0, 0, 7), "mrs dczid_el0"),
    (system(0, 3, 3, 13, 0, 2), "msr tpidr_el0"),
    (system(1, 3, 3, 13, 0, 3), "mrs tpidrro_el0"),
    (0xd503_3f9f, "dsb sy"),
    (0xd503_3fdf, "isb"),
    // CLREX, and an exclusive store without its load.
    (0xd503_3f5f, "clrex"),
];

/// Instructions that take the address in x0.
const AT_ADDRESS: &[(u32, &str)] = &[
    (0xf940_0000, "ldr"),
    (0xf900_0001, "str"),
    (0xc85f_7c00, "ldxr"),
    (0xc8df_fc00, "ldar"),
    (0xf980_0000, "prfm"),
    (system(0, 1, 3, 7, 4, 1), "dc zva"),
    (system(0, 1, 3, 7, 10, 1), "dc cvac"),
    (system(0, 1, 3, 7, 11, 1), "dc cvau"),
    (system(0, 1, 3, 7, 14, 1), "dc civac"),
    (system(0, 1, 3, 7, 5, 1), "ic ivau"),
    (0xd61f_0000, "br"),
];

/// Returns the status of a child that ran one instruction.
fn after(code: u64, x0: u64) -> u32 {
    status_of(forked(|| {
        run(code, x0);
        0
    }))
}

/// As [`after`], with the instruction in memory of its own.
fn after_one(page: u64, word: u32) -> u32 {
    let at = code(page, &[word]);
    let status = after(at, 0);
    calls::unmap(at, page);
    status
}

pub(in crate::tests) fn instructions(start: Start) {
    let page = page(start);
    let victim = Victim::new(page);
    for (rows, status) in [(UNDEFINED, SIGILL), (ALLOWED, 0)] {
        for (word, name) in rows {
            check_eq!(after_one(page, *word), status, "{name}");
        }
    }
    let addresses = [
        KERNEL,
        KERNEL + 0x20_0000,
        UPPER,
        0xffff << 48,
        u64::MAX - 7,
        1 << 55,
        0,
    ];
    for (word, name) in AT_ADDRESS {
        let at = code(page, &[*word]);
        for address in addresses {
            let status = after(at, address);
            // A prefetch never faults, and what cache maintenance does without a translation is the
            // implementation's own: nothing, or a fault.
            let maintains = *word >> 19 == 0xd508_0000_u32 >> 19 && *name != "dc zva";
            let quiet = *name == "prfm" || maintains;
            check!(
                status == SIGSEGV || quiet && status == 0,
                "{name} at {address:#x}: {status:#x}"
            );
        }
        calls::unmap(at, page);
    }
    breakpoints(page);
    stacks(page);
    writable_code(page);
    timer();
    victim.end();
    say(format_args!("undefined\n"));
}

/// Every number of a BRK.
fn breakpoints(page: u64) {
    for number in [0, 1, 2, 0x800, 0xffff] {
        let status = after_one(page, 0xd420_0000 | number << 5);
        check_eq!(status, SIGTRAP, "brk {number:#x}");
    }
}

/// Stack pointers that are invalid: misaligned, the kernel's, nowhere.
fn stacks(page: u64) {
    let with = |sp: u64, load: bool| {
        status_of(forked(|| {
            // SAFETY: nothing of this process uses the stack before it ends.
            unsafe {
                asm!(
                    "mov sp, {sp}",
                    "cbz {load}, 2f",
                    "ldr x9, [sp]",
                    "2:",
                    "mov x8, {pid}",
                    "svc #0",
                    "mov x0, #0",
                    "mov x8, {exit}",
                    "svc #0",
                    sp = in(reg) sp,
                    load = in(reg) u64::from(load),
                    pid = const calls::GETPID,
                    exit = const calls::EXIT_GROUP,
                    options(noreturn)
                );
            }
        }))
    };
    let room = mapped(page);
    for sp in [room + 8, room + 1, 0, KERNEL, UPPER, u64::MAX, 1 << 55] {
        // The kernel has a stack of its own: calls are made whatever is there.
        check_eq!(with(sp, false), 0, "a call with the stack at {sp:#x}");
        let status = with(sp, true);
        // Emulators need not look at the alignment: then what is there decides.
        let expected = if sp.is_multiple_of(16) {
            status == SIGSEGV
        } else {
            status == SIGBUS || status == if sp == u64::MAX { SIGSEGV } else { 0 }
        };
        check!(expected, "a load from the stack at {sp:#x}: {status:#x}");
    }
    // A handler has no place there either: who is signalled ends.
    let handled = status_of(forked(|| {
        let action = [room, 0x0800_0000, 0, 0];
        call(134, [10, action.as_ptr() as u64, 0, 8]);
        // SAFETY: as above.
        unsafe {
            asm!(
                "mov sp, {sp}",
                "mov x8, #172",
                "svc #0",
                "mov x1, #10",
                "mov x8, #129",
                "svc #0",
                "brk #9",
                sp = in(reg) KERNEL + 0x1000,
                options(noreturn)
            );
        }
    }));
    check!(
        handled == SIGSEGV,
        "a handler on the kernel's stack: {handled:#x}"
    );
    calls::unmap(room, page);
}

/// Memory is not executable because it was once, nor writable because it can be executed.
fn writable_code(page: u64) {
    let at = code(page, &[]);
    check!(after(at, 0) == 0, "a return");
    check!(protect(at, page, 3) == 0, "mprotect");
    check!(after(at, 0) == SIGSEGV, "data was executed");
    check!(protect(at, page, 1) == 0, "mprotect");
    check!(
        after(at, 0) == SIGSEGV,
        "data that is read-only was executed"
    );
    check!(protect(at, page, 5) == 0, "mprotect");
    check!(after(at, 0) == 0, "code again");
    let status = status_of(forked(|| {
        // SAFETY: to fault.
        unsafe { (at as *mut u32).write_volatile(0) };
        0
    }));
    check!(status == SIGSEGV, "code was written: {status:#x}");
    // The heap, the stack, and what a program has for its data.
    static DATA: u32 = 0xd65f_03c0;
    static mut WRITABLE: u32 = 0xd65f_03c0;
    let stack = 0xd65f_03c0_u32;
    for address in [
        &raw const DATA as u64,
        &raw const WRITABLE as u64,
        &raw const stack as u64,
    ] {
        check!(after(address, 0) == SIGSEGV, "{address:#x} was executed");
    }
    calls::unmap(at, page);
}

/// A program that spins with nothing but instructions that wait does not hinder others.
fn timer() {
    let pids = [0_u32; 3].map(|_| {
        forked(|| {
            loop {
                // SAFETY: waits.
                unsafe { asm!("wfi", "wfe", options(nomem, nostack)) };
            }
        })
    });
    check_eq!(status_of(forked(|| 5)), 5 << 8, "beside who waits");
    for pid in pids {
        call(KILL, [pid as u64, SIGKILL]);
        check!(status_of(pid) == 9, "who waits for ever");
    }
}
