//! The image's header, the entry code that saves the registers, and vectors that report an exception.

#![allow(unsafe_code, reason = "entry and vectors")]

use core::arch::global_asm;
use core::mem::offset_of;

/// The registers at the first instruction, and values that the entry code added.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entered {
    /// x0 to x3.
    pub(crate) x: [u64; 4],
    /// CNTVCT.
    pub(crate) count: u64,
    /// PSTATE.DAIF.
    pub(crate) daif: u64,
    /// The exception level, 1 or 2.
    pub(crate) el: u64,
    /// SCTLR of that level.
    pub(crate) sctlr: u64,
    /// HCR_EL2, 0 at EL1.
    pub(crate) hcr: u64,
    /// ISR_EL1: interrupts that are pending although masked.
    pub(crate) pending: u64,
    /// CPACR_EL1 and CNTKCTL_EL1: EL0's access to floating point and to the counters. With E2H the names
    /// access CPTR_EL2 and CNTHCTL_EL2.
    pub(crate) cpacr: u64,
    pub(crate) cntkctl: u64,
    /// Address of the image's first byte.
    pub(crate) load: u64,
    /// The console's registers, once they are known, for reporting an exception.
    pub(crate) uart: u64,
}

/// Bytes at the end of the image's memory that are written: the stack, with `Entered` at its top.
const SCRATCH: usize = 64 << 10;
const ENTERED: usize = size_of::<Entered>();

// A stack pointer must be a multiple of 16.
const _: () = assert!(ENTERED.is_multiple_of(16));

/// SCTLR with the MMU and caches off and the RES1 bits set (those of the level, without E2H).
const SCTLR_EL1: u64 = 0x30d0_0800;
const SCTLR_EL2: u64 = 0x30c5_0830;

// x0 = physical address of the device tree. If the MMU is on, SCTLR is left alone and the probe reports the
// error, because the memory that it would need with the MMU on is not mapped.
global_asm!(
    r#"
    .section .head.text, "ax"
    .global _start
_start:
    b       entry
    .long   0
    .quad   0                       // text_offset
    .quad   __image_size
    .quad   1 << 3                  // little endian, any page size, placed anywhere
    .quad   0
    .quad   0
    .quad   0
    .ascii  "ARM\x64"
    .long   0

    .global entry
entry:
    mrs     x9, cntvct_el0
    mrs     x10, daif
    msr     daifset, #0xf
    mrs     x11, CurrentEL
    lsr     x11, x11, #2
    adr     x8, _start
    adr     x7, vectors
    cmp     x11, #2
    b.eq    1f
    mrs     x12, sctlr_el1
    mov     x13, xzr
    msr     vbar_el1, x7
    movz    x6, #{sctlr_el1_low}
    movk    x6, #{sctlr_el1_high}, lsl #16
    tbnz    x12, #0, 2f
    msr     sctlr_el1, x6
    b       2f
1:  mrs     x12, sctlr_el2
    mrs     x13, hcr_el2
    msr     vbar_el2, x7
    movz    x6, #{sctlr_el2_low}
    movk    x6, #{sctlr_el2_high}, lsl #16
    // With E2H the register has EL1's layout.
    tbz     x13, #34, 4f
    movz    x6, #{sctlr_el1_low}
    movk    x6, #{sctlr_el1_high}, lsl #16
4:  tbnz    x12, #0, 2f
    msr     sctlr_el2, x6
2:  isb
    msr     spsel, #1
    mrs     x14, isr_el1

    // The stack: the last bytes of the memory that the header requires. Whatever a cache holds of it
    // would be written back over what is stored past the caches.
    ldr     x5, [x8, #16]
    add     x5, x5, x8
    and     x5, x5, #~0xfff
    mov     x4, #{scratch}
    sub     x4, x5, x4
    mrs     x6, ctr_el0
    ubfx    x6, x6, #16, #4
    mov     x7, #4
    lsl     x6, x7, x6
3:  dc      civac, x4
    add     x4, x4, x6
    cmp     x4, x5
    b.lo    3b
    dsb     sy

    sub     x5, x5, #{entered}
    mov     sp, x5
    stp     x0, x1, [sp, #{x}]
    stp     x2, x3, [sp, #{x} + 16]
    str     x9, [sp, #{count}]
    str     x10, [sp, #{daif}]
    str     x11, [sp, #{el}]
    str     x12, [sp, #{sctlr}]
    str     x13, [sp, #{hcr}]
    str     x14, [sp, #{pending}]
    mrs     x15, cpacr_el1
    mrs     x16, cntkctl_el1
    str     x15, [sp, #{cpacr}]
    str     x16, [sp, #{cntkctl}]
    str     x8, [sp, #{load}]
    str     xzr, [sp, #{uart}]
    mov     x29, xzr
    mov     x0, sp
    bl      probe_main
    .global probe_stop
probe_stop:
    wfi
    b       probe_stop

    // Where `Entered` lies is found as above: the stack pointer may be what is wrong.
    .balign 2048
vectors:
    .rept   16
    b       exception
    .balign 128
    .endr
exception:
    adr     x8, _start
    ldr     x5, [x8, #16]
    add     x5, x5, x8
    and     x5, x5, #~0xfff
    sub     x0, x5, #{entered}
    mov     sp, x0
    mrs     x4, CurrentEL
    cmp     x4, #(2 << 2)
    b.eq    1f
    mrs     x1, esr_el1
    mrs     x2, elr_el1
    mrs     x3, far_el1
    b       2f
1:  mrs     x1, esr_el2
    mrs     x2, elr_el2
    mrs     x3, far_el2
2:  bl      probe_exception
    b       probe_stop
"#,
    sctlr_el1_low = const SCTLR_EL1 & 0xffff,
    sctlr_el1_high = const SCTLR_EL1 >> 16,
    sctlr_el2_low = const SCTLR_EL2 & 0xffff,
    sctlr_el2_high = const SCTLR_EL2 >> 16,
    scratch = const SCRATCH,
    entered = const ENTERED,
    x = const offset_of!(Entered, x),
    count = const offset_of!(Entered, count),
    daif = const offset_of!(Entered, daif),
    el = const offset_of!(Entered, el),
    sctlr = const offset_of!(Entered, sctlr),
    hcr = const offset_of!(Entered, hcr),
    pending = const offset_of!(Entered, pending),
    cpacr = const offset_of!(Entered, cpacr),
    cntkctl = const offset_of!(Entered, cntkctl),
    load = const offset_of!(Entered, load),
    uart = const offset_of!(Entered, uart),
);

pub(crate) fn stop() -> ! {
    loop {
        // SAFETY: only waits.
        unsafe { core::arch::asm!("wfi", options(nomem, nostack, preserves_flags)) };
    }
}

/// Never called: a check of the linked code ensures that nothing panics.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    stop()
}
