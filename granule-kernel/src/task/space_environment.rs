//! What a space of a program stands on: its tables' memory, table pages and TLB maintenance, and where its pages
//! come from. Each choice is a type, made once for a space, so that a common space asks nothing at run time:
//! a boot without a trace has environments of its own, and a program of the kernel's page size as well.

use super::frames::{AnySized, Ground, KernelSized};
use crate::mm::sized_tables::SizedTables;
use crate::mm::table_pages::TablePages;
use crate::trace::recorder::{ProgramRecorder, Recorder};
use granule::hw::Hardware;
use granule::table::{DirectMapped, Environment, Offset, TableEnvironment};
use granule_recorder::Traced;

/// The environment of a space's tables, and where the space's pages come from.
pub(super) trait SpaceEnvironment: TableEnvironment + Sized + 'static {
    /// Whether a trace is recorded.
    const RECORDS: bool;
    /// Where pages come from.
    type Ground: Ground;

    fn new(parts: PartsOf<Self>, page_bytes: u64) -> Self;
}

/// An environment without a trace.
pub(super) type Parts<T> = Environment<DirectMapped<Offset>, T, Hardware>;

/// The parts that an environment is made of.
pub(super) type PartsOf<E> = Parts<<<E as SpaceEnvironment>::Ground as Ground>::Tables>;

/// For a program of the kernel's page size.
pub(super) type Plain = Parts<TablePages<'static>>;

impl SpaceEnvironment for Plain {
    const RECORDS: bool = false;
    type Ground = KernelSized;

    fn new(parts: Self, _: u64) -> Self {
        parts
    }
}

/// For a program of any page size.
pub(super) type PlainSized = Parts<SizedTables>;

impl SpaceEnvironment for PlainSized {
    const RECORDS: bool = false;
    type Ground = AnySized;

    fn new(parts: Self, _: u64) -> Self {
        parts
    }
}

/// For a program of any page size, with a trace.
pub(super) type Recorded = Environment<
    Traced<DirectMapped<Offset>, ProgramRecorder>,
    Traced<SizedTables, ProgramRecorder>,
    Traced<Hardware, ProgramRecorder>,
>;

impl SpaceEnvironment for Recorded {
    const RECORDS: bool = true;
    type Ground = AnySized;

    fn new(parts: PlainSized, page_bytes: u64) -> Self {
        let sink = ProgramRecorder(Recorder::new(page_bytes));
        Environment {
            memory: Traced::new(parts.memory, sink),
            allocator: Traced::new(parts.allocator, sink),
            tlb: Traced::new(parts.tlb, sink),
        }
    }
}
