//! Messages of the step about firmware's tables: errors that end the boot, and notes that do not.
//! Each is one line and a plain value, because it is printed after the MMU is on.

use super::super::acpi::AcpiError;
use super::super::efi::{MapError, SystemError};
use super::super::tree::{Range, TreeError, WriteError};
use super::machine::MOST_CPUS;
use thiserror::Error;

/// Why a machine cannot boot with firmware's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
#[non_exhaustive]
pub enum ExpandError {
    /// `/chosen` does not have all properties that name firmware's tables.
    Incomplete,
    /// The memory map cannot be read.
    Map(MapError),
    /// The memory map does not lie where it may be read.
    MapPlace,
    /// The memory map has no RAM.
    NoMemory,
    /// The root's cells hold no address and size.
    Cells,
    /// A property of `/chosen` that names memory is not whole pairs of address and size, and the root's cells
    /// change.
    ChosenMemory,
    /// `acpi=force`, and ACPI's tables cannot be read.
    #[error("acpi=force: {0}")]
    Acpi(AcpiError),
    /// The tree cannot be written.
    #[error("{0}")]
    Tree(WriteError),
}

impl ExpandError {
    /// The error as one line. With the MMU off, this is all that can be printed.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Incomplete => {
                "/chosen names EFI's tables incompletely: expected linux,uefi-system-table, \
                 -mmap-start, -mmap-size, -mmap-desc-size, -mmap-desc-ver"
            }
            Self::Map(error) => error.text(),
            Self::MapPlace => {
                "EFI memory map: it lies in the memory of the image or beyond the physical addresses (linux,uefi-mmap-start)"
            }
            Self::NoMemory => "EFI memory map: it has no RAM that may be used",
            Self::Cells => {
                "device tree: the root's #address-cells and #size-cells hold no memory, expected 1 to 4"
            }
            Self::ChosenMemory => {
                "/chosen: linux,usable-memory-range or linux,elfcorehdr is not whole pairs of address and size of at most 64 bits"
            }
            Self::Acpi(_) => "acpi=force: ACPI's tables RSDP, XSDT or APIC cannot be read",
            Self::Tree(error) => error.text(),
        }
    }
}

impl From<MapError> for ExpandError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

impl From<WriteError> for ExpandError {
    fn from(error: WriteError) -> Self {
        Self::Tree(error)
    }
}

impl From<TreeError> for ExpandError {
    fn from(error: TreeError) -> Self {
        Self::Tree(error.into())
    }
}

/// Something in firmware's tables that has no effect, or less than it states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Note {
    /// A descriptor of RAM does not begin at a page, or does not end inside 64 bits.
    #[error(
        "EFI memory map: {pages:#x} pages at {start:#x} are not aligned or reach the end of the address space; left out"
    )]
    MapEndless { start: u64, pages: u64 },
    /// A descriptor of kept memory does not begin at a page, or does not end inside 64 bits.
    #[error(
        "EFI memory map: {pages:#x} pages of kept memory at {start:#x} are not aligned or \
         reach the end of the address space; kept from that page on, to the next descriptor"
    )]
    MapKept { start: u64, pages: u64 },
    /// RAM that another descriptor keeps.
    #[error(
        "EFI memory map: {:#x} bytes at {:#x} are RAM and kept memory at once; not used as RAM",
        .0.bytes, .0.start
    )]
    MapOverlap(Range),
    /// RAM without room in the list, because the map has too many separate ranges of it.
    #[error(
        "EFI memory map: too many separate ranges of RAM; {:#x} bytes at {:#x} are left out",
        .0.bytes, .0.start
    )]
    MapFull(Range),
    /// The system table cannot be read.
    #[error("the EFI system table {0}; not read")]
    System(SystemError),
    /// The list of memory to keep breaks off.
    #[error(
        "the EFI list of reserved memory breaks off or does not end; its first ranges are kept"
    )]
    Reservations,
    /// Memory at this address does not fit into the cells of the tree's node.
    #[error("memory at {0:#x} does not fit into the cells of the device tree; left out")]
    Cells(u64),
    /// A table of ACPI's cannot be used.
    #[error("{0}; not used")]
    Acpi(AcpiError),
    /// The MADT has no interrupt controller that can be described.
    #[error("ACPI: the table APIC has no interrupt controller of a known version, with addresses")]
    NoGic,
    /// Redistributors of the interrupt controller that cannot be described, the first at this address.
    #[error(
        "ACPI: the table APIC has redistributors at {0:#x} that have no end, or are in more than 32 places; left out"
    )]
    Redistributors(u64),
    /// The MADT has this many CPUs, more than are described.
    #[error("ACPI: the table APIC has {0} CPUs; the first {MOST_CPUS} are used")]
    Cpus(u32),
    /// The SRAT is too long: the NUMA nodes of some CPUs or memory are left out.
    #[error("ACPI: the table SRAT is too long; some CPUs or memory have no NUMA node")]
    Near,
    /// The machine has no PSCI.
    #[error(
        "ACPI: the table FACP has no PSCI; other CPUs cannot be started, nor the machine powered off"
    )]
    NoPsci,
    /// The console is of a kind that is unknown, or has no address.
    #[error(
        "ACPI: the table SPCR has a console of an unknown kind or without an address; not used"
    )]
    Console,
}

/// The most notes that are kept.
const MOST_NOTES: usize = 8;

/// The first notes, and the number of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    first: [Option<Note>; MOST_NOTES],
    all: u32,
}

impl Notes {
    /// No notes.
    pub const NONE: Self = Self {
        first: [None; MOST_NOTES],
        all: 0,
    };

    /// Adds a note.
    pub fn add(&mut self, note: Note) {
        if let Some(slot) = self.first.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(note);
        }
        self.all = self.all.saturating_add(1);
    }

    /// The notes that are kept.
    pub fn iter(&self) -> impl Iterator<Item = Note> {
        self.first.iter().flatten().copied()
    }

    /// Returns the number of further notes.
    #[must_use]
    pub fn more(&self) -> u32 {
        let kept = self.first.iter().flatten().count();
        self.all.saturating_sub(kept as u32)
    }
}
