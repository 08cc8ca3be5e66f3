//! Errors of early memory.

use core::fmt;

/// One of the lists of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeList {
    /// The banks of RAM.
    Banks,
    /// The reserved ranges.
    Reserved,
    /// The no-map ranges.
    NoMap,
}

/// Why an operation on early memory was refused. The state is unchanged then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The list has no room for another range.
    TooManyRegions {
        /// The list.
        list: RangeList,
        /// The start of the range that found no room.
        start: u64,
        /// The number of ranges that the list holds.
        capacity: usize,
    },
    /// The range does not end below the end of the address space.
    Overflow {
        /// The start of the range.
        start: u64,
        /// The stated size of the range.
        size: u64,
    },
    /// The range to free was not reserved, or not all of it.
    NotReserved {
        /// The start of the range.
        start: u64,
        /// The size of the range.
        size: u64,
    },
    /// No free RAM of this size and alignment exists in the requested range.
    OutOfMemory {
        /// The number of bytes requested.
        size: u64,
        /// Their alignment.
        align: u64,
    },
    /// Zero bytes were requested, or an alignment that is not a power of two.
    BadRequest {
        /// The number of bytes requested.
        size: u64,
        /// Their alignment.
        align: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooManyRegions {
                list,
                start,
                capacity,
            } => {
                let what = match list {
                    RangeList::Banks => "bank",
                    RangeList::Reserved => "reserved range",
                    RangeList::NoMap => "no-map range",
                };
                write!(
                    f,
                    "memblock: no room for the {what} at {start:#x}, the limit is {capacity}"
                )
            }
            Self::Overflow { start, size } => write!(
                f,
                "memblock: {size:#x} bytes at {start:#x} reach beyond the end of the address space"
            ),
            Self::NotReserved { start, size } => write!(
                f,
                "memblock: {size:#x} bytes at {start:#x} are to be freed but are not all reserved"
            ),
            Self::OutOfMemory { size, align } => {
                write!(
                    f,
                    "memblock: no free RAM for {size:#x} bytes aligned to {align:#x}"
                )
            }
            Self::BadRequest { size, align } => write!(
                f,
                "memblock: cannot allocate {size:#x} bytes aligned to {align:#x}, expected some \
                 bytes and a power of two"
            ),
        }
    }
}

impl core::error::Error for Error {}
