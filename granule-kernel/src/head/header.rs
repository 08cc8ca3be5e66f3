//! The image header of the arm64 Linux boot protocol, and nothing else: the
//! first 64 bytes of the image.

use core::arch::global_asm;

global_asm!(
    r#"
    .section .head.text, "ax"
    .global _start
_start:
    b       entry                   // code0: the boot loader jumps here
    .long   0                       // code1
    .quad   0                       // text_offset: none, 2 MiB aligned is all we ask
    .quad   __image_size            // with .bss, stacks and the table pool
    .quad   {anywhere}              // little endian, page size unspecified, placed anywhere
    .quad   0
    .quad   0
    .quad   0
    .ascii  "ARM\x64"
    .long   0                       // no PE header
"#,
    anywhere = const 1u64 << 3,
);
