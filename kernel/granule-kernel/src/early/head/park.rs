//! Parks the CPU before Rust can run, leaving the reason in the boot record.

use crate::handover::boot_record::{Reason, STATE_PARKED};
use core::arch::global_asm;

// Nothing may be assumed here: no stack, no relocation, and not even an image at a 4K boundary, which `adrp`
// needs. So nearby addresses use `adr`, and others use a constant offset from the image's start. Stores are
// words and bytes only, because the load address may be only a multiple of four.
//
// The record's lines may be dirty in a cache, as the loader wrote them. With the MMU off the stores here
// bypass the caches, and a later clean would write the loader's bytes over them. So the lines leave the
// caches first (clean and invalidate: data that shares a line with the record must survive). If the CPU was
// entered with the MMU on, the stores may stay in a cache, so they are cleaned at the end.
//
// Expects x21 = the image's address. `park_with` expects w0 = the reason's number and x1, x2 = the message
// and its length. It does not return, so x30 is free.
global_asm!(
    r#"
    .macro park_at name, reason, text
.Ltext_\name:
    .ascii  "\text"
.Lend_\name:
    .balign 4
    .global \name
\name:
    mov     w0, #\reason
    adr     x1, .Ltext_\name
    mov     w2, #(.Lend_\name - .Ltext_\name)
    b       park_with
    .endm

    .section .head.text.park, "ax"
    park_at park_el3, {el3}, "entered at EL3: the boot protocol requires EL2 or EL1"
    park_at park_mmu_on, {mmu_on}, "entered with the MMU on: the boot protocol requires it to be off"
    park_at park_align, {misaligned}, "loaded at an address that is not 2 MiB aligned: load the image at a multiple of 0x200000"
    park_at park_reloc, {relocation}, "the image has a relocation that is not R_AARCH64_RELATIVE: build it with its linker script"

park_with:
    mov     w6, w0                  // the cache routines leave x4 and up alone
    mov     x7, x1
    mov     w8, w2
    movz    x9, #:abs_g1:__boot_record_offset
    movk    x9, #:abs_g0_nc:__boot_record_offset
    add     x9, x9, x21
    mov     x0, x9
    add     x1, x9, #256
    bl      granule_cache_clean_and_invalidate
    str     w6, [x9, #24]           // reason
    str     w8, [x9, #28]           // message length
    add     x4, x9, #32
1:  ldrb    w5, [x7], #1
    strb    w5, [x4], #1
    subs    w8, w8, #1
    b.ne    1b
    mov     x0, x9
    add     x1, x9, #256
    bl      granule_cache_clean        // the state comes last: whoever sees it sees the rest
    mov     w4, #{parked}
    str     w4, [x9, #20]
    mov     x0, x9
    add     x1, x9, #256
    bl      granule_cache_clean

    .global park_loop
park_loop:
    wfi
    b       park_loop
"#,
    el3 = const Reason::EnteredAtEl3 as u32,
    mmu_on = const Reason::EnteredWithMmuOn as u32,
    misaligned = const Reason::Misaligned as u32,
    relocation = const Reason::Relocation as u32,
    parked = const STATE_PARKED,
);
