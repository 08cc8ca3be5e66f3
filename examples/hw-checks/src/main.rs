//! Checks of `granule::hw` that need a CPU and that no example makes: the handler of TLB conflict aborts,
//! which no emulator takes, the ID registers, and cache maintenance. This is a test, not an example.
//!
//! It runs at the exception level that the machine enters it at, with the MMU off.

#![no_std]
#![no_main]

use board::{exit, println};
use core::arch::global_asm;
use granule::arch::Regime;
use granule::hw;

global_asm!(
    ".global _start; _start: msr daifset, #0xf",
    "adrp x0, __stack_top; mov sp, x0",
    "b checks",
    // The handler at each level, entered as by an exception with the syndrome in x0. It comes back by
    // ERET, or branches to `other`. Returns 1 or 0, or 2 if x0 was not kept.
    ".macro take el, spsr, vector",
    "take_\\vector: msr esr_el\\el, x0",
    "adr x1, 7f; msr elr_el\\el, x1",
    "mov x1, #\\spsr; msr spsr_el\\el, x1",
    "mov x0, #0x123; b vector_\\vector",
    "7: mov x1, #1; b taken",
    ".endm",
    "take 1, 0x3c5, el1",
    "take 2, 0x3c9, el2",
    "take 2, 0x3c9, stage2",
    "take 3, 0x3cd, el3",
    "other: mov x1, #0",
    "taken: cmp x0, #0x123; mov x0, #2; csel x0, x1, x0, eq; ret",
    ".balign 128; vector_el1:",
    granule::tlb_conflict_vector!(el1, "tpidr_el0", "other"),
    ".balign 128; vector_el2:",
    granule::tlb_conflict_vector!(el2, "tpidr_el0", "other"),
    ".balign 128; vector_stage2:",
    granule::tlb_conflict_vector!(stage2, "tpidr_el0", "other"),
    ".balign 128; vector_el3:",
    granule::tlb_conflict_vector!(el3, "tpidr_el0", "other"),
    "vectors_end:",
);

unsafe extern "C" {
    safe fn take_el1(syndrome: u64) -> u64;
    safe fn take_el2(syndrome: u64) -> u64;
    safe fn take_stage2(syndrome: u64) -> u64;
    safe fn take_el3(syndrome: u64) -> u64;
    static vector_el3: u8;
    static vectors_end: u8;
    static __pool_start: u8;
}

/// The exception classes, each with the fault status codes, that `resolves` takes for a conflict.
fn conflicts(what: &str, resolves: impl Fn(u64) -> u64) {
    let (mut count, mut wrong) = (0, 0);
    println!("{what}:");
    for class in 0..64_u64 {
        for status in 0..64_u64 {
            // With all bits beside the two fields set, and then clear.
            for rest in [0x00ff_ffff_03ff_ffc0, 0] {
                match resolves(rest | class << 26 | status) {
                    0 => {}
                    1 => {
                        count += 1;
                        if rest == 0 {
                            println!("class {class:#x}, status {status:#x}");
                        }
                    }
                    _ => wrong += 1,
                }
            }
        }
    }
    println!("{count} of 8192 syndromes, {wrong} changed a register");
}

#[unsafe(no_mangle)]
extern "C" fn checks() -> ! {
    let level = hw::exception_level();
    println!("EL{level}");
    let (take, regime): (extern "C" fn(u64) -> u64, Regime) = match level {
        1 => (take_el1, Regime::El1And0),
        2 => (take_el2, Regime::El2),
        _ => (take_el3, Regime::El3),
    };
    conflicts("vector", |syndrome| take(syndrome));
    conflicts("function", |syndrome| hw::resolve_tlb_conflict(regime, syndrome).into());
    if level == 2 {
        conflicts("vector for guests", |syndrome| take_stage2(syndrome));
        conflicts("function for guests", |syndrome| {
            hw::resolve_tlb_conflict(Regime::Stage2, syndrome).into()
        });
    }
    let bytes = &raw const vectors_end as u64 - &raw const vector_el3 as u64;
    println!("a vector fits: {}", bytes + 4 <= 128);

    let registers = hw::cpu_features();
    let (midr, isar0) = (registers.midr, registers.isar0);
    println!("midr {midr:#x}, mmfr0 {:#x}, isar0 {isar0:#x}", registers.mmfr0);
    println!("mmfr1 {:#x}, mmfr2 {:#x}", registers.mmfr1, registers.mmfr2);

    // With the MMU off memory is written past the caches: maintenance of parts of lines keeps it.
    let start = &raw const __pool_start as u64;
    let words = start as *mut u64;
    for index in 0..64 {
        // SAFETY: nothing else uses the pool.
        unsafe { words.add(index).write_volatile(index as u64) };
    }
    hw::cache::clean(start + 8..start + 9);
    hw::cache::clean_and_invalidate(start + 1..start + 511);
    hw::cache::clean(start..start);
    // The last line of all addresses: there is none behind it. QEMU asks for no memory there.
    hw::cache::clean(u64::MAX - 1..u64::MAX);
    // SAFETY: the lines hold nothing that memory does not.
    unsafe { hw::cache::invalidate(start..start + 512) };
    // SAFETY: as above.
    let kept = (0..64).all(|index| unsafe { words.add(index).read_volatile() } == index as u64);
    println!("kept: {kept}, lines of {} bytes", hw::cache::line_bytes());
    exit()
}
