//! The setup at EL2 before the kernel proper runs, and the vectors that stay at EL2 when the kernel
//! drops to EL1.

use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF};
use core::arch::global_asm;

// Called at EL2 with the return address in x30. Returns at the level the kernel will run at, with
// x24 = that level and x25 = 1 under VHE. Clobbers x0-x3.
//
// With FEAT_VHE the kernel stays at EL2: E2H gives EL2 the EL1&0 layout of TCR, the second TTBR and
// ASIDs, and makes the EL1 register names access the EL2 registers, so later code is the same for
// both levels. Without FEAT_VHE, EL2 has only one TTBR, so the kernel drops to EL1.
//
// The fine-grained trap registers (FEAT_FGT) are not touched: they trap EL1, and EL0 unless E2H and
// TGE are both set. A CPU that has them has VHE, so the kernel stays at EL2.
global_asm!(
    r#"
    .section .head.text.el2, "ax"
    .global setup_el2
setup_el2:
    msr     cntvoff_el2, xzr        // virtual time is physical time
    msr     hstr_el2, xzr
    msr     vttbr_el2, xzr          // VMID 0, whether or not stage 2 is ever on

    // Leave every event counter to the levels below (HPMN = PMCR.N) and count at
    // EL2 too (HPMD = 0): the reset value of HPMN is all of them, but a
    // hypervisor that ran before us may have kept some. 15 in PMUVer is an
    // implementation's own PMU, of which PMCR_EL0 is not a part.
    mov     x1, xzr
    mrs     x0, id_aa64dfr0_el1
    ubfx    x0, x0, #8, #4
    cbz     x0, 1f
    cmp     x0, #15
    b.eq    1f
    mrs     x1, S3_3_C9_C12_0       // PMCR_EL0
    ubfx    x1, x1, #11, #5
1:  msr     mdcr_el2, x1

    // GICv3 and later: let the system registers through to EL1 (SRE, Enable).
    mrs     x0, id_aa64pfr0_el1
    ubfx    x0, x0, #24, #4
    cbz     x0, 2f
    mrs     x0, S3_4_C12_C9_5       // ICC_SRE_EL2
    orr     x0, x0, #(1 << 0)
    orr     x0, x0, #(1 << 3)
    msr     S3_4_C12_C9_5, x0
    isb
    mrs     x0, S3_4_C12_C9_5
    tbz     x0, #0, 2f              // held at 0 by EL3: a GICv2 view
    msr     S3_4_C12_C11_0, xzr     // ICH_HCR_EL2: no virtual interrupts
2:
    mrs     x0, id_aa64mmfr1_el1
    ubfx    x0, x0, #8, #4          // VH
    cbz     x0, 3f

    // Stay. TGE makes EL0's exceptions ours and turns EL2&0 on in full.
    mov     x0, #(1 << 27)
    orr     x0, x0, #(1 << 31)      // RW: EL1, should there ever be one, is AArch64
    orr     x0, x0, #(1 << 34)      // E2H
    msr     hcr_el2, x0
    isb
    ldr     x0, ={sctlr}
    msr     sctlr_el1, x0           // SCTLR_EL2 in its E2H layout, from here on
    isb
    // Entries of the EL2 regime as it was before E2H.
    tlbi    alle2
    dsb     nsh
    isb
    mov     x24, #2
    mov     x25, #1
    ret

3:  mov     x0, #(1 << 31)          // RW: EL1 is AArch64; no traps, no stage 2
    msr     hcr_el2, x0
    mov     x0, #3
    msr     cnthctl_el2, x0         // EL1 may use the physical counter and timer
    mov     x0, #0x33ff
    msr     cptr_el2, x0            // RES1 and no traps: EL1 decides by CPACR
    mrs     x0, midr_el1
    msr     vpidr_el2, x0
    mrs     x0, mpidr_el1
    msr     vmpidr_el2, x0
    adrp    x0, el2_stub_vectors
    add     x0, x0, :lo12:el2_stub_vectors
    msr     vbar_el2, x0
    isb
    // All EL1&0 entries of every VMID, and EL2's own.
    tlbi    alle1
    tlbi    alle2
    dsb     nsh
    isb

    ldr     x0, ={sctlr}
    msr     sctlr_el1, x0
    mov     x0, #0x3c5              // EL1h, D, A, I and F masked
    msr     spsr_el2, x0
    msr     elr_el2, x30
    mov     x0, sp
    msr     sp_el1, x0
    mov     x24, #1
    mov     x25, #0
    eret

    .ltorg
"#,
    sctlr = const SCTLR_MMU_OFF,
);

// The stub, which handles `HVC #0` when the kernel was entered at EL2 and runs at EL1.
// It runs at EL2 with the MMU off, at physical addresses, and needs no memory.
//
//   x0 = 0  set vectors: x1 = physical address of EL2's new vectors, 2 KiB aligned
//   x0 = 1  restart: x1 = physical address to jump to, still at EL2, with
//           x0..x3 = x2..x5 of the call. Does not return. The caller has its MMU
//           off or runs what it jumps to from where a flat map leads too.
//   x0 = 2  reset vectors to these
//   else    not supported
//
// x0 on return: 0, or -1 if the call is not supported, as in the SMC calling
// convention. All other registers are kept. Any exception but an HVC from EL1
// stops the CPU here, because no code could report it.
global_asm!(
    r#"
    .section .head.text.el2_stub, "ax"
    .balign 2048
    .global el2_stub_vectors
el2_stub_vectors:
    .rept   8
    b       el2_stub_stop
    .balign 128
    .endr
    b       el2_stub_sync           // synchronous, from a lower level in AArch64
    .balign 128
    .rept   7
    b       el2_stub_stop
    .balign 128
    .endr

el2_stub_sync:
    // x0 is the only register free to use, for ESR's class; the call number must
    // survive the test. TPIDR_EL2 is nobody's here.
    msr     tpidr_el2, x0
    mrs     x0, esr_el2
    lsr     x0, x0, #26
    cmp     x0, #0x16               // HVC from AArch64
    mrs     x0, tpidr_el2
    b.ne    el2_stub_stop
    cmp     x0, #0
    b.eq    1f
    cmp     x0, #1
    b.eq    2f
    cmp     x0, #2
    b.eq    3f
    mov     x0, #-1
    eret
1:  msr     vbar_el2, x1
    mov     x0, xzr
    eret
2:  mov     x6, x1
    ldr     x0, ={sctlr_el2}
    msr     sctlr_el2, x0
    isb
    mov     x0, x2
    mov     x1, x3
    mov     x2, x4
    mov     x3, x5
    br      x6
3:  adrp    x0, el2_stub_vectors
    add     x0, x0, :lo12:el2_stub_vectors
    msr     vbar_el2, x0
    mov     x0, xzr
    eret
el2_stub_stop:
    wfi
    b       el2_stub_stop

    .ltorg
"#,
    sctlr_el2 = const SCTLR_EL2_MMU_OFF,
);
