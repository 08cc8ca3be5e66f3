//! Segments of the next kernel, and the checks that refuse an impossible one.
//!
//! This file does arithmetic on addresses only. The kernel chooses pages beforehand; the checks
//! here judge the complete choice. A refusal leaves everything unchanged.

use core::fmt;
use granule::arch::PageSize;
use thiserror::Error;

/// A range of physical memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysRange {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl PhysRange {
    /// The extent of `bytes` bytes from `start` on.
    #[must_use]
    pub const fn new(start: u64, bytes: u64) -> Self {
        Self { start, bytes }
    }

    /// The address after the last byte, if it fits in 64 bits.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.start.checked_add(self.bytes)
    }

    /// Whether both extents share a byte. An extent that would wrap ends at the last address.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.bytes != 0
            && other.bytes != 0
            && self.start <= other.start.saturating_add(other.bytes - 1)
            && other.start <= self.start.saturating_add(self.bytes - 1)
    }

    /// Whether all of `other` lies in this extent.
    #[must_use]
    pub const fn holds(&self, other: &Self) -> bool {
        match (self.end(), other.end()) {
            (Some(end), Some(other_end)) => self.start <= other.start && other_end <= end,
            _ => false,
        }
    }
}

impl fmt::Display for PhysRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.start.saturating_add(self.bytes);
        write!(f, "{:#x}..{end:#x}", self.start)
    }
}

/// One piece of the next kernel: its image, an initramfs or a device tree.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Name for messages.
    pub name: &'static str,
    /// Physical address where the segment must be when the next kernel starts: a multiple of the
    /// page size.
    pub destination: u64,
    /// Length of the contents in bytes, at least 1.
    pub bytes: u64,
    /// Bytes of memory that the next kernel owns from the destination on, at least `bytes`: an
    /// image needs more than its file for what it zeroes itself. Memory behind `bytes`, rounded up
    /// to pages, is not written.
    pub memory: u64,
    /// Where the contents are now: whole pages of this kernel's size, in order, as many as hold
    /// `bytes`. A run that is already at its destination is not moved. The rest of the last page is
    /// copied too, so the loader zeroes it.
    pub pages: &'a [PhysRange],
    /// The part that must be clean to the point of coherency.
    pub clean: Clean,
}

/// The part of a segment that the relocation code cleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clean {
    /// Nothing: the next kernel reads the segment with its caches on, as it does an initramfs.
    Nothing,
    /// All of its memory: the next kernel reads or writes it before its caches are on, as it does
    /// the image and the device tree.
    All,
    /// The moved bytes and the memory behind the contents. The loader cleaned the bytes that are
    /// already in place, and nothing has written to them since.
    Moved,
    /// The moved bytes only. The loader also owns the memory behind the contents and has cleaned
    /// it; otherwise as [`Clean::Moved`].
    MovedAlone,
}

impl Segment<'_> {
    /// The memory that the next kernel owns.
    #[must_use]
    pub const fn place(&self) -> PhysRange {
        PhysRange::new(self.destination, self.memory)
    }

    /// The contents rounded up to whole pages, if that fits in 64 bits.
    #[must_use]
    pub const fn whole_pages(&self, page: PageSize) -> Option<u64> {
        self.bytes.checked_next_multiple_of(page.bytes())
    }
}

/// The machine's memory, as far as the checks of segments need it.
#[derive(Clone, Copy, Debug)]
pub struct MemoryMap<'a> {
    /// This kernel's page size.
    pub page: PageSize,
    /// All RAM.
    pub ram: &'a [PhysRange],
    /// RAM that must not be written: firmware's memory and no-map ranges.
    pub reserved: &'a [PhysRange],
    /// Memory that must still be unchanged when the relocation code or the next kernel runs: memory
    /// handed over, and pages already taken for the transition.
    pub kept: &'a [PhysRange],
}

/// Why a next kernel is refused. A refusal changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Refusal {
    /// A segment has no bytes.
    #[error("the {segment} has no bytes")]
    Empty { segment: &'static str },
    /// An address or a length is not a multiple of the page size.
    #[error("{value:#x} of the {segment} is not a multiple of this kernel's {page} page size")]
    Misaligned {
        segment: &'static str,
        value: u64,
        page: PageSize,
    },
    /// The memory is smaller than the contents, or ends beyond 64 bits.
    #[error(
        "the {segment} has {bytes:#x} bytes and {memory:#x} bytes of memory, which does not go: \
         expected at least as much memory, below 2^64"
    )]
    Memory {
        segment: &'static str,
        bytes: u64,
        memory: u64,
    },
    /// A destination is not entirely in RAM.
    #[error("the {segment} is to be at {place}, which is not all RAM")]
    OutsideRam {
        segment: &'static str,
        place: PhysRange,
    },
    /// A destination lies in memory that must not be written.
    #[error("the {segment} is to be at {place}, where {reserved} is reserved")]
    Reserved {
        segment: &'static str,
        place: PhysRange,
        reserved: PhysRange,
    },
    /// Two destinations overlap.
    #[error("the {segment} at {place} overlaps the {other} at {other_place}")]
    Overlap {
        segment: &'static str,
        other: &'static str,
        place: PhysRange,
        other_place: PhysRange,
    },
    /// A segment has the wrong number of source pages, here in bytes.
    #[error("the {segment} takes {needed:#x} bytes of pages, and has {found:#x}")]
    Pages {
        segment: &'static str,
        found: u64,
        needed: u64,
    },
    /// Source pages are outside RAM, or in memory that is kept.
    #[error("bytes of the {segment} are at {pages}, which is not RAM that they can be in")]
    Source {
        segment: &'static str,
        pages: PhysRange,
    },
    /// Source pages lie in a segment's destination without being in place there: they would be
    /// overwritten before they are read.
    #[error(
        "bytes of the {segment} are at {pages}, where the {other} is to be: they would be \
         written over before they are read"
    )]
    InTheWay {
        segment: &'static str,
        pages: PhysRange,
        other: &'static str,
    },
    /// No free stretch of RAM is long enough at the requested alignment.
    #[error(
        "the {segment} takes {memory:#x} bytes in one piece, and the longest free one has \
         {longest:#x}: free memory, or take a smaller one"
    )]
    TooBig {
        segment: &'static str,
        memory: u64,
        longest: u64,
    },
    /// The initramfs is too far from the image: a kernel maps both in one window before it has read
    /// its memory map.
    #[error(
        "the {segment} is to be at {place}, outside of {window}: the boot protocol has it within \
         32 GiB of the image, counted from a multiple of 1 GiB"
    )]
    Far {
        segment: &'static str,
        place: PhysRange,
        window: PhysRange,
    },
    /// The device tree is longer than the boot protocol allows.
    #[error(
        "the {segment} has {bytes:#x} bytes, and the boot protocol lets it have {most:#x}: take \
         nodes or a part of the command line away"
    )]
    Long {
        segment: &'static str,
        bytes: u64,
        most: u64,
    },
    /// The blocks that the next kernel maps for the device tree contain something else than
    /// mappable RAM.
    #[error(
        "the {segment} is to be at {place}, and the boot protocol has it mapped in blocks of \
         2 MiB: of {block} not all is RAM that may be mapped"
    )]
    Block {
        segment: &'static str,
        place: PhysRange,
        block: PhysRange,
    },
    /// At least so many pages are missing for the list, the tables or the relocation code.
    #[error("out of memory for the {what}: {needed} more pages are needed")]
    OutOfPages { what: &'static str, needed: usize },
    /// A page of the transition lies in a segment's destination.
    #[error("the page at {page:#x} for the {what} lies where a segment is to be")]
    PageInTheWay { what: &'static str, page: u64 },
}

/// The segment whose destination overlaps an extent, if there is one. Source pages that will be
/// moved and all pages of the transition must be outside every destination.
#[must_use]
pub fn in_the_way<'a, 'b>(segments: &'b [Segment<'a>], of: &PhysRange) -> Option<&'b Segment<'a>> {
    segments.iter().find(|one| one.place().overlaps(of))
}

/// Checks the destinations of all segments, each alone and against each other. Source pages are not
/// checked, so a caller can check before it allocates them.
///
/// # Errors
///
/// Fails with the first [`Refusal`], in the order of the segments.
pub fn check_places(segments: &[Segment<'_>], memory_map: &MemoryMap<'_>) -> Result<(), Refusal> {
    for (index, one) in segments.iter().enumerate() {
        let segment = one.name;
        if one.bytes == 0 {
            return Err(Refusal::Empty { segment });
        }
        let page = memory_map.page;
        for value in [one.destination, one.memory] {
            if value & (page.bytes() - 1) != 0 {
                return Err(Refusal::Misaligned {
                    segment,
                    value,
                    page,
                });
            }
        }
        let place = one.place();
        if one.memory < one.bytes || place.end().is_none() {
            return Err(Refusal::Memory {
                segment,
                bytes: one.bytes,
                memory: one.memory,
            });
        }
        if !is_ram(&place, memory_map.ram) {
            return Err(Refusal::OutsideRam { segment, place });
        }
        let taken = memory_map.reserved.iter().chain(memory_map.kept);
        if let Some(reserved) = taken.copied().find(|taken| taken.overlaps(&place)) {
            return Err(Refusal::Reserved {
                segment,
                place,
                reserved,
            });
        }
        let before = segments.iter().take(index);
        if let Some(other) = before.into_iter().find(|it| it.place().overlaps(&place)) {
            return Err(Refusal::Overlap {
                segment,
                other: other.name,
                place,
                other_place: other.place(),
            });
        }
    }
    Ok(())
}

/// Whether an extent lies entirely in RAM. Adjacent banks count as one, in any order.
pub(super) fn is_ram(extent: &PhysRange, ram: &[PhysRange]) -> bool {
    let Some(end) = extent.end() else {
        return false;
    };
    let mut at = extent.start;
    while at < end {
        let bank = ram
            .iter()
            .find(|bank| bank.start <= at && bank.end().is_none_or(|last| at < last));
        let Some(bank) = bank else {
            return false;
        };
        at = bank.end().unwrap_or(end);
    }
    true
}
