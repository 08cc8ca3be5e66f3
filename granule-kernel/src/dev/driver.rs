//! What a driver is to the rest of the kernel: a name, the page sizes that it works with, and whether it
//! was asked. Devices and the console are elsewhere, so that they can be drivers.

use core::sync::atomic::{AtomicBool, Ordering};
use granule::arch::PageSize;
use granule_boot::driver::{Mismatch, Requirement};
use granule_boot::sizes::SizeSet;

/// A driver: what it is called, and which page sizes it can work with.
pub(crate) struct Driver {
    pub(crate) name: &'static str,
    requirement: Requirement,
    probed: AtomicBool,
}

impl Driver {
    pub(crate) const fn new(name: &'static str, requirement: Requirement) -> Self {
        Self {
            name,
            requirement,
            probed: AtomicBool::new(false),
        }
    }

    /// Whether the driver works with pages of this size. From here on it counts as probed.
    pub(super) fn ask(&self, running: PageSize) -> Result<(), Mismatch<'static>> {
        self.probed.store(true, Ordering::Relaxed);
        self.requirement.check(self.name, running)
    }

    /// What became of it, if it was probed.
    pub(super) fn probed(&self, running: PageSize) -> Option<Probed> {
        self.probed.load(Ordering::Relaxed).then(|| Probed {
            name: self.name,
            sizes: self.requirement.sizes(),
            mismatch: self.requirement.check(self.name, running).err(),
        })
    }
}

/// What became of a driver that was probed.
pub(crate) struct Probed {
    pub(crate) name: &'static str,
    pub(crate) sizes: SizeSet,
    /// Why it is left out, if it is.
    pub(crate) mismatch: Option<Mismatch<'static>>,
}
