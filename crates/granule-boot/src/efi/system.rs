//! The system table, and the configuration tables that it names: ACPI's root, the list of memory
//! that an earlier kernel keeps, and tables that a next kernel reads.

use super::super::bytes::{le32, le64, same};
use super::super::tree::Range;
use super::{Map, Physical};
use thiserror::Error;

const SIGNATURE: u64 = u64::from_le_bytes(*b"IBI SYST");
/// Bytes of the system table of a 64-bit machine.
const SYSTEM_BYTES: u64 = 120;
/// Offsets of the number of configuration tables and of their address.
const COUNT_AT: usize = 104;
const TABLES_AT: usize = 112;
/// Bytes of an entry: a GUID and an address.
const ENTRY_BYTES: u64 = 24;
/// The most configuration tables: far more than firmware has.
const MOST_TABLES: u64 = 1024;

/// The GUID of the root of ACPI 2.0 and later, as its bytes lie in memory.
const ACPI_20: [u8; 16] = [
    0x71, 0xe8, 0x68, 0x88, 0xf1, 0xe4, 0xd3, 0x11, 0xbc, 0x22, 0x00, 0x80, 0xc7, 0x3c, 0x88, 0x81,
];
/// The GUID of the memory attributes table.
const ATTRIBUTES: [u8; 16] = [
    0x1d, 0x91, 0xfa, 0xdc, 0xeb, 0x26, 0x9f, 0x46, 0xa2, 0x20, 0x38, 0xb7, 0xdc, 0x46, 0x12, 0x20,
];
/// The GUID of the list of memory that a Linux kernel has the next kernels keep.
const MEMRESERVE: [u8; 16] = [
    0xc6, 0xb0, 0x8e, 0x88, 0xde, 0x8e, 0xf5, 0x4f, 0xa8, 0xf0, 0x9a, 0xee, 0x5c, 0xb9, 0x77, 0xc2,
];
/// The GUID of the system resource table: the parts of the machine whose firmware can be updated. Linux reads it
/// long after the boot services have ended, in whose memory firmware may leave it.
const RESOURCES: [u8; 16] = [
    0x63, 0xa2, 0x22, 0xb1, 0x61, 0x36, 0x68, 0x4f, 0x99, 0x29, 0x78, 0xf8, 0xb0, 0xd6, 0x21, 0x80,
];
/// The GUID of the table of the runtime services that firmware supports after the boot.
const PROPERTIES: [u8; 16] = [
    0x8a, 0x91, 0x66, 0xeb, 0xef, 0x7e, 0x2a, 0x40, 0x84, 0x2e, 0x93, 0x1d, 0x21, 0xc3, 0x8a, 0xe9,
];
/// Bytes of the memory attributes table before its descriptors, and of the largest table.
const ATTRIBUTES_BYTES: u64 = 16;
const MOST_ATTRIBUTES_BYTES: u64 = 1 << 20;
/// Bytes of the table of supported services, and its first word: version 1, and its length in the upper half.
const PROPERTIES_BYTES: u64 = 8;
const PROPERTIES_HEAD: u32 = 8 << 16 | 1;
/// Bytes of the system resource table before its entries, of an entry, and of the largest table.
const RESOURCES_BYTES: u64 = 16;
const RESOURCE_BYTES: u64 = 40;
const MOST_RESOURCES_BYTES: u64 = 1 << 20;
/// The most entries of a part: a part is a page, of 64 KiB at most.
const MOST_ENTRIES: u32 = 4095;
/// Bytes before the entries of a part of that list, and of an entry.
const PART_BYTES: u64 = 16;
const RESERVED_BYTES: u64 = 16;
/// The most parts of the list, so that one that names itself ends.
const MOST_PARTS: u32 = 64;

/// Why the tables of firmware cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SystemError {
    /// The system table does not lie in memory of the map.
    #[error("does not lie in memory of the EFI memory map")]
    Unlisted,
    /// It does not begin with its signature.
    #[error("does not begin with IBI SYST")]
    Signature,
    /// The number of configuration tables is out of range, or they do not lie in memory of the map.
    #[error("names no configuration tables in memory of the EFI memory map, 1024 at most")]
    Tables,
}

/// The configuration tables that a kernel uses: their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The root of ACPI.
    pub rsdp: Option<u64>,
    /// The first part of the list of memory to keep.
    pub reservations: Option<u64>,
    /// The memory attributes table.
    pub attributes: Option<u64>,
    /// The system resource table.
    pub resources: Option<u64>,
    /// The table of the runtime services that are supported.
    pub properties: Option<u64>,
}

impl Tables {
    /// Reads the system table at this physical address. The table names the list of tables by an address that
    /// `map` may have to translate; the tables themselves are named by physical addresses.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read.
    pub fn read(memory: &impl Physical, map: Map<'_>, system: u64) -> Result<Self, SystemError> {
        let table = memory.read(system, SYSTEM_BYTES);
        let table = table.ok_or(SystemError::Unlisted)?;
        if le64(table, 0) != Some(SIGNATURE) {
            return Err(SystemError::Signature);
        }
        let count = le64(table, COUNT_AT).filter(|count| *count <= MOST_TABLES);
        let count = count.ok_or(SystemError::Tables)?;
        let mut tables = Self::default();
        if count == 0 {
            return Ok(tables);
        }
        let at = map.physical(le64(table, TABLES_AT).unwrap_or_default());
        let entries = memory.read(at, count.saturating_mul(ENTRY_BYTES));
        let mut rest = entries.ok_or(SystemError::Tables)?;
        while let Some((entry, further)) = rest.split_at_checked(ENTRY_BYTES as usize) {
            rest = further;
            let Some((guid, _)) = entry.split_at_checked(ACPI_20.len()) else {
                break;
            };
            // The first entry of a GUID counts.
            let address = le64(entry, ACPI_20.len()).filter(|address| *address != 0);
            if same(guid, &ACPI_20) {
                tables.rsdp = tables.rsdp.or(address);
            } else if same(guid, &MEMRESERVE) {
                tables.reservations = tables.reservations.or(address);
            } else if same(guid, &ATTRIBUTES) {
                tables.attributes = tables.attributes.or(address);
            } else if same(guid, &RESOURCES) {
                tables.resources = tables.resources.or(address);
            } else if same(guid, &PROPERTIES) {
                tables.properties = tables.properties.or(address);
            }
        }
        Ok(tables)
    }

    /// The memory of the table of supported services, which a next kernel reads too; `None` if it cannot be read.
    pub fn properties_range(&self, memory: &impl Physical) -> Option<Range> {
        let start = self.properties?;
        let table = memory.read(start, PROPERTIES_BYTES)?;
        let is_known = le32(table, 0)? == PROPERTIES_HEAD;
        is_known.then_some(Range::new(start, PROPERTIES_BYTES))
    }

    /// The memory of the memory attributes table, of either known version; `None` if it cannot be read.
    pub fn attributes_range(&self, memory: &impl Physical) -> Option<Range> {
        let start = self.attributes?;
        // The fields: version, number of descriptors, bytes of each.
        let head = memory.read(start, ATTRIBUTES_BYTES)?;
        let is_known = matches!(le32(head, 0)?, 1 | 2);
        let list = u64::from(le32(head, 4)?).checked_mul(u64::from(le32(head, 8)?))?;
        let bytes = list.checked_add(ATTRIBUTES_BYTES)?;
        let fits = bytes <= MOST_ATTRIBUTES_BYTES && memory.read(start, bytes).is_some();
        (is_known && fits).then_some(Range { start, bytes })
    }

    /// The memory of the system resource table; `None` if it cannot be read.
    pub fn resources_range(&self, memory: &impl Physical) -> Option<Range> {
        let start = self.resources?;
        // The fields: number of entries, room for them, version.
        let head = memory.read(start, RESOURCES_BYTES)?;
        let entries = u64::from(le32(head, 0)?).checked_mul(RESOURCE_BYTES)?;
        let bytes = entries.checked_add(RESOURCES_BYTES)?;
        let fits = bytes <= MOST_RESOURCES_BYTES && memory.read(start, bytes).is_some();
        fits.then_some(Range { start, bytes })
    }
}

/// The memory that an earlier kernel has this one keep: a list of parts, each with a few ranges.
/// The memory of a part comes before its ranges, because the next kernel reads the list too.
#[derive(Debug)]
pub struct MemoryReservations<'p, P> {
    memory: &'p P,
    /// The ranges of this part that are still to be returned.
    rest: &'p [u8],
    next: u64,
    parts: u32,
    /// The memory of this part, if it is still to be returned.
    own: Option<Range>,
    /// Whether the list breaks off, or does not end.
    pub is_cut: bool,
}

impl<'p, P: Physical> MemoryReservations<'p, P> {
    /// The list whose first part lies at this address, and an empty one without an address.
    pub fn new(memory: &'p P, first: Option<u64>) -> Self {
        Self {
            memory,
            rest: &[],
            next: first.unwrap_or_default(),
            parts: 0,
            own: None,
            is_cut: false,
        }
    }

    /// Goes on to the next part.
    fn part(&mut self) -> Option<()> {
        let at = self.next;
        self.next = 0;
        self.parts = self.parts.wrapping_add(1);
        if self.parts > MOST_PARTS {
            return None;
        }
        let head = self.memory.read(at, PART_BYTES)?;
        // The room of a part, the entries that are in use, the next part.
        let (room, used) = (le32(head, 0)?, le32(head, 4)?);
        if used > room || used > MOST_ENTRIES {
            return None;
        }
        let bytes = u64::from(used).checked_mul(RESERVED_BYTES)?;
        self.rest = self.memory.read(at.checked_add(PART_BYTES)?, bytes)?;
        // The next kernel may use the rest of the room.
        let room = u64::from(room.min(MOST_ENTRIES)).checked_mul(RESERVED_BYTES)?;
        let bytes = room.checked_add(PART_BYTES)?;
        self.next = le64(head, 8)?;
        self.own = Some(Range { start: at, bytes });
        Some(())
    }
}

impl<P: Physical> Iterator for MemoryReservations<'_, P> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        loop {
            if let Some(own) = self.own.take() {
                return Some(own);
            }
            if let Some((entry, rest)) = self.rest.split_at_checked(RESERVED_BYTES as usize) {
                self.rest = rest;
                return Some(Range::new(le64(entry, 0)?, le64(entry, 8)?));
            }
            if self.next == 0 {
                return None;
            }
            if self.part().is_none() {
                self.is_cut = true;
                self.rest = &[];
                self.next = 0;
            }
        }
    }
}
