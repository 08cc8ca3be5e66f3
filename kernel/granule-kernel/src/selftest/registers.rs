//! Tests the return from an interrupt: every register and the flags hold known values while calls arrive, and
//! are checked afterwards.

#![allow(unsafe_code, reason = "registers that keep known values during calls")]

use core::arch::global_asm;
use core::sync::atomic::AtomicU64;

// x0 = a flag to wait for. Returns 0, or the number of the register that was lost, or 32 for the flags. Every
// register but x0, x18 and x29 holds a value made from its own number in both halves. x18 belongs to the
// platform, and the loop uses x29. Z is set before the loop and tested in it.
global_asm!(
    r#"
    .section .text.hold_registers, "ax"
    .global hold_registers
hold_registers:
    stp     x29, x30, [sp, #-96]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    .irp    n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,19,20,21,22,23,24,25,26,27,28,30
    mov     x\n, #(0x5a00 + \n)
    movk    x\n, #(0xa500 + \n), lsl #48
    .endr
    cmp     x0, x0
1:  b.ne    3f
    yield                           // see `cpu::relax`
    ldr     x29, [x0]
    cbz     x29, 1b
    .irp    n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,19,20,21,22,23,24,25,26,27,28,30
    mov     x0, #\n
    mov     x29, #(0x5a00 + \n)
    movk    x29, #(0xa500 + \n), lsl #48
    cmp     x\n, x29
    b.ne    4f
    .endr
    mov     x0, xzr
    b       4f
3:  mov     x0, #32
4:  ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     x29, x30, [sp], #96
    ret
"#
);

/// Holds values in the general registers but x0, x18 and x29, and in the flags, until `flag` is not zero. Returns 0,
/// the number of the first register that was lost, or 32 for the flags.
pub(crate) fn hold(flag: &AtomicU64) -> u64 {
    unsafe extern "C" {
        fn hold_registers(flag: *const u64) -> u64;
    }
    // SAFETY: keeps the registers that the calling convention requires, and only reads the flag.
    unsafe { hold_registers(flag.as_ptr()) }
}
