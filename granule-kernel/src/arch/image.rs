//! The edges of the kernel image, from the linker script.
//!
//! Offsets from the image's first byte, computed as differences of addresses:
//! right before and after the MMU, wherever the image was loaded.

use core::ops::Range;

unsafe extern "C" {
    static __image_start: u8;
    static __image_end: u8;
    static __idmap_text_start: u8;
    static __idmap_text_end: u8;
    static __text_end: u8;
    static __relro_start: u8;
    static __relro_end: u8;
    static __bss_start: u8;
    static __bss_end: u8;
    static __stack_start: u8;
    static __stack_top: u8;
    static __exception_stack_start: u8;
    static __exception_stack_top: u8;
    static __static_pool_start: u8;
    static __static_pool_end: u8;
}

/// What a part of the image may be used for once it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Execute and read.
    Text,
    /// Read.
    ReadOnly,
    /// Read and write, never execute.
    ReadWrite,
}

/// A part of the image with one permission; whole pages of every size that there is code for.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Offsets from the image's first byte.
    pub(crate) range: Range<u64>,
    pub(crate) permission: Permission,
}

macro_rules! offset {
    ($symbol:ident) => {
        // No `unsafe`: only addresses are taken, nothing is read.
        (&raw const $symbol as u64).wrapping_sub(&raw const __image_start as u64)
    };
}

/// The address of the image's first byte in the address space we run in now.
pub(crate) fn start() -> u64 {
    &raw const __image_start as u64
}

/// Bytes of the image in memory, everything included.
pub(crate) fn bytes() -> u64 {
    offset!(__image_end)
}

/// The end of text and constants, which begin with the image and stay as they are.
pub(crate) fn constants_end() -> u64 {
    offset!(__relro_end)
}

/// What is to be mapped, in address order. The stacks' guards belong to none of
/// them: right below a stack nothing may be mapped.
pub(crate) fn segments() -> [Segment; 5] {
    let segment = |start, end, permission| Segment {
        range: start..end,
        permission,
    };
    let (text_end, relro_end) = (offset!(__text_end), offset!(__relro_end));
    [
        segment(0, text_end, Permission::Text),
        // Its end is relocated before the MMU is on, and constant from then on.
        segment(text_end, relro_end, Permission::ReadOnly),
        segment(relro_end, offset!(__bss_end), Permission::ReadWrite),
        segment(
            offset!(__stack_start),
            offset!(__stack_top),
            Permission::ReadWrite,
        ),
        segment(
            offset!(__exception_stack_start),
            bytes(),
            Permission::ReadWrite,
        ),
    ]
}

/// The boot CPU's stack.
pub(crate) fn stack() -> Range<u64> {
    offset!(__stack_start)..offset!(__stack_top)
}

/// The address of the top of the boot CPU's exception stack.
pub(crate) fn exception_stack_top() -> u64 {
    &raw const __exception_stack_top as u64
}

/// The 4K page, 4K aligned, whose code turns the MMU on or off.
pub(crate) fn idmap_text() -> Range<u64> {
    offset!(__idmap_text_start)..offset!(__idmap_text_end)
}

/// What relocation writes.
pub(crate) fn relro() -> Range<u64> {
    offset!(__relro_start)..offset!(__relro_end)
}

/// What is zeroed at entry.
pub(crate) fn bss() -> Range<u64> {
    offset!(__bss_start)..offset!(__bss_end)
}

/// Everything that is written with the MMU off.
pub(crate) fn written() -> Range<u64> {
    offset!(__relro_start)..bytes()
}

/// Memory for the first tables. Not zeroed.
pub(crate) fn static_pool() -> Range<u64> {
    offset!(__static_pool_start)..offset!(__static_pool_end)
}
