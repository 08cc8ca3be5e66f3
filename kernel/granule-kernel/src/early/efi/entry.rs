//! The two ends of the stub: from the firmware's call to Rust, and from Rust to the copy of the image.

#![allow(unsafe_code, reason = "the stub's entry and the jump to the copy")]

use crate::arch::sctlr::MMU_AND_CACHES;
use core::arch::global_asm;

// x0 = the image's handle, x1 = the system table; a function of the firmware's C ABI. The image has no
// relocations that a PE loader applies, so it relocates itself for the address at which it was loaded, as
// `entry` does: Rust's pointers in constants are right from then on. A second pass by the copy's entry
// does no harm. `cargo xtask image` checks that there is only one kind, so the park in `apply_relocations`
// is never reached here.
global_asm!(
    r#"
    .section .head.text.efi, "ax"
    .global efi_entry
efi_entry:
    stp     x29, x30, [sp, #-32]!
    mov     x29, sp
    stp     x19, x20, [sp, #16]
    mov     x19, x0
    mov     x20, x1
    adrp    x0, _start
    add     x0, x0, :lo12:_start
    mov     x1, x0
    bl      apply_relocations
    mov     x0, x19
    mov     x1, x20
    bl      efi_main
    ldp     x19, x20, [sp, #16]
    ldp     x29, x30, [sp], #32
    ret
"#
);

// x0 = the device tree, x1 = the copy of the image. Does not return. The boot services have ended, the map of
// the firmware is flat, and all that is read with the MMU off was cleaned to the point of coherency, these
// instructions too. The level is that of the firmware, EL1 or EL2; at EL2 the register's name and the bits
// are the same with E2H and without.
//
// No data access from the write of SCTLR on: it would go past the caches, where the stack's lines are
// still dirty. The DSB before it completes the firmware's stores. The TLBI and the IC come after, when
// no walk and no fetch through the cache can bring back what they removed.
global_asm!(
    r#"
    .section .head.text.efi, "ax"
    .global efi_leave
efi_leave:
    msr     daifset, #0xf
    movz    x3, #{mmu_and_caches}
    mrs     x2, CurrentEL
    cmp     x2, #(2 << 2)
    dsb     sy
    b.eq    1f
    mrs     x2, sctlr_el1
    bic     x2, x2, x3
    msr     sctlr_el1, x2
    isb
    tlbi    vmalle1
    b       2f
1:  mrs     x2, sctlr_el2
    bic     x2, x2, x3
    msr     sctlr_el2, x2
    isb
    tlbi    alle2
2:  ic      iallu
    dsb     nsh
    isb
    br      x1
    .global efi_leave_end
efi_leave_end:
"#,
    mmu_and_caches = const MMU_AND_CACHES,
);
