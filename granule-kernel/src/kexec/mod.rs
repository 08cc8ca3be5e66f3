//! Leaving for the next kernel, and arriving in it.

pub(crate) mod count;
pub(crate) mod note;

#[cfg(target_os = "none")]
pub(crate) mod arrive;
#[cfg(target_os = "none")]
mod exact;
#[cfg(target_os = "none")]
pub(crate) mod leave;
#[cfg(target_os = "none")]
mod memory;
#[cfg(target_os = "none")]
mod quiet;

#[cfg(target_os = "none")]
pub(crate) use loaded::{Loaded, with_loaded};

#[cfg(target_os = "none")]
mod loaded {
    use super::note::Given;
    use crate::lock::Lock;
    use arrayvec::ArrayVec;
    use granule::arch::PhysicalAddress;
    use granule::kexec::{Extent, List, Transition};

    /// A next kernel that is ready to be begun: what leaving must know of it.
    pub(crate) struct Loaded {
        /// The list, sealed.
        pub(crate) list: List,
        /// The tables that the relocation runs on.
        pub(crate) transition: Transition,
        /// For the note: kernel, initramfs and device tree, their bytes without padding.
        pub(crate) given: [Given; 3],
        /// The segments' places, whole pages.
        pub(crate) places: ArrayVec<Extent, 3>,
        /// The page that the relocation code is copied to.
        pub(crate) code: PhysicalAddress,
        /// The page of the note.
        pub(crate) note: PhysicalAddress,
    }

    static LOADED: Lock<Option<Loaded>> = Lock::new(None);

    /// Calls `work` with what is loaded, if something is. Not under the lock: `work` may wait for
    /// other CPUs. Meanwhile nothing is loaded.
    pub(crate) fn with_loaded<R>(work: impl FnOnce(&Loaded) -> R) -> Option<R> {
        let loaded = LOADED.with(Option::take)?;
        let result = work(&loaded);
        LOADED.with(|slot| *slot = Some(loaded));
        Some(result)
    }
}
