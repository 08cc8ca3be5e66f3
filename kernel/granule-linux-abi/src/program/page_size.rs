//! The choice of the page size that a program runs with. Pure; fuzzed with the reader of programs.
//!
//! A file allows a size if its segments can be loaded with it and the largest alignment of a segment
//! (`p_align`) is not smaller. Among the sizes that the file allows and that programs can have on this boot,
//! the first of these wishes counts:
//!
//! 1. The process's: `prctl(0x47525053, bytes)` ("GRPS"). Children inherit it, it takes effect at the next
//!    `execve`, and 0 takes it back. A size that programs cannot have is `EINVAL`. `prctl(0x47525047)`
//!    ("GRPG") returns the wish. The program `granule-pagesize SIZE PROGRAM …` sets it and executes a
//!    program.
//! 2. The file's: a note in a PT_NOTE segment with the name `Granule`, the type [`NT_PAGE_SIZE`], and the
//!    bytes of a page as a little-endian number of 4 or 8 bytes.
//! 3. The command line's: `user_pagesize=4k|16k|64k`.
//!
//! A wish that cannot be granted is not an error: a line has the reason, and the default is taken: the
//! kernel's size if the file allows it, else the largest allowed size. Only if none is left `execve` fails
//! with `ENOEXEC`, and a line lists the sizes that there are and those that the file allows.

use super::{Program, ProgramError, ProgramPlace, read};
use core::fmt;
use elf::ElfBytes;
use elf::abi::PT_NOTE;
use elf::endian::LittleEndian;
use elf::note::{Note, NoteAny};
use granule::arch::PageSize;
use granule_boot::sizes::SizeSet;
use thiserror::Error;

/// The name of the note, which may have a NUL behind it.
const NOTE_NAME: &[u8] = b"Granule";
/// The type of the note with the page size that a program requests.
pub const NT_PAGE_SIZE: u64 = 1;

/// The source of a wish for a page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wisher {
    /// The process, or one before it that it inherited the wish from.
    Process,
    /// The file.
    Note,
    /// The command line.
    CommandLine,
}

/// The wishes that are not in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The process's.
    pub process: Option<PageSize>,
    /// The command line's.
    pub command_line: Option<PageSize>,
}

/// Why a wish was not granted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum Why {
    #[error("there are none")]
    NoSize,
    #[error("programs have {0} on this boot")]
    Unusable(SizeSet),
    #[error("{0}")]
    File(ProgramError),
}

/// A wish that was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Whose wish it was.
    pub by: Wisher,
    /// Bytes of the page that was wished for.
    pub bytes: u64,
    /// Why it was not granted.
    pub why: Why,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            Wisher::Process => "its process",
            Wisher::Note => "its note",
            Wisher::CommandLine => "user_pagesize=",
        };
        let Self { bytes, why, .. } = self;
        write!(f, "{by} requests pages of {bytes} bytes: {why}")
    }
}

/// A program with its page size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The page size.
    pub size: PageSize,
    /// The program, read with that page size.
    pub program: Program,
    /// The wish that was not granted, if there was one.
    pub refused: Option<Refused>,
}

/// Reads a program and chooses its page size among `usable`, the sizes that programs can have on this boot.
/// The pages of `place` are the kernel's. Errors: [`ProgramError::NoPageSize`] if the file allows none of
/// `usable`, else the reason why it is not a program.
pub fn choose(
    file: &[u8],
    place: &ProgramPlace,
    usable: SizeSet,
    wishes: &Wishes,
) -> Result<Chosen, ProgramError> {
    let with = |size: PageSize| read(file, &place.with_pages(size));
    let mut refused = None;
    if let Some((by, bytes)) = wish(file, wishes) {
        let why = match PageSize::from_bytes(bytes) {
            None => Why::NoSize,
            Some(size) if !usable.has(size) => Why::Unusable(usable),
            Some(size) => match with(size) {
                Ok(program) => {
                    return Ok(Chosen {
                        size,
                        program,
                        refused,
                    });
                }
                Err(error) => Why::File(error),
            },
        };
        refused = Some(Refused { by, bytes, why });
    }
    let kernel = PageSize::from_bytes(place.page);
    let rest = PageSize::ALL.into_iter().rev();
    let order = kernel
        .into_iter()
        .chain(rest.filter(|size| Some(*size) != kernel));
    for size in order.filter(|size| usable.has(*size)) {
        if let Ok(program) = with(size) {
            return Ok(Chosen {
                size,
                program,
                refused,
            });
        }
    }
    // The smallest pages require the least of a file.
    with(PageSize::MIN)?;
    let allowed = PageSize::ALL.into_iter().filter(|size| with(*size).is_ok());
    let allowed = allowed.collect();
    Err(ProgramError::NoPageSize { usable, allowed })
}

/// The wish that counts.
fn wish(file: &[u8], wishes: &Wishes) -> Option<(Wisher, u64)> {
    let known = |by, size: Option<PageSize>| size.map(|size| (by, size.bytes()));
    known(Wisher::Process, wishes.process)
        .or_else(|| note(file).map(|bytes| (Wisher::Note, bytes)))
        .or_else(|| known(Wisher::CommandLine, wishes.command_line))
}

/// The page size, in bytes, that the file's first readable note requests.
fn note(file: &[u8]) -> Option<u64> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).ok()?;
    let segments = elf.segments()?;
    let mut notes = segments
        .iter()
        .filter(|header| header.p_type == PT_NOTE)
        .filter_map(|header| elf.segment_data_as_notes(&header).ok())
        .flatten();
    notes.find_map(|note| match note {
        Note::Unknown(note) => wanted(&note),
        _ => None,
    })
}

fn wanted(note: &NoteAny<'_>) -> Option<u64> {
    let name = note.name.strip_suffix(b"\0").unwrap_or(note.name);
    if name != NOTE_NAME || note.n_type != NT_PAGE_SIZE {
        return None;
    }
    let bytes = note.desc;
    let short = || <[u8; 4]>::try_from(bytes).map(|bytes| u32::from_le_bytes(bytes).into());
    let long = || <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes);
    short().or_else(|_| long()).ok()
}

#[cfg(test)]
mod tests;
