//! Errors of early memory.

use thiserror::Error;

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

impl RangeList {
    const fn name(self) -> &'static str {
        match self {
            Self::Banks => "bank",
            Self::Reserved => "reserved range",
            Self::NoMap => "no-map range",
        }
    }
}

/// Why an operation on early memory was refused. The state is unchanged then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Error {
    /// The list has no room for another range.
    #[error("memblock: no room for the {} at {start:#x}, the limit is {capacity}", list.name())]
    TooManyRegions {
        list: RangeList,
        start: u64,
        capacity: usize,
    },
    /// The range does not end below the end of the address space.
    #[error("memblock: {size:#x} bytes at {start:#x} reach beyond the end of the address space")]
    Overflow { start: u64, size: u64 },
    /// The range to free was not reserved, or not all of it.
    #[error("memblock: {size:#x} bytes at {start:#x} are to be freed but are not all reserved")]
    NotReserved { start: u64, size: u64 },
    /// No free RAM of this size and alignment exists in the requested range.
    #[error("memblock: no free RAM for {size:#x} bytes aligned to {align:#x}")]
    OutOfMemory { size: u64, align: u64 },
    /// Zero bytes were requested, or an alignment that is not a power of two.
    #[error(
        "memblock: cannot allocate {size:#x} bytes aligned to {align:#x}, expected some \
         bytes and a power of two"
    )]
    BadRequest { size: u64, align: u64 },
}
