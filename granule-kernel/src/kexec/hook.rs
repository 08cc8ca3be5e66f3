//! The hook of loading and leaving: segments in other places, pages that are in use, and damage to what
//! was loaded, which the checks before the jump must find.

use super::loaded::Loaded;
use super::pages::Held;
use crate::hook::Hook;
use crate::mm::live::Kernel;
use crate::mm::pages::NoMemory;
use granule_kexec::{Extent, List};

/// Changes what is loaded and how it is left for.
pub(crate) trait KexecHook: Sync {
    /// Where the segment of this name is to be, whatever is there.
    fn place(&self, name: &str) -> Option<u64>;

    /// Pages of a segment's place to be held while the segments are read, if any.
    fn in_use(&self, place: &Extent) -> Option<Result<Held, NoMemory>>;

    /// Comes once the list is sealed.
    fn sealed(&self, list: &List);

    /// Comes before the tables are checked.
    fn before_check(&self, kernel: &Kernel, loaded: &Loaded);

    /// Comes after the last check, before the jump.
    fn before_jump(&self, loaded: &Loaded);

    /// An interrupt that stays enabled, whatever is written.
    fn loud(&self) -> Option<u32>;
}

/// The hook of leaving for the next kernel.
pub(crate) static KEXEC: Hook<dyn KexecHook> = Hook::new();
