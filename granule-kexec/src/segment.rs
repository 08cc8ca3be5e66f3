//! Segments: what the next kernel is to find where, and what speaks against it.
//!
//! Arithmetic on addresses only. Which pages are taken for what is the kernel's to decide, before;
//! what is decided is judged here as a whole, and nothing has happened yet when it is refused.

use core::fmt;
use granule::arch::PageSize;

/// Physical memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The first byte's address.
    pub start: u64,
    /// How many.
    pub bytes: u64,
}

impl Extent {
    /// From an address on.
    #[must_use]
    pub const fn new(start: u64, bytes: u64) -> Self {
        Self { start, bytes }
    }

    /// The address behind the last byte, if there is one in 64 bits.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.start.checked_add(self.bytes)
    }

    /// Whether some byte is in both. One that wraps has bytes up to the last address.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.bytes != 0
            && other.bytes != 0
            && self.start <= other.start.saturating_add(other.bytes - 1)
            && other.start <= self.start.saturating_add(self.bytes - 1)
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub const fn holds(&self, other: &Self) -> bool {
        match (self.end(), other.end()) {
            (Some(end), Some(other_end)) => self.start <= other.start && other_end <= end,
            _ => false,
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.start.saturating_add(self.bytes);
        write!(f, "{:#x}..{end:#x}", self.start)
    }
}

/// One piece of what the next kernel is given: its image, an initramfs, a device tree.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// What it is called where it is refused.
    pub name: &'static str,
    /// The physical address at which it is to be: a multiple of the page size.
    pub destination: u64,
    /// How many bytes it has, at least 1.
    pub bytes: u64,
    /// How many bytes from its destination on are the next kernel's, at least `bytes`: an image says
    /// more than its file has, for what it zeroes itself. What is behind `bytes`, rounded up to
    /// pages, is not written.
    pub memory: u64,
    /// Where its bytes are now: whole pages of this kernel's size, in order, as many as hold
    /// `bytes`. A run that is where it is to be is not moved. What is behind the last byte in the
    /// last page comes along: whoever loaded it has zeroed that.
    pub pages: &'a [Extent],
    /// What of it must be clean to the point of coherency.
    pub clean: Clean,
}

/// What the relocation code cleans of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clean {
    /// Nothing: the next kernel has its caches on when it reads it, as an initramfs.
    Nothing,
    /// All of its memory: the next kernel reads it, or writes it, before its caches are on, as its
    /// image and device tree.
    All,
    /// What is moved, and what is behind its bytes. Whoever loaded it cleaned what is in place, and
    /// nobody has written to that since.
    Moved,
    /// What is moved, as [`Clean::Moved`]. Whoever loaded it has what is behind its bytes too, and
    /// cleaned it.
    MovedAlone,
}

impl Segment<'_> {
    /// The memory that is the next kernel's.
    #[must_use]
    pub const fn place(&self) -> Extent {
        Extent::new(self.destination, self.memory)
    }

    /// Its bytes in whole pages, if so many can be.
    #[must_use]
    pub const fn whole_pages(&self, page: PageSize) -> Option<u64> {
        self.bytes.checked_next_multiple_of(page.bytes())
    }
}

/// The machine's memory, as far as segments must know it.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// This kernel's page size.
    pub page: PageSize,
    /// RAM.
    pub ram: &'a [Extent],
    /// What in it is not to be written: firmware's, no-map ranges.
    pub reserved: &'a [Extent],
    /// What is to be as it is when the next kernel runs, or when the relocation code does: memory
    /// that is handed over, and pages of the transition that are taken already.
    pub kept: &'a [Extent],
}

/// Why a next kernel is refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A segment without bytes.
    Empty {
        /// The segment.
        segment: &'static str,
    },
    /// An address or a length that must be of whole pages is not.
    Misaligned {
        /// The segment.
        segment: &'static str,
        /// The address or length.
        value: u64,
        /// The page size.
        page: PageSize,
    },
    /// Less memory than bytes, or more than there are addresses.
    Memory {
        /// The segment.
        segment: &'static str,
        /// Its bytes.
        bytes: u64,
        /// Its memory.
        memory: u64,
    },
    /// A destination is not RAM, or not all of it.
    OutsideRam {
        /// The segment.
        segment: &'static str,
        /// Its place.
        place: Extent,
    },
    /// A destination lies in memory that is not to be written.
    Reserved {
        /// The segment.
        segment: &'static str,
        /// Its place.
        place: Extent,
        /// What is reserved.
        reserved: Extent,
    },
    /// Two destinations overlap.
    Overlap {
        /// The one segment.
        segment: &'static str,
        /// The other one.
        other: &'static str,
        /// The first one's place.
        place: Extent,
        /// The other one's.
        other_place: Extent,
    },
    /// The pages that a segment is in are not as many as it takes.
    Pages {
        /// The segment.
        segment: &'static str,
        /// The bytes they have.
        found: u64,
        /// The bytes it takes.
        needed: u64,
    },
    /// Bytes of a segment are not in RAM, or in memory that is kept.
    Source {
        /// The segment.
        segment: &'static str,
        /// The run of pages.
        pages: Extent,
    },
    /// Bytes of a segment lie where a segment is to be, and not where they are to be themselves:
    /// they would be written over before they are read.
    InTheWay {
        /// The segment whose bytes they are.
        segment: &'static str,
        /// The run of pages.
        pages: Extent,
        /// The segment that is to be there.
        other: &'static str,
    },
    /// No stretch of RAM is long enough.
    TooBig {
        /// What was to be placed.
        segment: &'static str,
        /// Its memory.
        memory: u64,
        /// The longest stretch that is free, at the alignment asked for.
        longest: u64,
    },
    /// The initramfs is too far from the image for a kernel that maps both before it knows memory.
    Far {
        /// The segment.
        segment: &'static str,
        /// Its place.
        place: Extent,
        /// Where it may be.
        window: Extent,
    },
    /// The device tree is longer than the boot protocol lets it be.
    Long {
        /// The segment.
        segment: &'static str,
        /// Its bytes.
        bytes: u64,
        /// As many as it may have.
        most: u64,
    },
    /// A block that is mapped for the device tree is not all memory that may be mapped.
    Block {
        /// The segment.
        segment: &'static str,
        /// Its place.
        place: Extent,
        /// The block, or the blocks.
        block: Extent,
    },
    /// No pages for the list, the tables or the relocation code.
    OutOfPages {
        /// What they were for.
        what: &'static str,
        /// How many more it takes, at least.
        needed: usize,
    },
    /// A page of the transition lies where a segment is to be.
    PageInTheWay {
        /// What it was for.
        what: &'static str,
        /// Its address.
        page: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty { segment } => write!(f, "the {segment} has no bytes"),
            Self::Misaligned {
                segment,
                value,
                page,
            } => write!(
                f,
                "{value:#x} of the {segment} is not a multiple of this kernel's {page} page size"
            ),
            Self::Memory {
                segment,
                bytes,
                memory,
            } => write!(
                f,
                "the {segment} has {bytes:#x} bytes and {memory:#x} bytes of memory, which does not go: \
                 expected at least as much memory, below 2^64"
            ),
            Self::OutsideRam { segment, place } => {
                write!(f, "the {segment} is to be at {place}, which is not all RAM")
            }
            Self::Reserved {
                segment,
                place,
                reserved,
            } => write!(
                f,
                "the {segment} is to be at {place}, where {reserved} is reserved"
            ),
            Self::Overlap {
                segment,
                other,
                place,
                other_place,
            } => write!(
                f,
                "the {segment} at {place} overlaps the {other} at {other_place}"
            ),
            Self::Pages {
                segment,
                found,
                needed,
            } => write!(
                f,
                "the {segment} takes {needed:#x} bytes of pages, and has {found:#x}"
            ),
            Self::Source { segment, pages } => write!(
                f,
                "bytes of the {segment} are at {pages}, which is not RAM that they can be in"
            ),
            Self::InTheWay {
                segment,
                pages,
                other,
            } => write!(
                f,
                "bytes of the {segment} are at {pages}, where the {other} is to be: they would be \
                 written over before they are read"
            ),
            Self::TooBig {
                segment,
                memory,
                longest,
            } => write!(
                f,
                "the {segment} takes {memory:#x} bytes in one piece, and the longest free one has \
                 {longest:#x}: free memory, or take a smaller one"
            ),
            Self::Far {
                segment,
                place,
                window,
            } => write!(
                f,
                "the {segment} is to be at {place}, outside of {window}: the boot protocol has it within \
                 32 GiB of the image, counted from a multiple of 1 GiB"
            ),
            Self::Long {
                segment,
                bytes,
                most,
            } => write!(
                f,
                "the {segment} has {bytes:#x} bytes, and the boot protocol lets it have {most:#x}: take \
                 nodes or a part of the command line away"
            ),
            Self::Block {
                segment,
                place,
                block,
            } => write!(
                f,
                "the {segment} is to be at {place}, and the boot protocol has it mapped in blocks of \
                 2 MiB: of {block} not all is RAM that may be mapped"
            ),
            Self::OutOfPages { what, needed } => write!(
                f,
                "out of memory for the {what}: {needed} more pages are needed"
            ),
            Self::PageInTheWay { what, page } => write!(
                f,
                "the page at {page:#x} for the {what} lies where a segment is to be"
            ),
        }
    }
}

impl core::error::Error for Refusal {}

/// The segment whose place an extent touches, if there is one: pages for bytes that are to be moved,
/// and all pages of the transition, must be elsewhere.
#[must_use]
pub fn in_the_way<'a, 'b>(segments: &'b [Segment<'a>], of: &Extent) -> Option<&'b Segment<'a>> {
    segments.iter().find(|one| one.place().overlaps(of))
}

/// Whether the segments can be where they are to be, each by itself and all together. Where their
/// bytes are now is not asked yet: this is for before there are pages for them.
///
/// # Errors
///
/// The first [`Refusal`] in the order of the segments.
pub fn check_places(segments: &[Segment<'_>], ground: &Ground<'_>) -> Result<(), Refusal> {
    for (index, one) in segments.iter().enumerate() {
        let segment = one.name;
        if one.bytes == 0 {
            return Err(Refusal::Empty { segment });
        }
        let page = ground.page;
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
        if !is_ram(&place, ground.ram) {
            return Err(Refusal::OutsideRam { segment, place });
        }
        let taken = ground.reserved.iter().chain(ground.kept);
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

/// Whether all of an extent is RAM. Banks that touch count as one, in whatever order they are.
pub(super) fn is_ram(extent: &Extent, ram: &[Extent]) -> bool {
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
