//! The test hook of loading and leaving. A hook moves segments, holds pages in use, and damages a loaded
//! kernel; the checks before the jump must find the damage.

use super::loaded::Loaded;
use super::pages::Held;
use crate::hook::Hook;
use crate::mm::kernel_tables::Kernel;
use crate::mm::pages::NoMemory;
use granule_kexec::{PhysRange, RelocationList};

/// Changes how a next kernel is loaded and left for.
pub(crate) struct KexecHook {
    /// A forced place for the segment `name`, whatever lies there.
    pub(crate) place: fn(&str) -> Option<u64>,
    /// Takes pages of a segment's place, if any, to be held while the segments are read.
    pub(crate) in_use: fn(&PhysRange, &mut Option<Held>) -> Result<(), NoMemory>,
    /// Called once the list is sealed.
    pub(crate) sealed: fn(&RelocationList),
    /// Called before the tables are checked.
    pub(crate) before_check: fn(&Kernel, &Loaded),
    /// Called after the last check, before the jump.
    pub(crate) before_jump: fn(&Loaded),
    /// Called once a crash kernel is loaded.
    pub(crate) crash_is_loaded: fn(),
    /// An interrupt to report as still enabled.
    pub(crate) loud: fn() -> Option<u32>,
}

/// The hook of leaving for the next kernel.
pub(crate) static KEXEC: Hook<KexecHook> = Hook::new();
