//! The test hook of loading and leaving. A hook moves segments, holds pages in use, and damages a loaded
//! kernel; the checks before the jump must find the damage.

use super::loaded::Loaded;
use super::pages::Held;
use crate::hook::Hook;
use crate::mm::kernel_tables::Kernel;
use crate::mm::pages::NoMemory;
use granule_kexec::{PhysRange, RelocationList};

/// Changes how a next kernel is loaded and left for.
pub(crate) trait KexecHook: Sync {
    /// A forced place for the segment `name`, whatever lies there.
    fn place(&self, name: &str) -> Option<u64>;

    /// Pages of a segment's place to hold while the segments are read, if any.
    fn in_use(&self, place: &PhysRange) -> Option<Result<Held, NoMemory>>;

    /// Called once the list is sealed.
    fn sealed(&self, list: &RelocationList);

    /// Called before the tables are checked.
    fn before_check(&self, kernel: &Kernel, loaded: &Loaded);

    /// Called after the last check, before the jump.
    fn before_jump(&self, loaded: &Loaded);

    /// An interrupt to report as still enabled.
    fn loud(&self) -> Option<u32>;
}

/// The hook of leaving for the next kernel.
pub(crate) static KEXEC: Hook<dyn KexecHook> = Hook::new();
