//! The boundaries of the kernel image, from the linker script.
//!
//! They are offsets from the image's first byte, computed as differences of addresses. So they are
//! correct with the MMU off and on, wherever the image was loaded.

#![allow(unsafe_code, reason = "the linker's symbols")]

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
    static __firmware_tree_start: u8;
    static __firmware_tree_end: u8;
}

/// Permissions of a mapped part of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Read and execute.
    Text,
    /// Read only.
    ReadOnly,
    /// Read and write, never execute.
    ReadWrite,
}

/// A part of the image with one permission, in whole pages of every supported size.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Offsets from the image's first byte.
    pub(crate) range: Range<u64>,
    pub(crate) permission: Permission,
}

macro_rules! offset {
    ($symbol:ident) => {
        // No `unsafe`: this takes addresses and reads nothing.
        (&raw const $symbol as u64).wrapping_sub(&raw const __image_start as u64)
    };
}

/// The address of the image's first byte in the current address space.
pub(crate) fn start() -> u64 {
    &raw const __image_start as u64
}

/// Size of the whole image in memory, in bytes.
pub(crate) fn bytes() -> u64 {
    offset!(__image_end)
}

/// The bytes that a boot loader loads, which end where `.bss` begins.
pub(crate) fn loaded() -> &'static [u8] {
    // SAFETY: the linker script places text, constants and data there, and nothing writes them while the
    // slice is in use: its one user is the EFI stub, which writes no static.
    unsafe { core::slice::from_raw_parts(&raw const __image_start, bss().start as usize) }
}

/// The end of text and constants, which begin with the image and never change.
pub(crate) fn constants_end() -> u64 {
    offset!(__relro_end)
}

/// The parts to map, in address order. The stacks' guards are in none of them: the memory right
/// below a stack must stay unmapped.
pub(crate) fn segments() -> [Segment; 5] {
    let segment = |start, end, permission| Segment {
        range: start..end,
        permission,
    };
    let (text_end, relro_end) = (offset!(__text_end), offset!(__relro_end));
    [
        segment(0, text_end, Permission::Text),
        // Relocation writes the end of it with the MMU off; it is constant from then on.
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

/// The range that relocation writes.
pub(crate) fn relro() -> Range<u64> {
    offset!(__relro_start)..offset!(__relro_end)
}

/// The range that is zeroed at entry.
pub(crate) fn bss() -> Range<u64> {
    offset!(__bss_start)..offset!(__bss_end)
}

/// Everything that is written with the MMU off.
pub(crate) fn written() -> Range<u64> {
    offset!(__relro_start)..bytes()
}

/// Memory for the first tables. It is not zeroed.
pub(crate) fn static_pool() -> Range<u64> {
    offset!(__static_pool_start)..offset!(__static_pool_end)
}

/// Memory for the device tree that is made of firmware's tables. It is not zeroed, and follows the pool.
pub(crate) fn firmware_tree() -> Range<u64> {
    offset!(__firmware_tree_start)..offset!(__firmware_tree_end)
}
