//! The exception vectors with the MMU on. The handlers are in the other files of this module.

#![allow(unsafe_code, reason = "the vectors")]

use super::{conflict, spurious};
use crate::cpu::irq;
use crate::fatal::panic;
use crate::percpu::EXCEPTION_STACK_TOP;
use core::arch::global_asm;
use core::mem::offset_of;
use granule_kcore::exception_frame::{FRAME_BYTES, Frame};
use granule_kcore::{layout, syndrome};

// Vectors 4-7 are for exceptions of the kernel (current level, SP_ELx). Vectors 0-3 are for SP_EL0,
// which the kernel never selects, and 12-15 for EL0 in AArch32, which is never started. All of
// these store a frame and report their number. Vectors 8-11, for EL0, are further down.
//
// Before the first store the vector checks the stack in two ways:
//
// - Does the stack lie in the last 32 GiB of the address space (bits 63:35 all ones)? Only memory
//   outside, in the linear map, is ever split live. A store there might take a TLB conflict abort
//   before ELR and SPSR are saved.
// - Is there room? Bit 16 of the stack pointer less the frame is 0 within a stack and 1 in the
//   guard below it (see the linker script).
//
// If a check fails, the frame goes to this CPU's exception stack. That stack has the same layout,
// so an exception taken while it is in use finds room below. Meanwhile TPIDRRO_EL0, which has no
// other use while the kernel runs, holds x0. The two stack pointers are exchanged by sums in x0, so
// no value is lost and no other register or memory is touched. The flags are in SPSR.
global_asm!(
    r#"
    .macro elsewhere number, more
    mrs     x0, tpidr_el1
    ldr     x0, [x0, #{exception_stack_top}]
    sub     x0, x0, #{frame_bytes}
    add     sp, sp, x0
    sub     x0, sp, x0              // the interrupted stack pointer
    sub     sp, sp, x0              // the frame
    str     x1, [sp, #8]
    mov     x1, #(\number + \more)
    b       exception_common
    .endm

    .macro vector number
    .balign 128
    msr     tpidrro_el0, x0
    mov     x0, sp
    asr     x0, x0, #{never_split_shift}
    add     x0, x0, #1
    cbnz    x0, 2f
    sub     x0, sp, #{frame_bytes}
    tbnz    x0, #16, 1f
    sub     sp, sp, #{frame_bytes}
    str     x1, [sp, #8]
    mov     x1, #\number
    add     x0, sp, #{frame_bytes}
    b       exception_common
1:  elsewhere \number, {overflow}
2:  elsewhere \number, 0
    .endm

    .macro user_vector number
    .balign 128
    sub     sp, sp, #{frame_bytes}
    stp     x0, x1, [sp]
    mov     x1, #\number
    b       user_exception_common
    .endm

    .macro x2_to_x30 two, one
    \two    x2, x3, [sp, #16]
    \two    x4, x5, [sp, #32]
    \two    x6, x7, [sp, #48]
    \two    x8, x9, [sp, #64]
    \two    x10, x11, [sp, #80]
    \two    x12, x13, [sp, #96]
    \two    x14, x15, [sp, #112]
    \two    x16, x17, [sp, #128]
    \two    x18, x19, [sp, #144]
    \two    x20, x21, [sp, #160]
    \two    x22, x23, [sp, #176]
    \two    x24, x25, [sp, #192]
    \two    x26, x27, [sp, #208]
    \two    x28, x29, [sp, #224]
    \one    x30, [sp, #240]
    .endm

    .section .text.vectors, "ax"
    .balign 2048
    .global exception_vectors
exception_vectors:
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7
    vector  \number
    .endr
    .irp number, 8, 9, 10, 11
    user_vector \number
    .endr
    .irp number, 12, 13, 14, 15
    vector  \number
    .endr
    .balign 128

    // sp = the frame, with x1 stored; x0 = the interrupted stack pointer; x1 =
    // vector number; TPIDRRO_EL0 = the interrupted x0.
exception_common:
    str     x0, [sp, #{sp}]
    mrs     x0, tpidrro_el0
    str     x0, [sp, #0]
    x2_to_x30 stp, str
    mrs     x2, elr_el1
    mrs     x3, spsr_el1
    mrs     x4, esr_el1
    mrs     x5, far_el1
    str     x2, [sp, #{elr}]
    str     x3, [sp, #{spsr}]
    str     x4, [sp, #{esr}]
    str     x5, [sp, #{far}]
    str     x29, [sp, #{record}]
    str     x2, [sp, #{record} + 8]
    add     x29, sp, #{record}
    mov     x0, sp
    bl      exception_taken

    // Dealt with: back to what was interrupted, on its stack. Interrupts are masked and the frame
    // lies where nothing is split, so nothing takes ELR and SPSR from us any more.
    ldr     x2, [sp, #{elr}]
    ldr     x3, [sp, #{spsr}]
    msr     elr_el1, x2
    msr     spsr_el1, x3
    ldr     x0, [sp, #0]
    msr     tpidrro_el0, x0
    x2_to_x30 ldp, ldr
    ldr     x0, [sp, #{sp}]
    ldr     x1, [sp, #8]
    mov     sp, x0
    mrs     x0, tpidrro_el0
    eret

    // From EL0, whose stack pointer is SP_EL0: SP_ELx is what the way back to EL0 left, the top of
    // the task's kernel stack, which is empty and lies in the last 32 GiB. Both questions have one
    // answer, and x0 can be stored at once.
    //
    // sp = the frame, with x0 and x1 stored; x1 = vector number.
user_exception_common:
    x2_to_x30 stp, str
    mrs     x0, sp_el0
    mrs     x2, elr_el1
    mrs     x3, spsr_el1
    mrs     x4, esr_el1
    mrs     x5, far_el1
    str     x0, [sp, #{sp}]
    str     x2, [sp, #{elr}]
    str     x3, [sp, #{spsr}]
    str     x4, [sp, #{esr}]
    str     x5, [sp, #{far}]
    // Backtraces end here: what EL0 has in x29 is none of ours.
    stp     xzr, xzr, [sp, #{record}]
    add     x29, sp, #{record}
    mov     x0, sp
    bl      user_exception_taken

    // To EL0, by the frame at sp, with interrupts masked. TPIDRRO_EL0 is where vectors above put
    // x0: EL0 may read it, and is to find nothing there.
    .global user_return
user_return:
    ldr     x2, [sp, #{elr}]
    ldr     x3, [sp, #{spsr}]
    ldr     x4, [sp, #{sp}]
    msr     elr_el1, x2
    msr     spsr_el1, x3
    msr     sp_el0, x4
    msr     tpidrro_el0, xzr
    ldp     x0, x1, [sp]
    x2_to_x30 ldp, ldr
    add     sp, sp, #{frame_bytes}
    eret

    // The first steps of a task: sp = the frame that it goes to EL0 by, which the kernel made.
    .global user_task_begins
user_task_begins:
    mov     x29, xzr
    mov     x0, sp
    bl      user_task_begun
    b       user_return
"#,
    frame_bytes = const FRAME_BYTES,
    never_split_shift = const layout::NEVER_SPLIT_SHIFT,
    exception_stack_top = const EXCEPTION_STACK_TOP,
    overflow = const OVERFLOW,
    sp = const offset_of!(Frame, sp),
    elr = const offset_of!(Frame, elr),
    spsr = const offset_of!(Frame, spsr),
    esr = const offset_of!(Frame, esr),
    far = const offset_of!(Frame, far),
    record = const offset_of!(Frame, record),
);

/// Added to the vector number when the exception found no room on its stack.
const OVERFLOW: u64 = 16;

unsafe extern "C" {
    static exception_vectors: u8;
}

/// The start address of a new task. The stack pointer must be at the frame by which it goes to EL0.
pub(crate) fn task_start() -> u64 {
    unsafe extern "C" {
        static user_task_begins: u8;
    }
    &raw const user_task_begins as u64
}

/// Virtual address of the vectors.
pub(super) fn address() -> u64 {
    &raw const exception_vectors as u64
}

/// Numbers of the vectors for the kernel's own synchronous exceptions and IRQs.
const SYNCHRONOUS: u64 = 4;
const IRQ: u64 = 5;

/// Whether the address of an exception's frame is below the stack that was in use. Set where that may be mapped:
/// elsewhere the vectors see it.
pub(crate) static IS_BELOW_STACK: spin::Once<fn(u64) -> bool> = spin::Once::new();

/// Handles an exception of the kernel. Returns only if the interrupted code can continue.
#[unsafe(no_mangle)]
extern "C" fn exception_taken(frame: &mut Frame, vector: u64) {
    let at = core::ptr::from_ref(frame) as u64;
    if IS_BELOW_STACK.get().is_some_and(|is_below| is_below(at)) {
        panic::exception(
            frame,
            format_args!("kernel stack overflow: the stack pointer is below the stack"),
        );
    }
    if vector == SYNCHRONOUS && (conflict::handle(frame) || spurious::handle(frame)) {
        return;
    }
    if vector != IRQ {
        fatal(frame, vector);
    }
    if let Err(number) = irq::handle() {
        panic::exception(
            frame,
            format_args!("interrupt {number}, which nobody asked for"),
        );
    }
}

fn fatal(frame: &Frame, vector: u64) -> ! {
    let kind = match vector % 4 {
        0 => "synchronous exception",
        1 => "IRQ",
        2 => "FIQ",
        _ => "SError",
    };
    let from = match vector % OVERFLOW / 4 {
        0 => " with SP_EL0 selected",
        1 => "",
        2 => " from a lower level",
        _ => " from a lower level in AArch32",
    };
    if vector >= OVERFLOW {
        panic::exception(
            frame,
            format_args!(
                "kernel stack overflow: {}",
                syndrome::describe(frame.esr, frame.far)
            ),
        )
    } else if vector.is_multiple_of(4) {
        let words = syndrome::describe(frame.esr, frame.far);
        panic::exception(frame, format_args!("{words}{from}"))
    } else {
        panic::exception(
            frame,
            format_args!("unexpected {kind}{from}, ESR {:#x}", frame.esr),
        )
    }
}
