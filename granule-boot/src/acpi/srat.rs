//! The SRAT: which CPUs and which memory are near each other.

use super::super::bytes::{le32, le64};
use super::super::tree::Range;
use super::entries::Entries;

/// Offset of the entries.
const ENTRIES_AT: usize = 48;
/// Types of entries.
const MEMORY: u8 = 1;
const GICC: u8 = 3;
/// A flag: the entry counts.
const ENABLED: u32 = 1;

/// A CPU and its proximity domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearCpu {
    /// The CPU, by the number that the MADT has for it.
    pub uid: u32,
    /// The domain.
    pub domain: u32,
}

/// Memory and its proximity domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearMemory {
    /// The memory. Firmware may list more than there is.
    pub range: Range,
    /// The domain.
    pub domain: u32,
}

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct Srat<'a> {
    table: &'a [u8],
}

impl<'a> Srat<'a> {
    /// The table in these bytes.
    #[must_use]
    pub const fn new(table: &'a [u8]) -> Self {
        Self { table }
    }

    /// All entries.
    #[must_use]
    pub fn entries(self) -> Entries<'a> {
        Entries::behind(self.table, ENTRIES_AT)
    }

    /// The CPUs.
    pub fn cpus(self) -> impl Iterator<Item = NearCpu> + 'a {
        self.entries().filter_map(|(kind, entry)| {
            let is_enabled = kind == GICC && le32(entry, 10)? & ENABLED != 0;
            let cpu = NearCpu {
                uid: le32(entry, 6)?,
                domain: le32(entry, 2)?,
            };
            is_enabled.then_some(cpu)
        })
    }

    /// The memory. A range that does not end inside 64 bits is none.
    pub fn memory(self) -> impl Iterator<Item = NearMemory> + 'a {
        self.entries().filter_map(|(kind, entry)| {
            let is_enabled = kind == MEMORY && le32(entry, 28)? & ENABLED != 0;
            let range = Range {
                start: le64(entry, 8)?,
                bytes: le64(entry, 16)?,
            };
            range.start.checked_add(range.bytes)?;
            let domain = le32(entry, 2)?;
            is_enabled.then_some(NearMemory { range, domain })
        })
    }
}
