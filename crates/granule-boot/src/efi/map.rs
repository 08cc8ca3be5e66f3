//! The EFI memory map (UEFI specification, `GetMemoryMap`): an array of descriptors, whose size firmware
//! states.
//!
//! Memory counts as RAM if one descriptor marks it usable and none reserves it, as in Linux. Usable is memory
//! of the loader, of boot services, and free memory, if it is write-back and not soft-reserved. ACPI's tables
//! are RAM and reserved. Memory that firmware uses at run time is not RAM. Devices that firmware uses
//! (memory-mapped I/O) get no node in the device tree, because the kernel may use them too. Everything else
//! is not RAM.

use super::super::bytes::{le32, le64};
use super::super::tree::Range;
use thiserror::Error;

/// The least size of a descriptor: the fields of version 1.
const DESCRIPTOR_BYTES: u32 = 40;
/// The most. A larger one is a mistake.
const MOST_DESCRIPTOR_BYTES: u32 = 512;
/// The version of the descriptors.
const VERSION: u32 = 1;
/// The largest map: far more descriptors than firmware has.
pub(super) const MOST_BYTES: u64 = 1 << 20;
/// EFI counts memory in pages of this size, whatever the kernel's is.
pub(crate) const EFI_PAGE: u64 = 4 << 10;
/// The most descriptors that a range may lie in. The longest range that is read, of a mebibyte, has 257 pages.
const MOST_OF_A_RANGE: u32 = 257;

/// Write-back cacheable.
const WB: u64 = 1 << 3;
/// Meant for a particular use (soft-reserved).
const SP: u64 = 1 << 18;
/// Firmware uses it at run time.
pub(super) const RUNTIME: u64 = 1 << 63;

/// Why a memory map cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
#[non_exhaustive]
pub enum MapError {
    /// The size of a descriptor is out of range.
    DescriptorSize,
    /// The version of the descriptors is unknown.
    Version,
    /// The map is not a whole number of descriptors, is empty or far too large.
    Size,
}

impl MapError {
    /// The error as one line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::DescriptorSize => {
                "EFI memory map: the size of a descriptor is out of range, expected 40 to 512 \
                 bytes and a multiple of 8 (linux,uefi-mmap-desc-size)"
            }
            Self::Version => {
                "EFI memory map: unknown version of the descriptors, expected 1 (linux,uefi-mmap-desc-ver)"
            }
            Self::Size => {
                "EFI memory map: its size is not a whole number of descriptors, up to 1 MiB (linux,uefi-mmap-size)"
            }
        }
    }
}

/// The use that a kernel may make of a descriptor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It is RAM, and free once the kernel runs.
    Usable,
    /// It is RAM and has tables that are read, ACPI's: mapped and kept.
    Tables,
    /// Firmware uses it at run time: no RAM, and not in the linear map.
    Runtime,
    /// It is a device that firmware uses at run time. It is not memory, and others may use the
    /// device too.
    Device,
    /// A kernel may not use it as RAM.
    Kept,
}

/// A descriptor of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The type of the memory.
    pub kind: u32,
    /// Its first address.
    pub start: u64,
    /// Firmware's virtual address of it at run time; 0 before a kernel chose one.
    pub virtual_start: u64,
    /// Its size in EFI's pages.
    pub pages: u64,
    /// Its attributes.
    pub attributes: u64,
}

impl Descriptor {
    /// The addresses; `None` if they do not begin at a page or do not end inside 64 bits.
    #[must_use]
    pub fn range(&self) -> Option<Range> {
        let bytes = self.pages.checked_mul(EFI_PAGE)?;
        self.start.checked_add(bytes)?;
        let is_aligned = self.start % EFI_PAGE == 0;
        is_aligned.then_some(Range::new(self.start, bytes))
    }

    /// Returns the use that a kernel may make of the memory, by Linux's rules. Persistent memory is
    /// not used as RAM.
    #[must_use]
    pub const fn role(&self) -> Role {
        let is_cacheable = self.attributes & WB != 0;
        // Registers, and the ports of a PCI bus, behind which a console or an interrupt controller may be.
        if matches!(self.kind, 11 | 12) {
            return Role::Device;
        }
        if self.attributes & RUNTIME != 0 {
            return Role::Runtime;
        }
        match self.kind {
            // Code and data of the loader and of boot services, and free memory.
            1..=4 | 7 if self.is_ordinary() => Role::Usable,
            5 | 6 => Role::Runtime,
            9 if is_cacheable => Role::Tables,
            _ => Role::Kept,
        }
    }

    /// Whether the memory is ordinary RAM: cacheable, and not meant for a particular use.
    #[must_use]
    pub const fn is_ordinary(&self) -> bool {
        self.attributes & WB != 0 && self.attributes & SP == 0
    }

    /// Whether the memory is free, and ordinary RAM.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.kind == 7 && self.is_ordinary()
    }

    /// Whether its owner, firmware or a device, keeps it after the boot services have ended: all but the
    /// memory of loaders (1, 2) and of boot services (3, 4), and free memory.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        !matches!(self.kind, 1..=4 | 7)
    }

    /// The part of `range` that lies in the memory of the descriptor, if there is one.
    #[must_use]
    pub fn part_of(&self, range: Range) -> Option<Range> {
        let part = self.range()?.common(range);
        (part.bytes != 0).then_some(part)
    }

    /// Whether a read has no effect but that: the memory is cacheable, and neither broken, a device's nor
    /// yet to be accepted.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        self.attributes & WB != 0 && matches!(self.kind, 0..=7 | 9 | 10 | 14)
    }
}

/// A memory map.
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    rest: &'a [u8],
    step: usize,
}

impl<'a> Map<'a> {
    /// Checks the sizes that firmware states, before the map is read.
    ///
    /// # Errors
    ///
    /// Fails if a size or the version is out of range.
    pub const fn check(bytes: u64, descriptor: u32, version: u32) -> Result<(), MapError> {
        if version != VERSION {
            return Err(MapError::Version);
        }
        let step = descriptor;
        if step < DESCRIPTOR_BYTES || step > MOST_DESCRIPTOR_BYTES || step % 8 != 0 {
            return Err(MapError::DescriptorSize);
        }
        match bytes.checked_rem(step as u64) {
            Some(0) if bytes != 0 && bytes <= MOST_BYTES => Ok(()),
            _ => Err(MapError::Size),
        }
    }

    /// The map in `bytes`, whose descriptors have this size and version.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::check`] does.
    pub fn new(bytes: &'a [u8], descriptor: u32, version: u32) -> Result<Self, MapError> {
        Self::check(bytes.len() as u64, descriptor, version)?;
        Ok(Self {
            rest: bytes,
            step: descriptor as usize,
        })
    }

    /// Whether all of `range` is memory that may be read. A range may lie in several descriptors that
    /// follow each other, in so many as it can have pages.
    #[must_use]
    pub fn is_readable(&self, range: Range) -> bool {
        let Some(end) = range.start.checked_add(range.bytes) else {
            return false;
        };
        let mut at = range.start;
        // Each round goes on behind a descriptor. Each is a walk of the whole map, so that there must be few.
        for _ in 0..MOST_OF_A_RANGE {
            if at >= end {
                return true;
            }
            let holds = |of: &Range| at.checked_sub(of.start).is_some_and(|it| it < of.bytes);
            let mut found = None;
            for one in *self {
                let Some(range) = one.range().filter(holds) else {
                    continue;
                };
                // Where descriptors overlap, all of them must allow it.
                if !one.is_readable() {
                    return false;
                }
                found = found.max(range.start.checked_add(range.bytes));
            }
            match found {
                Some(behind) => at = behind,
                None => return false,
            }
        }
        at >= end
    }

    /// The physical address behind an address of a table that firmware keeps for run time: a kernel before this
    /// one may have had firmware change these to addresses of its own (`SetVirtualAddressMap`). It also
    /// wrote them into the map. An address outside all of them is physical.
    #[must_use]
    pub fn physical(&self, address: u64) -> u64 {
        for one in *self {
            if one.attributes & RUNTIME == 0 || one.virtual_start == 0 {
                continue;
            }
            let inside = address.checked_sub(one.virtual_start);
            let range = one.range();
            if let (Some(inside), Some(range)) = (inside, range) {
                if inside < range.bytes {
                    return range.start.wrapping_add(inside);
                }
            }
        }
        address
    }
}

impl Iterator for Map<'_> {
    type Item = Descriptor;

    fn next(&mut self) -> Option<Descriptor> {
        let (one, rest) = self.rest.split_at_checked(self.step)?;
        self.rest = rest;
        Some(Descriptor {
            kind: le32(one, 0)?,
            start: le64(one, 8)?,
            virtual_start: le64(one, 16)?,
            pages: le64(one, 24)?,
            attributes: le64(one, 32)?,
        })
    }
}
