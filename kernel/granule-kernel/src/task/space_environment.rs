//! The environment of a program's space: its tables' memory, table pages and TLB maintenance, and
//! the source of its pages. Each choice is a type, made once for a space, so that a common space
//! decides nothing at run time: a boot without a trace has environments of its own, and a program
//! of the kernel's page size has pages of its own. Table pages are few, so all programs have one
//! allocator of them, and the image one copy of what changes tables.

use super::frames::{AnySized, Ground, KernelSized};
use crate::mm::sized_tables::SizedTables;
use crate::trace::recorder::{ProgramRecorder, Recorder};
use granule::hw::Hardware;
use granule::table::{DirectMapped, Environment, Offset, TableEnvironment};
use granule_trace::recorder::Traced;

/// A kind of space: the environment of its tables, and where its pages come from.
pub(super) trait SpaceKind: 'static {
    /// Whether a trace is recorded.
    const RECORDS: bool;
    /// Where pages come from.
    type Ground: Ground;
    /// The environment of the tables.
    type Environment: TableEnvironment + 'static;

    fn environment(parts: Parts, page_bytes: u64) -> Self::Environment;
}

/// The parts that an environment is made of, and an environment without a trace.
pub(super) type Parts = Environment<DirectMapped<Offset>, SizedTables, Hardware>;

/// For a program of the kernel's page size.
pub(super) enum Plain {}

impl SpaceKind for Plain {
    const RECORDS: bool = false;
    type Ground = KernelSized;
    type Environment = Parts;

    fn environment(parts: Parts, _: u64) -> Parts {
        parts
    }
}

/// For a program of any page size.
pub(super) enum PlainSized {}

impl SpaceKind for PlainSized {
    const RECORDS: bool = false;
    type Ground = AnySized;
    type Environment = Parts;

    fn environment(parts: Parts, _: u64) -> Parts {
        parts
    }
}

/// For a program of any page size, with a trace.
pub(super) enum Recorded {}

impl SpaceKind for Recorded {
    const RECORDS: bool = true;
    type Ground = AnySized;
    type Environment = Environment<
        Traced<DirectMapped<Offset>, ProgramRecorder>,
        Traced<SizedTables, ProgramRecorder>,
        Traced<Hardware, ProgramRecorder>,
    >;

    fn environment(parts: Parts, page_bytes: u64) -> Self::Environment {
        let sink = ProgramRecorder(Recorder::new(page_bytes));
        Environment {
            memory: Traced::new(parts.memory, sink),
            allocator: Traced::new(parts.allocator, sink),
            tlb: Traced::new(parts.tlb, sink),
        }
    }
}
