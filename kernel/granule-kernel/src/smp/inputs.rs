//! The inputs of starting CPUs, and what may keep the boot CPU from having others.

use crate::dev::intc;
use crate::handover::{BootRoots, Handover};
use crate::mm::early_tables::EarlyTables;
use crate::mm::map::Request;
use crate::mm::table_allocator::KernelTableAllocator;
use crate::mm::walker::Opened;
use crate::percpu::PerCpu;
use granule::arch::errata::Errata;
use granule::table::{Piece, TableError};
use granule_kcore::devicetree::intc::ControllerError;
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::parameters::Parameters;
use granule_trace::recorder::Counters;
use thiserror::Error;

/// Why no other CPU can be used, or why one CPU cannot.
#[derive(Debug, Error)]
pub(super) enum Obstacle {
    #[error("the device tree has no psci node of version 0.2 or later with a method")]
    NoPsci,
    #[error("it has no mailbox")]
    NoPlace,
    /// The release address, which is memory of the kernel's.
    #[error(
        "its cpu-release-addr {0:#x} lies in memory that this kernel uses: firmware's tree must reserve it"
    )]
    ReleaseTaken(u64),
    #[error("{0}")]
    Controller(ControllerError),
    #[error("{0}")]
    Interrupts(intc::Error),
    #[error("the interrupt controller's driver does not work with the page size")]
    ControllerPageSize,
    #[error("something it needs cannot be mapped: {0}")]
    Tables(TableError),
    #[error("there is no memory for its stacks and data: {0}")]
    Memory(granule_boot::memblock::Error),
}

/// The inputs of starting CPUs.
pub(crate) struct BringUp<'a, 'r> {
    pub(crate) request: &'a Request<'r>,
    pub(crate) handover: &'a Handover,
    pub(crate) roots: &'a BootRoots,
    pub(crate) memory: &'a mut Memory,
    pub(crate) tree: &'a [u8],
    pub(crate) parameters: &'a Parameters<'a>,
    /// Errata of the boot CPU, and those forced on the command line.
    pub(crate) errata: Errata,
    /// Number of addresses that the boot CPU translated for its self-check.
    pub(crate) translations: u64,
    /// Whether there may be user programs. Interrupts preempt them, so they need interrupts even with one
    /// CPU.
    pub(crate) has_programs: bool,
    /// The idle loop that each of the other CPUs enters.
    pub(crate) idle: fn(&'static PerCpu) -> !,
}

impl BringUp<'_, '_> {
    /// Calls `work` with the tables of the upper VA range, and tables from early memory for it to add.
    pub(super) fn with_tables<R>(
        &mut self,
        work: impl FnOnce(&mut Opened<'_>) -> Result<R, TableError>,
    ) -> Result<R, TableError> {
        let page_bytes = self.request.geometry.page_size().bytes();
        let allocator = KernelTableAllocator::Early(EarlyTables::new(self.memory, page_bytes));
        // Secondary CPUs walk the tables but change nothing.
        work(&mut self.request.open(allocator, &Counters::new())?)
    }

    /// Maps a piece in the upper VA range.
    pub(super) fn map(&mut self, piece: Piece) -> Result<(), TableError> {
        self.with_tables(|tables| tables.map_pieces(&[piece]))
    }
}
