//! Why a module's file is refused: one line each, with what was found and what is expected.

use super::{MOST_ALIGNMENT, MOST_BYTES, MOST_SECTIONS};
use thiserror::Error;

/// Why a file is not a module that this kernel can load.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refused<'a> {
    /// The file is not a 64-bit little-endian ELF file, or its header is cut off.
    #[error("it is not a 64-bit little-endian ELF file, or is cut off")]
    NotElf,
    /// The file is for another machine.
    #[error("it is not for AArch64")]
    Machine,
    /// The file has this type.
    #[error("its type is {0}, expected 1 (REL)")]
    Kind(u16),
    /// This part of the file cannot be read.
    #[error("its {0} is missing or damaged")]
    Damaged(&'static str),
    /// The section of this name reaches beyond the file.
    #[error("section {name} reaches beyond the end of the file", name = .0.escape_ascii())]
    CutOff(&'a [u8]),
    /// The file has so many sections.
    #[error("it has {0} sections, expected at most {MOST_SECTIONS}")]
    Sections(usize),
    /// The file has no head of a module, or several.
    #[error("it has not one section .granule.module with a head; name the module by `module!`")]
    NoHead,
    /// The module was built with another interface.
    #[error(
        "it is for another kernel's build: its interface is {found:#018x}, this kernel's {expected:#018x}; build it again"
    )]
    Build {
        /// The module's.
        found: u64,
        /// The kernel's.
        expected: u64,
    },
    /// The module's name is empty or has other characters than letters, digits and underscores.
    #[error("its name is empty, or not of letters, digits and underscores alone")]
    Name,
    /// The section of this name is writable and executable.
    #[error("section {name} is writable and executable", name = .0.escape_ascii())]
    WritableExecutable(&'a [u8]),
    /// The section has a type or a flag that is not supported.
    #[error(
        "section {name} has type {kind} and flags {flags:#x}, which are not supported",
        name = .name.escape_ascii()
    )]
    Section {
        /// Its name.
        name: &'a [u8],
        /// Its type.
        kind: u32,
        /// Its flags.
        flags: u64,
    },
    /// The section has such an alignment.
    #[error(
        "section {name} is aligned to {align:#x} bytes, expected a power of two up to {MOST_ALIGNMENT:#x}",
        name = .name.escape_ascii()
    )]
    Alignment {
        /// Its name.
        name: &'a [u8],
        /// Bytes.
        align: u64,
    },
    /// The module is too large.
    #[error("it takes more than {MOST_BYTES:#x} bytes of memory")]
    Size,
    /// The kernel exports no function of this name.
    #[error("this kernel exports no function {name}", name = .0.escape_ascii())]
    Missing(&'a [u8]),
    /// The symbol of this name lies in no section that is part of memory.
    #[error("symbol {name} lies in no section that is loaded", name = .0.escape_ascii())]
    NotLoaded(&'a [u8]),
    /// The relocation is of a kind that is not supported.
    #[error(
        "relocation {kind} in section {section} is not supported",
        section = .section.escape_ascii()
    )]
    RelocationKind {
        /// Its number.
        kind: u32,
        /// The section that it changes.
        section: &'a [u8],
    },
    /// The symbol is too far away for the relocation, or not aligned for it.
    #[error("relocation {kind} cannot reach symbol {symbol}", symbol = .symbol.escape_ascii())]
    RelocationRange {
        /// The relocation's number.
        kind: u32,
        /// The symbol's name; empty for a section.
        symbol: &'a [u8],
    },
    /// The relocation changes what is not in its section.
    #[error(
        "a relocation at {offset:#x} lies outside of section {section}",
        section = .section.escape_ascii()
    )]
    RelocationOutside {
        /// Its offset.
        offset: u64,
        /// The section.
        section: &'a [u8],
    },
    /// The module has no function of this name in its code.
    #[error("it has no function {0} in its code")]
    NoFunction(&'static str),
}
