//! Why an operation on tables fails, with the words for it. Checks that find an error are in the files of
//! the operations.

use crate::arch::bbm::BbmLevel;
use crate::arch::{PageSize, PhysicalAddress, VirtualAddress};
use core::fmt;

/// Why an operation on tables failed. The tables are unchanged.
///
/// The addresses are those that the tables translate: of a guest's tables intermediate physical
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// An address or a length is not a multiple of the page size.
    Misaligned {
        /// The address or length.
        value: u64,
        /// The page size.
        page_size: PageSize,
    },
    /// A range extends outside the half of the address space that the tables translate.
    OutsideSpace {
        /// The first address of the range.
        start: VirtualAddress,
        /// Its bytes.
        bytes: u64,
        /// The bits of virtual address of the half.
        va_bits: u32,
    },
    /// The output extends beyond the physical addresses of the CPU and the descriptor format.
    OutputTooLarge {
        /// The first physical address of the range.
        start: PhysicalAddress,
        /// Its bytes.
        bytes: u64,
        /// The usable bits of physical address.
        pa_bits: u32,
    },
    /// A part of the range is already mapped.
    AlreadyMapped {
        /// The first such address in the range.
        address: VirtualAddress,
    },
    /// The pieces of a list are not in ascending order, or overlap.
    Unsorted {
        /// The first address of the piece that begins before its predecessor ends.
        address: VirtualAddress,
    },
    /// A part of the range is not mapped, but must be.
    NotMapped {
        /// The first such address in the range.
        address: VirtualAddress,
    },
    /// The operation would have to split a live block or contiguous group, and the CPUs' level of
    /// FEAT_BBM does not allow that. Either the range begins or ends inside the leaf, or
    /// [`PageTables::limit_leaves`](super::PageTables::limit_leaves) would split all of it. `lock_free::set_valid` returns this
    /// error for any block or group, at every level of FEAT_BBM, because it changes only single
    /// pages.
    InsideLeaf {
        /// The edge of the range.
        edge: VirtualAddress,
        /// The first address of the leaf or group.
        leaf: VirtualAddress,
        /// The bytes of the leaf or group.
        leaf_bytes: u64,
        /// The level of FEAT_BBM that the split needs ([`PageTables::set_bbm`](super::PageTables::set_bbm)).
        takes: BbmLevel,
    },
    /// There are not enough table pages.
    OutOfTables {
        /// The number of table pages that the operation needs, those that are free included.
        needed: usize,
    },
    /// The geometry and the type have different page sizes.
    WrongPageSize {
        /// The geometry's page size.
        geometry: PageSize,
        /// The type's page size.
        page: PageSize,
    },
    /// The pages for tables reach beyond the physical addresses of the CPU and the descriptor
    /// format.
    TablesTooHigh {
        /// The end of the last page.
        end: PhysicalAddress,
        /// The usable bits of physical address.
        pa_bits: u32,
    },
    /// The page sizes of the type and of the environment's pages differ.
    WrongTablePages {
        /// The size of the environment's pages.
        given: PageSize,
        /// The type's page size.
        page: PageSize,
    },
    /// The shape of a [`Stage2Geometry`](crate::arch::Stage2Geometry) is not one of stage 1.
    WrongStage,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Misaligned { value, page_size } => {
                write!(
                    f,
                    "{value:#x} is not a multiple of the {page_size} page size"
                )
            }
            Self::OutsideSpace {
                start,
                bytes,
                va_bits,
            } => write!(
                f,
                "{bytes:#x} bytes from {start} reach outside the {va_bits}-bit address space"
            ),
            Self::OutputTooLarge {
                start,
                bytes,
                pa_bits,
            } => write!(
                f,
                "{bytes:#x} bytes from physical {start} reach beyond {pa_bits} bits"
            ),
            Self::AlreadyMapped { address } => write!(f, "{address} is already mapped"),
            Self::Unsorted { address } => {
                write!(
                    f,
                    "the piece at {address} begins before the one before it ends"
                )
            }
            Self::NotMapped { address } => write!(f, "{address} is not mapped"),
            Self::InsideLeaf {
                edge,
                leaf,
                leaf_bytes,
                takes,
            } => write!(
                f,
                "{edge} lies inside the leaf of {leaf_bytes:#x} bytes at {leaf}, which may not be split \
                 while CPUs use it: change all of it, map it in smaller leaves, or allow it \
                 with set_bbm if every CPU has level {} of FEAT_BBM",
                takes.number()
            ),
            Self::OutOfTables { needed } => {
                write!(
                    f,
                    "out of memory for tables: the operation needs {needed} pages, and fewer are free"
                )
            }
            Self::TablesTooHigh { end, pa_bits } => write!(
                f,
                "pages for tables reach up to {end}, beyond {pa_bits} bits: give the environment lower memory"
            ),
            Self::WrongTablePages { given, page } => write!(
                f,
                "the environment has {given} pages, the tables were asked for with {page}"
            ),
            Self::WrongStage => write!(
                f,
                "tables of stage 1 were asked for with the shape of stage 2: name Stage2 in the type"
            ),
            Self::WrongPageSize { geometry, page } => write!(
                f,
                "the geometry has {geometry} pages, the tables were asked for with {page}"
            ),
        }
    }
}

impl core::error::Error for TableError {}
