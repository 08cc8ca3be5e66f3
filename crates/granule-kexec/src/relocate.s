// The relocation code. `steps` does the same in Rust and gives the reason for each step; a test
// compares both instruction by instruction. Only registers and labels are explained here.
//
// leave: in the old kernel's text. x0 = virtual address of the header in the linear map.

    .section .text.granule_kexec_leave, "ax"
    .global granule_kexec_leave
granule_kexec_leave:
    msr     daifset, #15
    ldp     x1, x2, [x0, #{code}]           // address of the copied code, TTBR0
    ldr     x3, [x0, #{tcr}]
    mrs     x4, tcr_el1
    orr     x4, x4, #{epd0}
    msr     tcr_el1, x4
    isb
    msr     ttbr0_el1, x2
    orr     x4, x3, #{epd0}
    msr     tcr_el1, x4
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    msr     tcr_el1, x3
    isb
    br      x1

// Everything from here on is copied to a page of its own and is position independent. First come the
// vectors, used at EL1 while the code runs, and at EL2 if the machine began there. Only a hypervisor
// call of this code itself is expected (entry 8).

    .section .rodata.granule_kexec_code, "a"
    .balign 2048
    .global granule_kexec_code
granule_kexec_code:
    .rept   8
    b       .Lkexec_stop_here
    .balign 128
    .endr
    b       .Lkexec_back_in_el2
    .balign 128
    .rept   7
    b       .Lkexec_stop_here
    .balign 128
    .endr

// x0 = virtual address of the header. Kept: x19 flags, x20 first record, x21 distance added to a
// physical address, x22 SCTLR with the MMU off, x23 TTBR1, x24 TCR, x25 jump target, x26 device
// tree, x27 SCTLR_EL2, x28 bytes of a cache line. x16 operation on a record, x17 next record.
    .org    granule_kexec_code + {start}
.Lkexec_start_here:
    ldp     x19, x20, [x0, #{flags}]
    ldp     x21, x22, [x0, #{distance}]
    ldp     x23, x24, [x0, #{ttbr1}]
    ldp     x25, x26, [x0, #{entry}]
    ldr     x27, [x0, #{sctlr_el2}]
    adr     x1, granule_kexec_code
    msr     vbar_el1, x1
    orr     x2, x24, #{epd1}
    msr     tcr_el1, x2
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    msr     ttbr1_el1, x23
    isb
    msr     tcr_el1, x24
    isb
    tbz     x19, #{el2_bit}, 1f
    mov     x0, #{set_vectors}
    hvc     #0
1:  mrs     x28, ctr_el0
    ubfx    x28, x28, #16, #4
    mov     x2, #4
    lsl     x28, x2, x28
    mov     x2, #{most_line}
    cmp     x28, x2
    csel    x28, x28, x2, lo
    lsl     x15, x28, #2
    tbnz    x19, #{uncached_bit}, 3f

    adr     x16, .Lkexec_move_cached
    bl      .Lkexec_walk
    dsb     sy
    ic      iallu
    dsb     nsh
    isb
    msr     sctlr_el1, x22
    isb
2:  tlbi    vmalle1
    dsb     nsh
    isb
    mov     x0, x26
    mov     x1, xzr
    mov     x2, xzr
    mov     x3, xzr
    tbz     x19, #{el2_bit}, 4f
    hvc     #0
4:  br      x25

3:  adr     x16, .Lkexec_flush
    bl      .Lkexec_walk
    dsb     sy
    ic      iallu
    dsb     nsh
    isb
    msr     sctlr_el1, x22
    isb
    mov     x21, xzr
    adr     x16, .Lkexec_move_uncached
    bl      .Lkexec_walk
    dmb     sy
    adr     x16, .Lkexec_drop_lines
    bl      .Lkexec_walk
    dsb     sy
    ic      iallu
    dsb     nsh
    isb
    b       2b

.Lkexec_back_in_el2:
    msr     sctlr_el2, x27
    isb
    br      x25

.Lkexec_stop_here:
    wfi
    b       .Lkexec_stop_here

// x1 destination, x2 source, x11 bytes, x12 kind.
.Lkexec_walk:
    add     x17, x20, x21
.Lkexec_next_record:
    ldp     x1, x2, [x17]
    ldp     x11, x12, [x17, #16]
    add     x17, x17, #32
    tbnz    x12, #{link_bit}, 5f
    cbz     x12, 6f
    add     x1, x1, x21
    add     x2, x2, x21
    br      x16
5:  add     x17, x1, x21
    b       .Lkexec_next_record
6:  ret

// Bytes are a multiple of 4096.
.Lkexec_move_uncached:
    tbz     x12, #{copy_bit}, .Lkexec_next_record
    mov     x12, #{copy}
.Lkexec_move_cached:
    tbz     x12, #{copy_bit}, .Lkexec_clean
    tbz     x12, #{clean_bit}, 7f
    cmp     x28, #64
    b.lo    7f
    sub     x1, x1, #64
8:  ldp     x3, x4, [x2], #256
    ldp     x5, x6, [x2, #-240]
    ldp     x7, x8, [x2, #-224]
    ldp     x9, x10, [x2, #-208]
    stp     x3, x4, [x1, #64]!
    stp     x5, x6, [x1, #16]
    stp     x7, x8, [x1, #32]
    stp     x9, x10, [x1, #48]
    dc      cvac, x1
    ldp     x3, x4, [x2, #-192]
    ldp     x5, x6, [x2, #-176]
    ldp     x7, x8, [x2, #-160]
    ldp     x9, x10, [x2, #-144]
    stp     x3, x4, [x1, #64]!
    stp     x5, x6, [x1, #16]
    stp     x7, x8, [x1, #32]
    stp     x9, x10, [x1, #48]
    dc      cvac, x1
    ldp     x3, x4, [x2, #-128]
    ldp     x5, x6, [x2, #-112]
    ldp     x7, x8, [x2, #-96]
    ldp     x9, x10, [x2, #-80]
    stp     x3, x4, [x1, #64]!
    stp     x5, x6, [x1, #16]
    stp     x7, x8, [x1, #32]
    stp     x9, x10, [x1, #48]
    dc      cvac, x1
    ldp     x3, x4, [x2, #-64]
    ldp     x5, x6, [x2, #-48]
    ldp     x7, x8, [x2, #-32]
    ldp     x9, x10, [x2, #-16]
    stp     x3, x4, [x1, #64]!
    stp     x5, x6, [x1, #16]
    stp     x7, x8, [x1, #32]
    stp     x9, x10, [x1, #48]
    dc      cvac, x1
    subs    x11, x11, #256
    b.ne    8b
    b       .Lkexec_next_record
7:  mov     x14, x11
9:  ldp     x3, x4, [x2], #256
    ldp     x5, x6, [x2, #-240]
    ldp     x7, x8, [x2, #-224]
    ldp     x9, x10, [x2, #-208]
    stp     x3, x4, [x1], #256
    stp     x5, x6, [x1, #-240]
    stp     x7, x8, [x1, #-224]
    stp     x9, x10, [x1, #-208]
    ldp     x3, x4, [x2, #-192]
    ldp     x5, x6, [x2, #-176]
    ldp     x7, x8, [x2, #-160]
    ldp     x9, x10, [x2, #-144]
    stp     x3, x4, [x1, #-192]
    stp     x5, x6, [x1, #-176]
    stp     x7, x8, [x1, #-160]
    stp     x9, x10, [x1, #-144]
    ldp     x3, x4, [x2, #-128]
    ldp     x5, x6, [x2, #-112]
    ldp     x7, x8, [x2, #-96]
    ldp     x9, x10, [x2, #-80]
    stp     x3, x4, [x1, #-128]
    stp     x5, x6, [x1, #-112]
    stp     x7, x8, [x1, #-96]
    stp     x9, x10, [x1, #-80]
    ldp     x3, x4, [x2, #-64]
    ldp     x5, x6, [x2, #-48]
    ldp     x7, x8, [x2, #-32]
    ldp     x9, x10, [x2, #-16]
    stp     x3, x4, [x1, #-64]
    stp     x5, x6, [x1, #-48]
    stp     x7, x8, [x1, #-32]
    stp     x9, x10, [x1, #-16]
    subs    x11, x11, #256
    b.ne    9b
    tbz     x12, #{clean_bit}, .Lkexec_next_record
    sub     x1, x1, x14
    mov     x11, x14
.Lkexec_clean:
    dc      cvac, x1
    add     x1, x1, x28
    dc      cvac, x1
    add     x1, x1, x28
    dc      cvac, x1
    add     x1, x1, x28
    dc      cvac, x1
    add     x1, x1, x28
    subs    x11, x11, x15
    b.ne    .Lkexec_clean
    b       .Lkexec_next_record

.Lkexec_flush:
    tbz     x12, #{copy_bit}, 11f
    mov     x14, x11
10: dc      civac, x2
    add     x2, x2, x28
    subs    x14, x14, x28
    b.ne    10b
11: dc      civac, x1
    add     x1, x1, x28
    subs    x11, x11, x28
    b.ne    11b
    b       .Lkexec_next_record

.Lkexec_drop_lines:
    tbz     x12, #{copy_bit}, .Lkexec_next_record
12: dc      ivac, x1
    add     x1, x1, x28
    subs    x11, x11, x28
    b.ne    12b
    b       .Lkexec_next_record

    // Pads to the stated length, and fails to assemble if the code is longer.
    .org    granule_kexec_code + {code_bytes}
