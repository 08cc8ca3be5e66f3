//! Applies the image's own relocations, before there is a stack.

use core::arch::global_asm;

// x0 = the image's physical address, x1 = the address for which the image is relocated. Clobbers
// x2-x6. May run twice: a RELA entry carries its whole addend, so a second pass for another address
// overwrites the first. The link allows only R_AARCH64_RELATIVE (1027, symbol 0). Any other kind
// means that the image was not linked by the project's script, so the CPU parks.
global_asm!(
    r#"
    .section .head.text.relocate, "ax"
    .global apply_relocations
apply_relocations:
    adrp    x2, __rela_start
    add     x2, x2, :lo12:__rela_start
    adrp    x3, __rela_end
    add     x3, x3, :lo12:__rela_end
1:  cmp     x2, x3
    b.hs    2f
    ldp     x4, x5, [x2], #16       // r_offset, r_info
    ldr     x6, [x2], #8            // r_addend
    cmp     x5, #1027
    b.ne    park_reloc
    add     x6, x6, x1
    str     x6, [x0, x4]
    b       1b
2:  ret
"#
);
