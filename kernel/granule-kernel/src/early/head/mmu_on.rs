//! The switch: the only code that runs while the MMU is turned on, in the page that is mapped 1:1.

use crate::arch::sctlr::SCTLR_MMU_ON;
use core::arch::global_asm;

// x1 MAIR, x2 TCR, x3 TTBR0, x4 TTBR1; x5 virtual address to jump to, x6 virtual stack pointer, x7
// its argument. MMU off, at EL1, or at EL2 with E2H and TGE set.
//
// TLBI VMALLE1 is right for both levels: with E2H and TGE set it applies to the EL2&0 regime, whose
// TTBRs and TCR have the EL1 names. The TLB may hold older entries, from firmware's tables, because
// turning the MMU off does not empty it, and the fields of TCR and MAIR may be cached with them. So
// the TLBI comes first, while no walk can fetch an entry. DSB NSH: the TLBI is local to this CPU;
// others may be using the tables.
//
// No literal pool: it might lie outside the mapped page.
global_asm!(
    r#"
    .section .idmap.text, "ax"
    .global enable_mmu_and_jump
enable_mmu_and_jump:
    dsb     sy                      // tables written past the caches, before any walk
    tlbi    vmalle1
    dsb     nsh
    msr     mair_el1, x1
    msr     tcr_el1, x2
    msr     ttbr0_el1, x3
    msr     ttbr1_el1, x4
    isb
    movz    x0, #{sctlr_low}
    movk    x0, #{sctlr_high}, lsl #16
    msr     sctlr_el1, x0
    isb
    ic      iallu                   // fetched Non-cacheable until here
    dsb     nsh
    isb
    mov     sp, x6
    mov     x0, x7
    mov     x29, xzr
    mov     x30, xzr
    br      x5
"#,
    sctlr_low = const SCTLR_MMU_ON & 0xffff,
    sctlr_high = const SCTLR_MMU_ON >> 16,
);
