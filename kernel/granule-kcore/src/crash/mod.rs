//! The memory of a kernel that crashed, as an ELF core: what the dead kernel prepares, and what the crash kernel makes
//! of it. Pure.
//!
//! The dead kernel prepares a [`header`] when the crash kernel is loaded: an ELF header for all of its RAM by physical
//! address, with room for the registers of each CPU ([`registers`]), which are stored there at the panic. The crash
//! kernel reads it, or that of a Linux, and has the [`core_file`] of it that programs read as `/proc/vmcore`.
//!
//! Both kernels may have different page sizes, so nothing here depends on one: the header lies in memory that is
//! aligned for every size.

pub mod core_file;
pub mod header;
pub mod registers;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An ELF header, of 64 bits and little-endian.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct FileHeader {
    ident: [u8; 16],
    kind: u16,
    machine: u16,
    version: u32,
    entry: u64,
    segments_at: u64,
    sections_at: u64,
    flags: u32,
    bytes: u16,
    segment_bytes: u16,
    segments: u16,
    section_bytes: u16,
    sections: u16,
    names: u16,
}

/// A program header.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct SegmentHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    virtual_address: u64,
    physical_address: u64,
    file_bytes: u64,
    memory_bytes: u64,
    align: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct NoteHeader {
    name_bytes: u32,
    bytes: u32,
    kind: u32,
}

const FILE_HEADER: usize = size_of::<FileHeader>();
const SEGMENT_HEADER: usize = size_of::<SegmentHeader>();
const NOTE_HEADER: usize = size_of::<NoteHeader>();

const LOAD: u32 = elf::abi::PT_LOAD;
const NOTE: u32 = elf::abi::PT_NOTE;

impl FileHeader {
    /// The header of an arm64 core with so many segments, whose headers follow it.
    fn core(segments: u16) -> Self {
        Self {
            ident: *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
            kind: elf::abi::ET_CORE,
            machine: elf::abi::EM_AARCH64,
            version: 1,
            entry: 0,
            segments_at: FILE_HEADER as u64,
            sections_at: 0,
            flags: 0,
            bytes: FILE_HEADER as u16,
            segment_bytes: SEGMENT_HEADER as u16,
            segments,
            section_bytes: 0,
            sections: 0,
            names: 0,
        }
    }
}

/// Writes `bytes` to `into` at `at`. `None` if they do not fit.
fn put(into: &mut [u8], at: usize, bytes: &[u8]) -> Option<usize> {
    let end = at.checked_add(bytes.len())?;
    into.get_mut(at..end)?.copy_from_slice(bytes);
    Some(end)
}

/// Writes a note whose name has at most 12 bytes. `None` if it does not fit; else the offset behind it.
fn put_note(into: &mut [u8], at: usize, name: &[u8], kind: u32, data: &[u8]) -> Option<usize> {
    let header = NoteHeader {
        name_bytes: name.len() as u32 + 1,
        bytes: data.len() as u32,
        kind,
    };
    let name_at = put(into, at, header.as_bytes())?;
    put(into, name_at, name)?;
    let data_at = name_at + (name.len() + 1).next_multiple_of(4);
    put(into, data_at, data)?;
    Some(data_at + data.len().next_multiple_of(4))
}

#[cfg(test)]
mod tests;
