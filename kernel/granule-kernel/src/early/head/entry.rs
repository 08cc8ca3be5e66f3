//! The entry point: from the boot loader's jump to `mmu_off_main`, and from its
//! return to the switch in `mmu_on`.

use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF};
use crate::handover::{EntryInfo, Handover, MmuConfig};
use core::arch::global_asm;
use core::mem::offset_of;

// x0 = physical address of the device tree; x1-x3 are reserved by the protocol.
global_asm!(
    r#"
    .section .head.text.entry, "ax"
    .global entry
entry:
    msr     daifset, #0xf
    mov     x20, x0
    adr     x21, _start
    mrs     x19, CurrentEL
    lsr     x19, x19, #2
    cmp     x19, #3
    b.eq    park_el3

    // Off at the level we are at? A kernel entered with the MMU on would run in
    // tables that are not its own, and overwrite them. SCTLR is set to a known
    // value before the first data access: that fixes the byte order. No data access
    // at all, hence no literal pool, before the alignment of the image is known: a
    // load of eight bytes that lie at a multiple of four faults on Device memory
    // (RWFZPW), with nobody's vectors set.
    cmp     x19, #2
    b.eq    1f
    mrs     x0, sctlr_el1
    movz    x1, #{sctlr_el1_low}
    movk    x1, #{sctlr_el1_high}, lsl #16
    tbnz    x0, #0, park_mmu_on
    msr     sctlr_el1, x1
    mrs     x22, cntvct_el0
    b       2f
1:  mrs     x0, sctlr_el2
    movz    x1, #{sctlr_el2_low}
    movk    x1, #{sctlr_el2_high}, lsl #16
    tbnz    x0, #0, park_mmu_on
    msr     sctlr_el2, x1
    mrs     x22, cntpct_el0         // the virtual offset is not ours yet; it becomes 0
2:  isb
    msr     spsel, #1
    mov     x29, xzr                // where backtraces end

    // The link is for an address that is 0 modulo 2 MiB; `adrp` and every section
    // alignment rest on it.
    tst     x21, #{image_align_mask}
    b.ne    park_align

    // Early exceptions are to be reported, not lost.
    adrp    x0, early_vectors
    add     x0, x0, :lo12:early_vectors
    cmp     x19, #2
    b.eq    3f
    msr     vbar_el1, x0
    b       4f
3:  msr     vbar_el2, x0
4:  isb

    // What the loader wrote may still be dirty in a cache, and would be written
    // back later over what we write past the caches. Clean, as .data must survive.
    adrp    x0, __relro_start
    adrp    x1, __image_end
    bl      granule_cache_clean_and_invalidate

    adrp    x0, __stack_top
    mov     sp, x0

    adrp    x0, __bss_start
    adrp    x1, __bss_end
5:  stp     xzr, xzr, [x0], #16
    cmp     x0, x1
    b.lo    5b

    mov     x0, x21
    mov     x1, x21
    bl      apply_relocations

    mov     x24, #1
    mov     x25, #0
    cmp     x19, #2
    b.ne    6f
    bl      setup_el2
6:  adrp    x0, early_vectors
    add     x0, x0, :lo12:early_vectors
    bl      setup_run_level

    adrp    x0, HANDOVER
    add     x0, x0, :lo12:HANDOVER
    stp     x20, x21, [x0, #{dtb}]
    stp     x19, x24, [x0, #{entry_el}]
    stp     x25, x22, [x0, #{vhe}]
    bl      mmu_off_main
    mov     x23, x0

    // The same image once more, for the addresses it will run at. From here to the
    // switch no Rust may run: its pointers already are virtual ones.
    ldr     x1, [x23, #{virt_offset}]
    add     x1, x1, x21
    mov     x0, x21
    bl      apply_relocations

    ldr     x8, [x23, #{virt_offset}]
    ldp     x1, x2, [x23, #{mair}]
    ldp     x3, x4, [x23, #{ttbr0}]
    adrp    x5, kmain_entry
    add     x5, x5, :lo12:kmain_entry
    add     x5, x5, x8
    adrp    x6, __stack_top
    add     x6, x6, x8
    adrp    x7, HANDOVER
    add     x7, x7, :lo12:HANDOVER
    add     x7, x7, x8
    mov     x9, x1
    mov     x10, x2
    mov     x11, x3

    // All we wrote went past the caches, which may meanwhile have fetched the old
    // bytes of the same lines on speculation. Drop those lines. No line in the
    // range is dirty (cleaned above, and written with the MMU off since), and the
    // range begins and ends at whole pages, so nothing is lost.
    adrp    x0, __relro_start
    adrp    x1, __image_end
    bl      granule_cache_invalidate

    mov     x1, x9
    mov     x2, x10
    mov     x3, x11
    b       enable_mmu_and_jump
"#,
    sctlr_el1_low = const SCTLR_MMU_OFF & 0xffff,
    sctlr_el1_high = const SCTLR_MMU_OFF >> 16,
    sctlr_el2_low = const SCTLR_EL2_MMU_OFF & 0xffff,
    sctlr_el2_high = const SCTLR_EL2_MMU_OFF >> 16,
    image_align_mask = const granule_kcore::layout::IMAGE_ALIGN - 1,
    dtb = const offset_of!(Handover, entry) + offset_of!(EntryInfo, dtb),
    entry_el = const offset_of!(Handover, entry) + offset_of!(EntryInfo, entry_el),
    vhe = const offset_of!(Handover, entry) + offset_of!(EntryInfo, vhe),
    virt_offset = const offset_of!(MmuConfig, virt_offset),
    mair = const offset_of!(MmuConfig, mair),
    ttbr0 = const offset_of!(MmuConfig, ttbr0),
);

// `entry` stores and loads these fields in pairs, so they must be neighbours.
const _: () = {
    assert!(offset_of!(EntryInfo, load) == offset_of!(EntryInfo, dtb) + 8);
    assert!(offset_of!(EntryInfo, run_el) == offset_of!(EntryInfo, entry_el) + 8);
    assert!(offset_of!(EntryInfo, counter) == offset_of!(EntryInfo, vhe) + 8);
    assert!(offset_of!(MmuConfig, tcr) == offset_of!(MmuConfig, mair) + 8);
    assert!(offset_of!(MmuConfig, ttbr1) == offset_of!(MmuConfig, ttbr0) + 8);
};
