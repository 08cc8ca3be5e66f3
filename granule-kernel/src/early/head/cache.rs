//! Cache maintenance by address, to the point of coherency, callable before
//! there is a stack. The same routines serve Rust through `arch::cache`.

use core::arch::global_asm;

// x0 first byte, x1 end. Clobber x0, x2, x3. The smallest line of any data cache
// (CTR_EL0.DminLine, log2 of words) is the step: a larger one would skip lines.
// A clean or an invalidation is complete only after a DSB of full-system scope.
global_asm!(
    r#"
    .macro dcache_by_line op
    mrs     x2, ctr_el0
    ubfx    x2, x2, #16, #4
    mov     x3, #4
    lsl     x2, x3, x2              // bytes in a line
    sub     x3, x2, #1
    bic     x0, x0, x3
    cmp     x0, x1
    b.hs    2f
1:  dc      \op, x0
    add     x0, x0, x2
    cmp     x0, x1
    b.lo    1b
2:  dsb     sy
    ret
    .endm

    .section .head.text.cache, "ax"
    .global dcache_clean_poc
dcache_clean_poc:
    dcache_by_line cvac

    .global dcache_clean_inval_poc
dcache_clean_inval_poc:
    dcache_by_line civac

    // Both ends must be line aligned: a line that the range only touches would
    // lose its other half.
    .global dcache_inval_poc
dcache_inval_poc:
    dmb     sy                      // what was written with the MMU off comes first
    dcache_by_line ivac
"#
);
