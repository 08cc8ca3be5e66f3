//! Why runtime services stay off, each as one line.

use core::fmt;

/// Why firmware's memory is not mapped. Addresses are physical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The memory map has nothing for runtime services.
    None,
    /// There are more regions, or more descriptors of the memory attributes table, than firmware has.
    TooMany,
    /// A range is not aligned, or reaches the end of the address space.
    Range {
        /// Its first address.
        start: u64,
    },
    /// Two descriptors have the same memory.
    Overlap,
    /// The memory attributes table has memory that is no region's.
    Outside {
        /// Its first address.
        start: u64,
    },
    /// An earlier kernel gave virtual addresses to some regions and not to others.
    SomeMoved,
    /// An earlier kernel wrote that its call of SetVirtualAddressMap failed.
    NotMoved,
    /// The virtual address that an earlier kernel gave lies otherwise in a page of this size.
    Distance {
        /// The region's first address.
        start: u64,
    },
    /// A region lies beyond the addresses of the lower half.
    Beyond {
        /// Its first address.
        start: u64,
    },
    /// A page would have to be writable and executable.
    WriteExecute {
        /// Its address.
        page: u64,
        /// Its size.
        bytes: u64,
        /// Whether firmware has a memory attributes table.
        has_table: bool,
    },
    /// Code lies in memory that is not cacheable.
    Uncached {
        /// Its address.
        start: u64,
    },
    /// A page has memory of two types, or at two virtual addresses.
    Shared {
        /// Its address.
        page: u64,
        /// Its size.
        bytes: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("the EFI memory map has no memory for them"),
            Self::TooMany => write!(
                f,
                "the EFI memory map or the memory attributes table has more than {} descriptors for them",
                super::MOST
            ),
            Self::Range { start } => write!(
                f,
                "the range at {start:#x} is not aligned to 4 KiB or reaches the end of the address space"
            ),
            Self::Overlap => f.write_str("two of their ranges overlap"),
            Self::Outside { start } => write!(
                f,
                "the memory attributes table has {start:#x}, which is in none of their regions"
            ),
            Self::SomeMoved => f.write_str(
                "an earlier kernel gave virtual addresses to some of their regions and none to others",
            ),
            Self::NotMoved => f.write_str(
                "an earlier kernel could not have the firmware take virtual addresses (SetVirtualAddressMap)",
            ),
            Self::Distance { start } => write!(
                f,
                "an earlier kernel gave the region at {start:#x} a virtual address that pages of this size cannot have"
            ),
            Self::Beyond { start } => write!(
                f,
                "the region at {start:#x} does not fit into the lower half of the address space"
            ),
            Self::WriteExecute {
                page,
                bytes,
                has_table,
            } => {
                write!(
                    f,
                    "the {}k page at {page:#x} would have to be writable and executable",
                    bytes >> 10
                )?;
                if *has_table {
                    Ok(())
                } else {
                    f.write_str(": the firmware has no memory attributes table")
                }
            }
            Self::Uncached { start } => {
                write!(f, "the code at {start:#x} lies in memory that is not cacheable")
            }
            Self::Shared { page, bytes } => write!(
                f,
                "the {}k page at {page:#x} has memory of two types, or at two virtual addresses",
                bytes >> 10
            ),
        }
    }
}

impl core::error::Error for Refusal {}
