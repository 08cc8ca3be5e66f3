//! Reads static AArch64 programs in ELF files: the segments, the entry and the program headers.
//! [`page_size`] chooses the page size that a program runs with.
//!
//! The bytes are untrusted: every number is checked before use, and a file that breaks a rule is refused
//! with a line that names the rule. Pure; fuzzed.
//!
//! Programs are static, at fixed addresses or movable. Segments that share a page are refused, so a program
//! linked for 64K runs with every page size.

pub mod page_size;

use arrayvec::ArrayVec;
use core::ops::Range;
use elf::ElfBytes;
use elf::abi::{EM_AARCH64, ET_DYN, ET_EXEC, PF_R, PF_W, PF_X, PT_INTERP, PT_LOAD, PT_PHDR};
use elf::endian::LittleEndian;
use elf::file::Class;
use granule::arch::PageSize;
use granule_boot::sizes::SizeSet;
use thiserror::Error;

/// The most loadable segments.
const MOST_SEGMENTS: usize = 16;

/// A loadable part of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first address in memory.
    pub start: u64,
    /// The end of the addresses.
    pub end: u64,
    /// The bytes of the file for its start; the rest of the segment is zero.
    pub file: Range<usize>,
    /// Whether the segment is readable.
    pub read: bool,
    /// Whether the segment is writable.
    pub write: bool,
    /// Whether the segment is executable.
    pub execute: bool,
}

impl Segment {
    /// The whole pages of the segment.
    pub const fn pages(&self, page: u64) -> Range<u64> {
        self.start & !(page - 1)..(self.end + (page - 1)) & !(page - 1)
    }

    /// The addresses of the pages that may be pages of the file itself, in memory that has `file_bytes` bytes of
    /// it, zeros at its end included. They are whole pages, of content alone: a program may write to the rest
    /// of the last page, or finds zeros there. Where it may do neither, all pages are the file's. Empty,
    /// at the segment's start, if the segment has another place in a page than in the file.
    pub const fn shared_pages(&self, page: u64, file_bytes: u64) -> Range<u64> {
        let inside = page - 1;
        let (start, from) = (self.start, self.file.start as u64);
        let content = (self.file.end - self.file.start) as u64;
        let none = start..start;
        if (start ^ from) & inside != 0 {
            return none;
        }
        let pages = self.pages(page);
        let rest = pages.end - start;
        if !self.write && content == self.end - start && from + rest <= file_bytes {
            return pages;
        }
        let whole = (start + inside) & !inside..(start + content) & !inside;
        if whole.start < whole.end { whole } else { none }
    }
}

/// A valid program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The segments, ascending, no two in one page.
    pub segments: ArrayVec<Segment, MOST_SEGMENTS>,
    /// The address of the first instruction.
    pub entry: u64,
    /// The address of the program headers, if they are in memory.
    pub headers: Option<u64>,
    /// The number of program headers.
    pub header_count: u64,
    /// Bytes of a program header.
    pub header_bytes: u64,
    /// The distance the program was moved: added to each address of the file.
    pub bias: u64,
}

/// Why a file is not a program that can run here.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum ProgramError {
    #[error("it is not a 64-bit little-endian ELF file, or is cut off")]
    NotElf,
    #[error("it is not for AArch64")]
    Machine,
    #[error("its type is {0}, expected 2 (EXEC) or 3 (DYN)")]
    Kind(u16),
    #[error("it needs a dynamic linker; link it statically (-static, -static-pie)")]
    Interpreter,
    #[error("it has no segment to load, or more than {MOST_SEGMENTS}")]
    Segments,
    #[error("the segment at {0:#x} reaches beyond the file, or is smaller in memory")]
    Extent(u64),
    #[error("the segment at {0:#x} lies outside of user space")]
    Address(u64),
    #[error("the segment at {0:#x} has another place in its page than in the file")]
    Offset(u64),
    #[error(
        "the segment at {address:#x} shares a page of {page} bytes with another one, or is out of order; link it for pages of \
         64K (-z max-page-size=65536)"
    )]
    Overlap { address: u64, page: u64 },
    #[error("its first instruction, {0:#x}, is in no segment that can be executed")]
    Entry(u64),
    #[error("its segments are aligned to {bytes} bytes, too few for pages of {page} bytes")]
    Alignment { bytes: u64, page: u64 },
    #[error(
        "no page size is left: programs have {usable} on this boot, and the file allows {allowed}; link it for pages of 64K \
         (-z max-page-size=65536)"
    )]
    NoPageSize { usable: SizeSet, allowed: SizeSet },
}

/// The addresses that programs may have, and the place of movable programs.
#[derive(Clone, Debug)]
pub struct ProgramPlace {
    /// Bytes of a page.
    pub page: u64,
    /// The addresses for programs.
    pub addresses: Range<u64>,
    /// The address for position-independent programs.
    pub movable_at: u64,
}

impl ProgramPlace {
    /// The same place, in pages of another size.
    #[must_use]
    pub fn with_pages(&self, size: PageSize) -> Self {
        Self {
            page: size.bytes(),
            ..self.clone()
        }
    }
}

/// Reads and checks a program.
pub fn read(file: &[u8], place: &ProgramPlace) -> Result<Program, ProgramError> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).map_err(|_| ProgramError::NotElf)?;
    let header = &elf.ehdr;
    if header.class != Class::ELF64 {
        return Err(ProgramError::NotElf);
    }
    if header.e_machine != EM_AARCH64 {
        return Err(ProgramError::Machine);
    }
    let movable = match header.e_type {
        ET_EXEC => false,
        ET_DYN => true,
        other => return Err(ProgramError::Kind(other)),
    };
    let headers = elf.segments().ok_or(ProgramError::Segments)?;
    let mut alignment = PageSize::MIN.bytes();
    let mut program = Program {
        segments: ArrayVec::new(),
        entry: 0,
        headers: None,
        header_count: header.e_phnum.into(),
        header_bytes: header.e_phentsize.into(),
        bias: 0,
    };
    let first = headers.iter().find(|header| header.p_type == PT_LOAD);
    let first = first.ok_or(ProgramError::Segments)?.p_vaddr;
    if movable {
        program.bias = place.movable_at.wrapping_sub(first & !(place.page - 1));
    }
    for header in headers.iter() {
        match header.p_type {
            PT_INTERP => return Err(ProgramError::Interpreter),
            PT_PHDR => program.headers = Some(header.p_vaddr.wrapping_add(program.bias)),
            PT_LOAD if header.p_memsz > 0 => {
                alignment = alignment.max(header.p_align);
                let segment = segment(file, place, &header, program.bias)?;
                let page = place.page;
                let before = program.segments.last();
                let (start, address) = (segment.pages(page).start, segment.start);
                if before.is_some_and(|before| before.pages(page).end > start) {
                    return Err(ProgramError::Overlap { address, page });
                }
                let pushed = program.segments.try_push(segment);
                pushed.map_err(|_| ProgramError::Segments)?;
            }
            _ => {}
        }
    }
    // The linker chose the distance of segments, and perhaps code, for pages of no more than this.
    if place.page > alignment {
        let (bytes, page) = (alignment, place.page);
        return Err(ProgramError::Alignment { bytes, page });
    }
    if program.headers.is_none() {
        program.headers = program
            .segments
            .iter()
            .find(|segment| segment.file.contains(&(header.e_phoff as usize)))
            .map(|segment| segment.start + (header.e_phoff - segment.file.start as u64));
    }
    let address = header.e_entry.wrapping_add(program.bias);
    let begins =
        |segment: &Segment| segment.execute && (segment.start..segment.end).contains(&address);
    if !program.segments.iter().any(begins) || !address.is_multiple_of(4) {
        return Err(ProgramError::Entry(address));
    }
    program.entry = address;
    Ok(program)
}

fn segment(
    file: &[u8],
    place: &ProgramPlace,
    header: &elf::segment::ProgramHeader,
    bias: u64,
) -> Result<Segment, ProgramError> {
    let start = header.p_vaddr.wrapping_add(bias);
    let extent = ProgramError::Extent(start);
    if header.p_filesz > header.p_memsz {
        return Err(extent);
    }
    let file_end = header.p_offset.checked_add(header.p_filesz).ok_or(extent)?;
    let range = usize::try_from(header.p_offset).map_err(|_| extent)?
        ..usize::try_from(file_end).map_err(|_| extent)?;
    if range.end > file.len() {
        return Err(extent);
    }
    let end = start.checked_add(header.p_memsz);
    let end = end
        .filter(|end| start >= place.addresses.start && *end <= place.addresses.end)
        .ok_or(ProgramError::Address(start))?;
    if (start ^ header.p_offset) & (place.page - 1) != 0 {
        return Err(ProgramError::Offset(start));
    }
    Ok(Segment {
        start,
        end,
        file: range,
        read: header.p_flags & PF_R != 0,
        write: header.p_flags & PF_W != 0,
        execute: header.p_flags & PF_X != 0,
    })
}

#[cfg(test)]
mod tests;
