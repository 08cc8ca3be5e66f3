//! The image header of the arm64 Linux boot protocol, and nothing else: the
//! first 64 bytes of the image. `pe` follows.

use core::arch::global_asm;
use granule::arch::PageSize;
use granule_kcore::sizes;

/// The header's page size field: 1 to 3 for an image of one page size, 0 (unspecified) for several.
const fn page_size() -> u64 {
    match (sizes::MIN, sizes::MAX) {
        (PageSize::K4, PageSize::K4) => 1,
        (PageSize::K16, PageSize::K16) => 2,
        (PageSize::K64, PageSize::K64) => 3,
        _ => 0,
    }
}

global_asm!(
    r#"
    .section .head.text, "ax"
    .global _start
_start:
    ccmp    x18, #0, #0xd, pl       // code0: its first bytes are "MZ"; it changes only the flags
    b       entry                   // code1: where the boot loader's jump to code0 leads
    .quad   0                       // text_offset: none, 2 MiB alignment suffices
    .quad   __image_size            // with .bss, stacks and the table pool
    .quad   {flags}                 // little endian, the page size, placed anywhere
    .quad   0
    .quad   0
    .quad   0
    .ascii  "ARM\x64"
    .long   64                      // where the PE header is: right behind
"#,
    flags = const 1u64 << 3 | page_size() << 1,
);
