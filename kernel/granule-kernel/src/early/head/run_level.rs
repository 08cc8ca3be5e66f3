//! Sets the registers of the kernel's exception level, the same on every CPU.

use core::arch::global_asm;

// x0 = the vectors' address. The registers are EL1's, which under VHE are EL2's. Clobbers x0.
//
// FP and SIMD trap (CPACR 0), because the kernel has no code that uses them. No debug event is
// taken, and EL0 cannot use the debug communications channel (MDSCR.TDCC). An earlier kernel may
// have left permission indirection or hardware table flags on, so TCR2_EL1 is set to 0 where it
// exists (ID_AA64MMFR3.TCRX).
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
