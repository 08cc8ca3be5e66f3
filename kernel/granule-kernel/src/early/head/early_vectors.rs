//! Exception vectors while the MMU is off. Every exception is an error there: it goes into the boot
//! record, and to the console if that is known, before the CPU parks.

use core::arch::global_asm;

// 16 vectors of 128 bytes at a 2 KiB boundary. Each branches to one Rust function on a stack of its
// own, because the stack pointer may be the cause. ESR and ELR are read from the present exception
// level.
global_asm!(
    r#"
    .section .head.text.early_vectors, "ax"
    .balign 2048
    .global early_vectors
early_vectors:
    .rept   16
    b       early_exception
    .balign 128
    .endr

early_exception:
    adrp    x0, __exception_stack_top
    add     x0, x0, :lo12:__exception_stack_top
    mov     sp, x0
    mov     x29, xzr
    mrs     x0, CurrentEL
    cmp     x0, #(2 << 2)
    b.eq    1f
    mrs     x0, esr_el1
    mrs     x1, elr_el1
    mrs     x2, far_el1
    b       2f
1:  mrs     x0, esr_el2
    mrs     x1, elr_el2
    mrs     x2, far_el2
2:  bl      mmu_off_exception
    b       park_loop
"#
);
