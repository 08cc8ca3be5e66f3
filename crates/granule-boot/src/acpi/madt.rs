//! The MADT: the CPUs and the interrupt controller.

use super::super::bytes::{le32, le64};
use super::super::tree::Range;
use super::entries::Entries;

/// Offset of the entries.
const ENTRIES_AT: usize = 44;
/// Types of entries.
const GICC: u8 = 0xb;
const GICD: u8 = 0xc;
const GICR: u8 = 0xe;
/// Flags of a CPU: it may be used now.
const ENABLED: u32 = 1;

/// A CPU and its interface to the interrupt controller (GICC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The number by which other tables name it.
    pub uid: u32,
    /// Its MPIDR.
    pub mpidr: u64,
    /// Whether it may be used now. One that is only online-capable is plugged in later.
    pub is_enabled: bool,
    /// The address of a GICv2's CPU interface; 0 for none.
    pub interface: u64,
    /// The address of its redistributor; 0 for none.
    pub redistributor: u64,
}

/// The distributor of the interrupt controller (GICD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distributor {
    /// Its address.
    pub address: u64,
    /// The controller's version; 0 if the table does not contain it.
    pub version: u8,
}

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct Madt<'a> {
    table: &'a [u8],
}

impl<'a> Madt<'a> {
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

    /// The CPUs, in the table's order. An entry that is too short for its fields is none.
    pub fn cpus(self) -> impl Iterator<Item = Cpu> + Clone + 'a {
        self.of(GICC).filter_map(|entry| {
            Some(Cpu {
                uid: le32(entry, 8)?,
                is_enabled: le32(entry, 12)? & ENABLED != 0,
                interface: le64(entry, 32)?,
                redistributor: le64(entry, 60)?,
                mpidr: le64(entry, 68)?,
            })
        })
    }

    /// The distributor.
    #[must_use]
    pub fn distributor(self) -> Option<Distributor> {
        self.of(GICD).find_map(|entry| {
            Some(Distributor {
                address: le64(entry, 8)?,
                version: entry.get(20).copied()?,
            })
        })
    }

    /// The regions of redistributors.
    pub fn redistributors(self) -> impl Iterator<Item = Range> + 'a {
        self.of(GICR)
            .filter_map(|entry| Some(Range::new(le64(entry, 4)?, le32(entry, 12)?.into())))
    }

    fn of(self, kind: u8) -> impl Iterator<Item = &'a [u8]> + Clone {
        let entries = self.entries();
        entries.filter_map(move |(own, entry)| (own == kind).then_some(entry))
    }
}
