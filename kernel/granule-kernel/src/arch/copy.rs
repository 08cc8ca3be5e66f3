//! `memcpy`, to which the compiler turns every copy of a large value.
//!
//! No access is unaligned, for the code runs with the MMU off too, where all memory is Device and an unaligned
//! access faults. The compiler's own `memcpy` keeps that rule at 4 instructions for each word, and at 22 for each
//! word where source and destination are aligned differently; this one takes 1.4 and 8. It also leaves
//! x18 alone, which is the firmware's by UEFI's binding for AArch64, and which the compiler gives to no code here
//! (.cargo/config.toml).

#![allow(unsafe_code, reason = "the copy of any memory, in assembly")]

use core::arch::global_asm;

// x0 = destination, x1 = source, x2 = bytes; returns x0. They do not overlap. Only x1 to x12 change.
//
// A source that is aligned differently is read by whole aligned words, and each word of the destination is put
// together from two of them. The first and last word hold bytes beside the source's: never of another page.
global_asm!(
    r#"
    .section .text.memcpy, "ax"
    .global memcpy
    .type memcpy, %function
memcpy:
    mov     x3, x0
    orr     x4, x0, x1
    tst     x4, #7
    b.eq    3f
    cmp     x2, #16
    b.lo    9f
1:  tst     x3, #7
    b.eq    2f
    ldrb    w5, [x1], #1
    strb    w5, [x3], #1
    sub     x2, x2, #1
    b       1b
2:  ands    x4, x1, #7
    b.ne    7f
3:  subs    x2, x2, #64
    b.lo    5f
4:  ldp     x5, x6, [x1]
    ldp     x7, x8, [x1, #16]
    ldp     x9, x10, [x1, #32]
    ldp     x11, x12, [x1, #48]
    add     x1, x1, #64
    stp     x5, x6, [x3]
    stp     x7, x8, [x3, #16]
    stp     x9, x10, [x3, #32]
    stp     x11, x12, [x3, #48]
    add     x3, x3, #64
    subs    x2, x2, #64
    b.hs    4b
5:  tbz     x2, #5, 5f
    ldp     x5, x6, [x1], #16
    ldp     x7, x8, [x1], #16
    stp     x5, x6, [x3], #16
    stp     x7, x8, [x3], #16
5:  tbz     x2, #4, 5f
    ldp     x5, x6, [x1], #16
    stp     x5, x6, [x3], #16
5:  tbz     x2, #3, 5f
    ldr     x5, [x1], #8
    str     x5, [x3], #8
5:  tbz     x2, #2, 5f
    ldr     w5, [x1], #4
    str     w5, [x3], #4
5:  tbz     x2, #1, 5f
    ldrh    w5, [x1], #2
    strh    w5, [x3], #2
5:  tbz     x2, #0, 6f
    ldrb    w5, [x1]
    strb    w5, [x3]
6:  ret
7:  bic     x1, x1, #7
    lsl     x5, x4, #3
    neg     x6, x5
    ldr     x7, [x1]
    sub     x2, x2, #8
8:  ldr     x8, [x1, #8]!
    lsr     x7, x7, x5
    lsl     x9, x8, x6
    orr     x9, x9, x7
    mov     x7, x8
    str     x9, [x3], #8
    subs    x2, x2, #8
    b.hs    8b
    add     x2, x2, #8
    add     x1, x1, x4
9:  cbz     x2, 6b
8:  ldrb    w5, [x1], #1
    strb    w5, [x3], #1
    subs    x2, x2, #1
    b.ne    8b
    ret
    .size memcpy, . - memcpy
"#
);
