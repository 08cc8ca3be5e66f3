//! The environment of a program's space: its tables' memory, table pages and TLB maintenance, and
//! the source of its pages. Each choice is a type, made once for a space, so that a common space
//! decides nothing at run time: a boot without a trace has environments of its own, and a program
//! of the kernel's page size has pages of its own. Table pages are few, so all programs have one
//! allocator of them, and the image one copy of what changes tables.

#![allow(unsafe_code, reason = "tables through the linear map")]

use super::frames::{AnySized, Ground, KernelSized};
use crate::mm::sized_tables::SizedTables;
use crate::trace::recorder::{ProgramRecorder, Recorder};
use granule::arch::PhysicalAddress;
use granule::arch::tlbi::TlbCapabilities;
use granule::hw;
use granule::table::{
    FreedTable, Maintenance, Offset, PhysToVirt, Reservation, TableEnvironment, TableRun,
};
use granule_trace::recorder::Traced;

/// A kind of space: the environment of its tables, and where its pages come from.
pub(super) trait SpaceKind: 'static {
    /// Whether a trace is recorded.
    const RECORDS: bool;
    /// Where pages come from.
    type Ground: Ground;
    /// The environment of the tables.
    type Environment: TableEnvironment + 'static;

    fn environment(plain: ProgramTables, page_bytes: u64) -> Self::Environment;
}

/// The environment without a trace.
pub(super) struct ProgramTables {
    /// The linear map.
    pub(super) memory: Offset,
    pub(super) pages: SizedTables,
    pub(super) capabilities: TlbCapabilities,
}

// SAFETY: the linear map reaches all frames, `pages` answers for its pages, and every instruction is issued.
unsafe impl TableEnvironment for ProgramTables {
    #[inline(always)]
    fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        self.memory.pointer(table)
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.pages.allocate()
    }

    fn free(&mut self, table: FreedTable) {
        self.pages.free(table);
    }

    #[inline(always)]
    fn invalidate(&mut self, instruction: Maintenance) {
        hw::issue(instruction);
    }

    #[inline(always)]
    fn capabilities(&self) -> TlbCapabilities {
        self.capabilities
    }

    fn reserve(&mut self, tables: usize) -> Reservation {
        self.pages.reserve(tables)
    }

    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        self.pages.allocate_run(most)
    }
}

/// For a program of the kernel's page size.
pub(super) enum Plain {}

impl SpaceKind for Plain {
    const RECORDS: bool = false;
    type Ground = KernelSized;
    type Environment = ProgramTables;

    fn environment(plain: ProgramTables, _: u64) -> ProgramTables {
        plain
    }
}

/// For a program of any page size.
pub(super) enum PlainSized {}

impl SpaceKind for PlainSized {
    const RECORDS: bool = false;
    type Ground = AnySized;
    type Environment = ProgramTables;

    fn environment(plain: ProgramTables, _: u64) -> ProgramTables {
        plain
    }
}

/// For a program of any page size, with a trace.
pub(super) enum Recorded {}

impl SpaceKind for Recorded {
    const RECORDS: bool = true;
    type Ground = AnySized;
    type Environment = Traced<ProgramTables, ProgramRecorder>;

    fn environment(plain: ProgramTables, page_bytes: u64) -> Self::Environment {
        Traced::new(plain, ProgramRecorder(Recorder::new(page_bytes)))
    }
}
