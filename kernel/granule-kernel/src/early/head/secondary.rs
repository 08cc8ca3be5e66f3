//! The entry of a secondary CPU: from firmware's jump to `mmu_off_secondary`, and from its return to the
//! switch in `mmu_on`.

use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF};
use crate::handover::MmuConfig;
use crate::handover::mailbox::{Command, Doorbell, PARKED, RUNG, Report};
use core::arch::global_asm;
use core::mem::offset_of;
use granule_kcore::cpus::compare::Reason;

// No register holds anything: firmware that a CPU left by its release address passes nothing on.
// Several CPUs may share such an address, so each waits until the doorbell names it. The image is
// relocated for its virtual address. The parts read here have been cleaned: text by the loader,
// doorbell and commands by the boot CPU. Registers as in `entry`: x19 exception level at entry, x20
// the command, x21 the reason to park or 0, x24 present exception level, x25 VHE.
//
// SCTLR is set to a known value before the first data access, literals included: that fixes the byte order and
// turns checks of alignment off, as in `entry`. A CPU that came with its MMU on, or at EL3, cannot go on, and its
// map may be any. All that it does is to report that, once it is named: `secondary_wrong` makes the
// byte order right for that and leaves the rest as it is.
global_asm!(
    r#"
    .section .head.text.secondary, "ax"
    .global secondary_entry
secondary_entry:
    msr     daifset, #0xf
    mrs     x0, mpidr_el1
    and     x1, x0, #0xffffff
    and     x0, x0, #0xff00000000
    orr     x0, x0, x1
    orr     x0, x0, #{rung}

    mov     w21, #0
    mrs     x19, CurrentEL
    lsr     x19, x19, #2
    cmp     x19, #3
    b.eq    secondary_wrong
    cmp     x19, #2
    b.eq    1f
    mrs     x2, sctlr_el1
    movz    x1, #{sctlr_el1_low}
    movk    x1, #{sctlr_el1_high}, lsl #16
    tbnz    x2, #0, secondary_wrong
    msr     sctlr_el1, x1
    b       2f
1:  mrs     x2, sctlr_el2
    movz    x1, #{sctlr_el2_low}
    movk    x1, #{sctlr_el2_high}, lsl #16
    tbnz    x2, #0, secondary_wrong
    msr     sctlr_el2, x1
2:  isb

.Lsecondary_listens:
    adrp    x1, DOORBELL
    add     x1, x1, :lo12:DOORBELL
1:  ldr     x2, [x1, #{who}]
    cmp     x2, x0
    b.eq    2f
    wfe                             // the event comes after the name, and stays until taken
    b       1b
2:  dmb     sy                      // the command is read after the name
    ldr     x20, [x1, #{doorbell_command}]
    mov     w0, w21
    cbnz    w21, secondary_park
    msr     spsel, #1
    mov     x29, xzr

    adrp    x0, secondary_vectors
    add     x0, x0, :lo12:secondary_vectors
    cmp     x19, #2
    b.eq    3f
    msr     vbar_el1, x0
    b       4f
3:  msr     vbar_el2, x0
4:  msr     tpidr_el1, x20          // for those vectors; the kernel's own from its first line on
    isb

    ldr     x0, [x20, #{stack_top}]
    mov     sp, x0
    mov     x24, #1
    mov     x25, #0
    cmp     x19, #2
    b.ne    5f
    bl      setup_el2
5:  adrp    x0, secondary_vectors
    add     x0, x0, :lo12:secondary_vectors
    bl      setup_run_level

    mov     x0, x20
    mov     x1, x19
    mov     x2, x24
    bl      mmu_off_secondary       // comes back if this CPU can live with the tables

    // The stack was written past the caches. None of it is used again, but a line fetched
    // meanwhile may hold what was there before: none may meet the kernel's stores.
    ldr     x0, [x20, #{stack_bottom}]
    ldr     x1, [x20, #{stack_top}]
    bl      granule_cache_invalidate

    ldp     x1, x2, [x20, #{mair}]
    ldp     x3, x4, [x20, #{ttbr0}]
    ldr     x5, [x20, #{entry}]
    ldr     x6, [x20, #{stack_top_virtual}]
    ldr     x7, [x20, #{argument}]
    b       enable_mmu_and_jump

    // Bit 25 is the byte order of data accesses at the level itself, 0 for little endian.
    .global secondary_wrong
secondary_wrong:
    mov     w21, #{el3}
    cmp     x19, #3
    b.ne    1f
    mrs     x2, sctlr_el3
    bic     x2, x2, #(1 << 25)
    msr     sctlr_el3, x2
    b       3f
1:  mov     w21, #{mmu_on}
    cmp     x19, #2
    b.eq    2f
    mrs     x2, sctlr_el1
    bic     x2, x2, #(1 << 25)
    msr     sctlr_el1, x2
    b       3f
2:  mrs     x2, sctlr_el2
    bic     x2, x2, #(1 << 25)
    msr     sctlr_el2, x2
3:  isb
    b       .Lsecondary_listens

    // w0 = the reason. The report's values `needs` and `has` are zero in memory.
secondary_park:
    ldr     x3, [x20, #{report}]
    str     x0, [x3, #{reason}]
    dmb     sy
    mov     x0, #{parked}
    str     x0, [x3, #{state}]
    dsb     sy
    b       park_loop

    // An exception with the MMU off: reports to the boot CPU, which has the console.
    .balign 2048
secondary_vectors:
    .rept   16
    b       secondary_exception
    .balign 128
    .endr

secondary_exception:
    mrs     x20, tpidr_el1
    ldr     x3, [x20, #{report}]
    mrs     x0, CurrentEL
    cmp     x0, #(2 << 2)
    b.eq    1f
    mrs     x1, esr_el1
    mrs     x2, elr_el1
    b       2f
1:  mrs     x1, esr_el2
    mrs     x2, elr_el2
2:  str     x1, [x3, #{has}]
    str     x2, [x3, #{needs}]
    mov     w0, #{exception}
    b       secondary_park

    .ltorg
"#,
    el3 = const Reason::EnteredAtEl3 as u32,
    mmu_on = const Reason::EnteredWithMmuOn as u32,
    exception = const Reason::Exception as u32,
    sctlr_el1_low = const SCTLR_MMU_OFF & 0xffff,
    sctlr_el1_high = const SCTLR_MMU_OFF >> 16,
    sctlr_el2_low = const SCTLR_EL2_MMU_OFF & 0xffff,
    sctlr_el2_high = const SCTLR_EL2_MMU_OFF >> 16,
    rung = const RUNG,
    who = const offset_of!(Doorbell, who),
    doorbell_command = const offset_of!(Doorbell, command),
    stack_bottom = const offset_of!(Command, stack_bottom),
    stack_top = const offset_of!(Command, stack_top),
    stack_top_virtual = const offset_of!(Command, stack_top_virtual),
    entry = const offset_of!(Command, entry),
    argument = const offset_of!(Command, argument),
    report = const offset_of!(Command, report),
    mair = const offset_of!(Command, mmu) + offset_of!(MmuConfig, mair),
    ttbr0 = const offset_of!(Command, mmu) + offset_of!(MmuConfig, ttbr0),
    reason = const offset_of!(Report, reason),
    needs = const offset_of!(Report, needs),
    has = const offset_of!(Report, has),
    state = const offset_of!(Report, state),
    parked = const PARKED,
);
