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
    .macro x19_to_x30 two, at
    \two    x19, x20, [\at, #0]
    \two    x21, x22, [\at, #16]
    \two    x23, x24, [\at, #32]
    \two    x25, x26, [\at, #48]
    \two    x27, x28, [\at, #64]
    \two    x29, x30, [\at, #80]
    .endm

    .macro q0_to_q31 two
    \two    q0, q1, [x0, #0]
    \two    q2, q3, [x0, #32]
    \two    q4, q5, [x0, #64]
    \two    q6, q7, [x0, #96]
    \two    q8, q9, [x0, #128]
    \two    q10, q11, [x0, #160]
    \two    q12, q13, [x0, #192]
    \two    q14, q15, [x0, #224]
    \two    q16, q17, [x0, #256]
    \two    q18, q19, [x0, #288]
    \two    q20, q21, [x0, #320]
    \two    q22, q23, [x0, #352]
    \two    q24, q25, [x0, #384]
    \two    q26, q27, [x0, #416]
    \two    q28, q29, [x0, #448]
    \two    q30, q31, [x0, #480]
    .endm

    .section .text.switch_context, "ax"
    .global switch_context
switch_context:
    mov     x9, sp
    x19_to_x30 stp, x0
    str     x9, [x0, #{sp}]
    x19_to_x30 ldp, x1
    ldr     x9, [x1, #{sp}]
    mov     sp, x9
    ret

    .arch_extension fp
    .arch_extension simd
    .global save_fp
save_fp:
    q0_to_q31 stp
    mrs     x1, fpsr
    mrs     x2, fpcr
    str     x1, [x0, #{fpsr}]
    str     x2, [x0, #{fpcr}]
    ret

    .global load_fp
load_fp:
    q0_to_q31 ldp
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
