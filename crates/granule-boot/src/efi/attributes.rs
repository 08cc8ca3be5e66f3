//! The memory attributes table (UEFI specification, `EFI_MEMORY_ATTRIBUTES_TABLE`): a second list of descriptors,
//! which says of firmware's run-time code and data what is read-only and what is not executed. What a
//! kernel makes of it does not belong here.

use super::super::bytes::le32;
use super::super::tree::Range;
use super::map::{Map, MapError, RUNTIME};
use super::{Descriptor, Physical};
use core::fmt;

/// Bytes before the descriptors.
const HEAD_BYTES: u64 = 16;
/// The versions that are known. They differ in a word of flags.
const VERSIONS: [u32; 2] = [1, 2];

/// Read-only.
const RO: u64 = 1 << 17;
/// Not executed.
const XP: u64 = 1 << 14;

impl Descriptor {
    /// Whether firmware needs the memory mapped for its runtime services.
    #[must_use]
    pub const fn is_for_runtime(&self) -> bool {
        self.attributes & RUNTIME != 0
    }

    /// Whether the memory is never written.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.attributes & RO != 0
    }

    /// Whether the memory is never executed.
    #[must_use]
    pub const fn is_never_executed(&self) -> bool {
        self.attributes & XP != 0
    }
}

/// Why a memory attributes table cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttributesError {
    /// It does not lie in memory of the memory map.
    Unlisted,
    /// Its version is unknown.
    Version,
    /// Its sizes are out of range.
    Size,
}

impl fmt::Display for AttributesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unlisted => "does not lie in memory of the EFI memory map",
            Self::Version => "has an unknown version, expected 1 or 2",
            Self::Size => {
                "has descriptors of a size out of range, or none, or more than 1 MiB of them"
            }
        })
    }
}

impl core::error::Error for AttributesError {}

impl From<MapError> for AttributesError {
    fn from(_: MapError) -> Self {
        Self::Size
    }
}

/// A memory attributes table.
#[derive(Clone, Copy, Debug)]
pub struct MemoryAttributes<'a> {
    /// The memory that it lies in.
    pub range: Range,
    /// Its descriptors.
    pub descriptors: Map<'a>,
}

impl<'a> MemoryAttributes<'a> {
    /// Reads the table at this address.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn read(memory: &'a impl Physical, at: u64) -> Result<Self, AttributesError> {
        let head = memory.read(at, HEAD_BYTES);
        let head = head.ok_or(AttributesError::Unlisted)?;
        let field = |at: usize| le32(head, at).unwrap_or_default();
        let (version, count, step) = (field(0), field(4), field(8));
        if version != VERSIONS[0] && version != VERSIONS[1] {
            return Err(AttributesError::Version);
        }
        // Below 2^64, because both factors are below 2^32.
        let bytes = u64::from(count).wrapping_mul(u64::from(step));
        Map::check(bytes, step, 1)?;
        let start = at.checked_add(HEAD_BYTES);
        let list = start.and_then(|start| memory.read(start, bytes));
        Ok(Self {
            range: Range {
                start: at,
                bytes: bytes.wrapping_add(HEAD_BYTES),
            },
            descriptors: Map::new(list.ok_or(AttributesError::Unlisted)?, step, 1)?,
        })
    }
}
