//! The environment of a program's space: its tables' memory, table pages and TLB maintenance, and
//! the source of its pages. Each choice is a type, made once for a space, so that a common space
//! decides nothing at run time: a boot without a trace has environments of its own, and a program
//! of the kernel's page size has pages of its own. Table pages are few, so all programs have one
//! allocator of them, and the image one copy of what changes tables.

use super::frames::{AnySized, Ground};
use crate::mm::environment::PlainEnvironment;
use crate::mm::sized_tables::SizedTables;
use crate::trace::recorder::{ProgramRecorder, Recorder};
use core::marker::PhantomData;
use granule::table::{Offset, TableEnvironment};
use granule_trace::recorder::Traced;

/// A kind of space: the environment of its tables, and where its pages come from.
pub(super) trait SpaceKind: 'static {
    /// Whether a trace is recorded.
    const RECORDS: bool;
    /// Where pages come from.
    type Ground: Ground;
    type Environment: TableEnvironment + 'static;

    fn environment(plain: ProgramTables, page_bytes: u64) -> Self::Environment;
}

/// The environment without a trace: tables through the linear map.
pub(super) type ProgramTables = PlainEnvironment<Offset, SizedTables>;

/// For a program without a trace.
pub(super) struct Plain<G>(PhantomData<G>);

impl<G: Ground> SpaceKind for Plain<G> {
    const RECORDS: bool = false;
    type Ground = G;
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
