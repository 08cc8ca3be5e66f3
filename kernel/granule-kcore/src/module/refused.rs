//! Why a module's file is refused: one line each, with what was found and what is expected.

use super::{MOST_ALIGNMENT, MOST_BYTES, MOST_SECTIONS};
use thiserror::Error;

/// Why a file is not a module that this kernel can load.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum Refused<'a> {
    #[error("it is not a 64-bit little-endian ELF file, or is cut off")]
    NotElf,
    #[error("it is not for AArch64")]
    Machine,
    #[error("its type is {0}, expected 1 (REL)")]
    Kind(u16),
    #[error("its {0} is missing or damaged")]
    Damaged(&'static str),
    #[error("section {name} reaches beyond the end of the file", name = .0.escape_ascii())]
    CutOff(&'a [u8]),
    #[error("it has {0} sections, expected at most {MOST_SECTIONS}")]
    Sections(usize),
    #[error("it has not one section .granule.module with a head; name the module by `module!`")]
    NoHead,
    #[error(
        "it is for another kernel's build: its interface is {found:#018x}, this kernel's {expected:#018x}; build it again"
    )]
    Build { found: u64, expected: u64 },
    #[error("its name is empty, or not of letters, digits and underscores alone")]
    Name,
    #[error("section {name} is writable and executable", name = .0.escape_ascii())]
    WritableExecutable(&'a [u8]),
    #[error(
        "section {name} has type {kind} and flags {flags:#x}, which are not supported",
        name = .name.escape_ascii()
    )]
    Section {
        name: &'a [u8],
        kind: u32,
        flags: u64,
    },
    #[error(
        "section {name} is aligned to {align:#x} bytes, expected a power of two up to {MOST_ALIGNMENT:#x}",
        name = .name.escape_ascii()
    )]
    Alignment { name: &'a [u8], align: u64 },
    #[error("it takes more than {MOST_BYTES:#x} bytes of memory")]
    Size,
    #[error("this kernel exports no function {name}", name = .0.escape_ascii())]
    Missing(&'a [u8]),
    #[error("symbol {name} lies in no section that is loaded", name = .0.escape_ascii())]
    NotLoaded(&'a [u8]),
    #[error(
        "relocation {kind} in section {section} is not supported",
        section = .section.escape_ascii()
    )]
    RelocationKind { kind: u32, section: &'a [u8] },
    #[error("relocation {kind} cannot reach symbol {symbol}", symbol = .symbol.escape_ascii())]
    RelocationRange { kind: u32, symbol: &'a [u8] },
    #[error(
        "a relocation at {offset:#x} lies outside of section {section}",
        section = .section.escape_ascii()
    )]
    RelocationOutside { offset: u64, section: &'a [u8] },
    #[error("it has no function {0} in its code")]
    NoFunction(&'static str),
}
