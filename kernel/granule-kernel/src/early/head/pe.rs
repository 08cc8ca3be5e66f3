//! The PE header, by which EFI firmware loads the image as an application: right behind the image header.
//!
//! The file's sections are where the memory's are, so offsets and addresses are the same numbers. They
//! come from the linker script, and `cargo xtask image` compares them with the ELF file's segments.

use core::arch::global_asm;

// The numbers are those of the PE specification. There is no base that the image would need and no table of
// relocations: the stub relocates the image itself, wherever it is.
global_asm!(
    r#"
    .section .head.pe, "a"
    .ascii  "PE\0\0"
    .short  0xaa64                  // arm64
    .short  3                       // sections
    .long   0                       // no date: a build can be repeated
    .long   0, 0                    // no symbols
    .short  .Lsections - .Loptional
    .short  0x0226                  // executable, any address, no debug information, no line numbers

.Loptional:
    .short  0x20b                   // PE32+
    .byte   0, 0                    // version of the linker
    .long   __pe_text_bytes
    .long   __pe_data_file_bytes
    .long   0
    .long   __pe_entry
    .long   __pe_header_bytes       // where code begins
    .quad   0                       // base
    .long   0x1000                  // sections are at multiples of a page of EFI's,
    .long   0x200                   // and in the file at multiples of a sector
    .short  0, 0                    // version of the system
    .short  1, 1                    // version of the image: 1.0 takes an initramfs by LoadFile2, 1.1 by initrd=
    .short  0, 0                    // version of the subsystem
    .long   0
    .long   __image_size
    .long   __pe_header_bytes
    .long   0                       // no checksum
    .short  10                      // an EFI application
    .short  0x100                   // works where data cannot be executed
    .quad   0, 0, 0, 0              // stack and heap are the firmware's
    .long   0
    .long   6                       // directories, all empty; loaders read as many
    .quad   0, 0, 0, 0, 0, 0

.Lsections:
    .ascii  ".text\0\0\0"
    .long   __pe_text_bytes, __pe_header_bytes
    .long   __pe_text_bytes, __pe_header_bytes
    .long   0, 0, 0
    .long   0x60000020              // code, execute, read
    .ascii  ".rodata\0"
    .long   __pe_rodata_bytes, __pe_rodata
    .long   __pe_rodata_bytes, __pe_rodata
    .long   0, 0, 0
    .long   0x40000040              // initialised data, read
    .ascii  ".data\0\0\0"
    .long   __pe_data_bytes, __pe_data
    .long   __pe_data_file_bytes, __pe_data
    .long   0, 0, 0
    .long   0xc0000040              // initialised data, read, write
"#
);
