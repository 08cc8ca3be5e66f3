//! Switches between kernel stacks, and saves and loads the FP and SIMD registers of EL0: an assembly
//! island.
//!
//! Kernel code uses neither FP nor SIMD. So these registers keep the state of the task that entered the
//! kernel until another task is about to run.

#![allow(unsafe_code, reason = "the switch between stacks")]

use core::arch::global_asm;
use core::mem::offset_of;

/// The registers that a function call preserves, for a stack that does not run.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Context {
    /// x19 to x30.
    registers: [u64; 12],
    sp: u64,
}

impl Context {
    /// An empty context, to be filled by a switch.
    pub(crate) const fn empty() -> Self {
        Self {
            registers: [0; 12],
            sp: 0,
        }
    }

    /// A context that starts at `entry`, on the stack below `sp`.
    pub(crate) const fn new(entry: u64, sp: u64) -> Self {
        let mut registers = [0; 12];
        registers[11] = entry;
        Self { registers, sp }
    }
}

/// The FP and SIMD registers.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub(crate) struct FpState {
    /// V0 to V31, two words each.
    pub(crate) v: [u64; 64],
    pub(crate) fpsr: u64,
    pub(crate) fpcr: u64,
}

impl FpState {
    /// The initial state of a program.
    pub(crate) const ZERO: Self = Self {
        v: [0; 64],
        fpsr: 0,
        fpcr: 0,
    };
}

unsafe extern "C" {
    /// Saves the call-preserved registers in `from` and continues where `to` was left. Returns when a
    /// switch to `from` happens.
    ///
    /// # Safety
    ///
    /// `to` must be filled by an earlier switch or made by [`Context::new`], and not have been switched
    /// to since. Its stack must be mapped and otherwise unused. Both contexts must stay at their
    /// addresses.
    pub(crate) fn switch_context(from: *mut Context, to: *const Context);

    /// # Safety
    ///
    /// `CPACR_EL1.FPEN` must let EL1 access the registers.
    pub(crate) fn save_fp(state: *mut FpState);

    /// # Safety
    ///
    /// As for [`save_fp`].
    pub(crate) fn load_fp(state: *const FpState);
}

global_asm!(
    r#"
    .section .text.switch_context, "ax"
    .global switch_context
switch_context:
    mov     x9, sp
    stp     x19, x20, [x0, #0]
    stp     x21, x22, [x0, #16]
    stp     x23, x24, [x0, #32]
    stp     x25, x26, [x0, #48]
    stp     x27, x28, [x0, #64]
    stp     x29, x30, [x0, #80]
    str     x9, [x0, #{sp}]
    ldp     x19, x20, [x1, #0]
    ldp     x21, x22, [x1, #16]
    ldp     x23, x24, [x1, #32]
    ldp     x25, x26, [x1, #48]
    ldp     x27, x28, [x1, #64]
    ldp     x29, x30, [x1, #80]
    ldr     x9, [x1, #{sp}]
    mov     sp, x9
    ret

    .arch_extension fp
    .arch_extension simd
    .global save_fp
save_fp:
    stp     q0, q1, [x0, #0]
    stp     q2, q3, [x0, #32]
    stp     q4, q5, [x0, #64]
    stp     q6, q7, [x0, #96]
    stp     q8, q9, [x0, #128]
    stp     q10, q11, [x0, #160]
    stp     q12, q13, [x0, #192]
    stp     q14, q15, [x0, #224]
    stp     q16, q17, [x0, #256]
    stp     q18, q19, [x0, #288]
    stp     q20, q21, [x0, #320]
    stp     q22, q23, [x0, #352]
    stp     q24, q25, [x0, #384]
    stp     q26, q27, [x0, #416]
    stp     q28, q29, [x0, #448]
    stp     q30, q31, [x0, #480]
    mrs     x1, fpsr
    mrs     x2, fpcr
    str     x1, [x0, #{fpsr}]
    str     x2, [x0, #{fpcr}]
    ret

    .global load_fp
load_fp:
    ldp     q0, q1, [x0, #0]
    ldp     q2, q3, [x0, #32]
    ldp     q4, q5, [x0, #64]
    ldp     q6, q7, [x0, #96]
    ldp     q8, q9, [x0, #128]
    ldp     q10, q11, [x0, #160]
    ldp     q12, q13, [x0, #192]
    ldp     q14, q15, [x0, #224]
    ldp     q16, q17, [x0, #256]
    ldp     q18, q19, [x0, #288]
    ldp     q20, q21, [x0, #320]
    ldp     q22, q23, [x0, #352]
    ldp     q24, q25, [x0, #384]
    ldp     q26, q27, [x0, #416]
    ldp     q28, q29, [x0, #448]
    ldp     q30, q31, [x0, #480]
    ldr     x1, [x0, #{fpsr}]
    ldr     x2, [x0, #{fpcr}]
    msr     fpsr, x1
    msr     fpcr, x2
    ret
    .arch_extension nosimd
    .arch_extension nofp
"#,
    sp = const offset_of!(Context, sp),
    fpsr = const offset_of!(FpState, fpsr),
    fpcr = const offset_of!(FpState, fpcr),
);
