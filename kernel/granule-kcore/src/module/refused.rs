//! Why a module's file is refused: one line each, with what was found and what is expected.

use super::{MOST_ALIGNMENT, MOST_BYTES, MOST_SECTIONS};
use core::fmt;

/// Why a file is not a module that this kernel can load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused<'a> {
    /// The file is not a 64-bit little-endian ELF file, or its header is cut off.
    NotElf,
    /// The file is for another machine.
    Machine,
    /// The file has this type.
    Kind(u16),
    /// This part of the file cannot be read.
    Damaged(&'static str),
    /// The section of this name reaches beyond the file.
    CutOff(&'a [u8]),
    /// The file has so many sections.
    Sections(usize),
    /// The file has no head of a module, or several.
    NoHead,
    /// The module was built with another interface.
    Build {
        /// The module's.
        found: u64,
        /// The kernel's.
        expected: u64,
    },
    /// The module's name is empty or has other characters than letters, digits and underscores.
    Name,
    /// The section of this name is writable and executable.
    WritableExecutable(&'a [u8]),
    /// The section has a type or a flag that is not supported.
    Section {
        /// Its name.
        name: &'a [u8],
        /// Its type.
        kind: u32,
        /// Its flags.
        flags: u64,
    },
    /// The section has such an alignment.
    Alignment {
        /// Its name.
        name: &'a [u8],
        /// Bytes.
        align: u64,
    },
    /// The module is too large.
    Size,
    /// The kernel exports no function of this name.
    Missing(&'a [u8]),
    /// The symbol of this name lies in no section that is part of memory.
    NotLoaded(&'a [u8]),
    /// The relocation is of a kind that is not supported.
    RelocationKind {
        /// Its number.
        kind: u32,
        /// The section that it changes.
        section: &'a [u8],
    },
    /// The symbol is too far away for the relocation, or not aligned for it.
    RelocationRange {
        /// The relocation's number.
        kind: u32,
        /// The symbol's name; empty for a section.
        symbol: &'a [u8],
    },
    /// The relocation changes what is not in its section.
    RelocationOutside {
        /// Its offset.
        offset: u64,
        /// The section.
        section: &'a [u8],
    },
    /// The module has no function of this name in its code.
    NoFunction(&'static str),
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotElf => f.write_str("it is not a 64-bit little-endian ELF file, or is cut off"),
            Self::Machine => f.write_str("it is not for AArch64"),
            Self::Kind(kind) => write!(f, "its type is {kind}, expected 1 (REL)"),
            Self::Damaged(what) => write!(f, "its {what} is missing or damaged"),
            Self::CutOff(name) => {
                let name = name.escape_ascii();
                write!(f, "section {name} reaches beyond the end of the file")
            }
            Self::Sections(count) => {
                write!(
                    f,
                    "it has {count} sections, expected at most {MOST_SECTIONS}"
                )
            }
            Self::NoHead => f.write_str(
                "it has not one section .granule.module with a head; name the module by `module!`",
            ),
            Self::Build { found, expected } => write!(
                f,
                "it is for another kernel's build: its interface is {found:#018x}, this kernel's {expected:#018x}; \
                 build it again"
            ),
            Self::Name => {
                f.write_str("its name is empty, or not of letters, digits and underscores alone")
            }
            Self::WritableExecutable(name) => {
                let name = name.escape_ascii();
                write!(f, "section {name} is writable and executable")
            }
            Self::Section { name, kind, flags } => {
                let name = name.escape_ascii();
                write!(
                    f,
                    "section {name} has type {kind} and flags {flags:#x}, which are not supported"
                )
            }
            Self::Alignment { name, align } => {
                let name = name.escape_ascii();
                write!(
                    f,
                    "section {name} is aligned to {align:#x} bytes, expected a power of two up to {MOST_ALIGNMENT:#x}"
                )
            }
            Self::Size => write!(f, "it takes more than {MOST_BYTES:#x} bytes of memory"),
            Self::Missing(name) => {
                let name = name.escape_ascii();
                write!(f, "this kernel exports no function {name}")
            }
            Self::NotLoaded(name) => {
                let name = name.escape_ascii();
                write!(f, "symbol {name} lies in no section that is loaded")
            }
            Self::RelocationKind { kind, section } => {
                let section = section.escape_ascii();
                write!(f, "relocation {kind} in section {section} is not supported")
            }
            Self::RelocationRange { kind, symbol } => {
                let symbol = symbol.escape_ascii();
                write!(f, "relocation {kind} cannot reach symbol {symbol}")
            }
            Self::RelocationOutside { offset, section } => {
                let section = section.escape_ascii();
                write!(
                    f,
                    "a relocation at {offset:#x} lies outside of section {section}"
                )
            }
            Self::NoFunction(name) => write!(f, "it has no function {name} in its code"),
        }
    }
}
