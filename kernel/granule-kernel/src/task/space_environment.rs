//! The environment of a program's space: its tables' memory, table pages and TLB maintenance, and
//! the source of its pages. The choice is a type, made once for a space, so that a common space
//! decides nothing at run time. A program of the kernel's page size in a boot without a trace is common.
//! All others share one kind, which finds out whether a trace is recorded: a third kind for them would be
//! another copy of all that a space does. Table pages are few, so all programs have
//! one allocator of them.

use super::frames::{AnySized, Ground, KernelSized};
use crate::mm::environment::PlainEnvironment;
use crate::mm::sized_tables::SizedTables;
use crate::trace::recorder::{ProgramRecorder, Recorder};
use granule::table::{Offset, TableEnvironment};
use granule_trace::recorder::Traced;

/// A kind of space: the environment of its tables, and where its pages come from.
pub(super) trait SpaceKind: 'static {
    /// Whether a trace may be recorded.
    const MAY_RECORD: bool;
    /// Where pages come from.
    type Ground: Ground;
    type Environment: TableEnvironment + 'static;

    fn environment(plain: ProgramTables, page_bytes: u64) -> Self::Environment;
}

/// The environment without a trace: tables through the linear map.
pub(super) type ProgramTables = PlainEnvironment<Offset, SizedTables>;

/// For a program of the kernel's page size, without a trace.
pub(super) enum Common {}

impl SpaceKind for Common {
    const MAY_RECORD: bool = false;
    type Ground = KernelSized;
    type Environment = ProgramTables;

    fn environment(plain: ProgramTables, _: u64) -> ProgramTables {
        plain
    }
}

/// For every program, with a trace or without.
pub(super) enum General {}

impl SpaceKind for General {
    const MAY_RECORD: bool = true;
    type Ground = AnySized;
    type Environment = Traced<ProgramTables, ProgramRecorder>;

    fn environment(plain: ProgramTables, page_bytes: u64) -> Self::Environment {
        Traced::new(plain, ProgramRecorder(Recorder::new(page_bytes)))
    }
}
