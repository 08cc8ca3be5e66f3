//! The description of a driver: its name, the page sizes that it supports, and whether it was probed. Devices
//! and the console are in other files, so that they can be drivers.

use core::sync::atomic::{AtomicBool, Ordering};
use granule::arch::PageSize;
use granule_boot::driver::{Mismatch, Requirement};
use granule_boot::sizes::SizeSet;

/// A driver: its name, and the page sizes that it supports.
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

    /// Whether the driver supports this page size. The driver counts as probed from here on.
    pub(super) fn ask(&self, running: PageSize) -> Result<(), Mismatch<'static>> {
        self.probed.store(true, Ordering::Relaxed);
        self.requirement.check(self.name, running)
    }

    /// The driver's result, if it was probed.
    pub(super) fn probed(&self, running: PageSize) -> Option<Probed> {
        self.probed.load(Ordering::Relaxed).then(|| Probed {
            name: self.name,
            sizes: self.requirement.sizes(),
            mismatch: self.requirement.check(self.name, running).err(),
        })
    }
}

/// The result of probing a driver.
pub(crate) struct Probed {
    pub(crate) name: &'static str,
    pub(crate) sizes: SizeSet,
    /// Why the driver is left out, if it is.
    pub(crate) mismatch: Option<Mismatch<'static>>,
}
