//! The code in which a parked CPU waits: in the identity map, off the kernel's tables.

use crate::handover::parking::{Arguments, SLOT_PARKED, SLOT_TRANSLATION};
use core::arch::global_asm;
use core::mem::offset_of;

// x0 = Arguments. Exceptions are masked. From the switch of TTBR1 on there is no stack, no vector
// and no memory but the two physical addresses in x1 and x2.
//
// TTBR0 changes from a root without entries, of which nothing can be cached, so an ISB is enough.
// TTBR1 goes through such a root on the way out and on the way back, with the TLB emptied in
// between, so that no entry of the old tables can meet one of the new (arm-rules section 7). The
// TLB is emptied once more after TTBR1 is back, because a walk may begin before the ISB. On the way
// out TTBR0's entries go too. TLBI VMALLE1 removes this CPU's entries of EL1&0, or of EL2&0 with
// E2H and TGE set. The other CPUs are parked here and do the same for themselves, except the one
// that works.
global_asm!(
    r#"
    .section .text.park_on_identity, "ax"
    .global park_on_identity
park_on_identity:
    ldp     x1, x2, [x0, #{slot}]
    ldp     x3, x4, [x0, #{code}]
    ldp     x5, x6, [x0, #{empty}]
    ldr     x7, [x0, #{probe}]
    mrs     x8, ttbr1_el1
    adr     x9, 1f
    msr     ttbr0_el1, x4
    isb
    br      x3
1:  msr     ttbr0_el1, x5
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    ret

    .section .idmap.text, "ax"
    .global park_identity_code
park_identity_code:
    msr     ttbr1_el1, x5
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    at      s1e1r, x7
    isb
    mrs     x10, par_el1
    str     x10, [x1, #{translation}]
    add     x11, x1, #{parked}
    stlr    x6, [x11]               // the translation is seen before it
2:  ldar    x10, [x2]
    cmp     x10, x6
    b.eq    3f
    wfe                             // the event comes after the flag, and stays until taken
    b       2b
3:  msr     ttbr1_el1, x8
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    br      x9
"#,
    slot = const offset_of!(Arguments, slot),
    code = const offset_of!(Arguments, code),
    empty = const offset_of!(Arguments, empty),
    probe = const offset_of!(Arguments, probe),
    parked = const SLOT_PARKED,
    translation = const SLOT_TRANSLATION,
);

// These fields are loaded in pairs.
const _: () = {
    assert!(offset_of!(Arguments, released) == offset_of!(Arguments, slot) + 8);
    assert!(offset_of!(Arguments, identity) == offset_of!(Arguments, code) + 8);
    assert!(offset_of!(Arguments, epoch) == offset_of!(Arguments, empty) + 8);
};
