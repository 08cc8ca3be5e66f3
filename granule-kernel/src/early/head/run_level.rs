//! The registers of the level that the kernel runs at, set the same on every CPU.

use core::arch::global_asm;

// x0 = the vectors' address. EL1's registers, which under VHE are EL2's. Clobbers x0.
//
// FP and SIMD trap (CPACR 0): the kernel has no code that uses them. No debug event is taken, and
// the debug communications channel is not EL0's (MDSCR.TDCC). A kernel that ran before us may
// have left permission indirection or hardware table flags on: TCR2_EL1 starts at 0 where there is
// one (ID_AA64MMFR3.TCRX).
global_asm!(
    r#"
    .section .head.text.run_level, "ax"
    .global setup_run_level
setup_run_level:
    msr     vbar_el1, x0
    msr     cpacr_el1, xzr
    msr     cntkctl_el1, xzr
    mov     x0, #(1 << 12)
    msr     mdscr_el1, x0
    mrs     x0, S3_0_C0_C7_3
    and     x0, x0, #0xf
    cbz     x0, 1f
    msr     S3_0_C2_C0_3, xzr
1:  isb
    ret
"#
);
