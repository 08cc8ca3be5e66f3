//! The drivers there are, and the question that each is asked before it touches its device: does it
//! work with the page size that was chosen?
//!
//! One that does not is left out, with a line that says what to do; the boot goes on without it.
//! What a driver requires it declares beside its code; here is the list of them.

use crate::console::println;
use crate::hook::Hook;
use crate::{gic, pl011, user};
use core::sync::atomic::{AtomicBool, Ordering};
use granule::arch::PageSize;
use granule_boot::driver::{Mismatch, Requirement};
use granule_boot::sizes::SizeSet;
use granule_kcore::parameters::Parameters;

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

    /// To be asked before the device is touched: whether the driver may go on. Says why not.
    #[must_use]
    pub(crate) fn probe(&self, running: PageSize) -> bool {
        let checked = self.requirement.check(self.name, running);
        if let Err(mismatch) = &checked {
            println!("granule: {mismatch}");
        }
        self.probed.store(true, Ordering::Relaxed);
        checked.is_ok()
    }
}

/// All of the kernel's, in the order of the record.
static DRIVERS: [&Driver; 4] = [
    &pl011::DRIVER,
    &gic::V2_DRIVER,
    &gic::V3_DRIVER,
    &user::timer::DRIVER,
];

/// Drivers of the test image's own, which have no device.
pub(crate) trait DriverHook: Sync {
    /// Probes those that the command line asks for.
    fn probe(&self, parameters: &Parameters<'_>, running: PageSize);

    /// All of them, for the record.
    fn drivers(&self) -> &'static [Driver];
}

/// The hook of drivers.
pub(crate) static MORE_DRIVERS: Hook<dyn DriverHook> = Hook::new();

/// What became of one that was probed.
pub(crate) struct Probed {
    pub(crate) name: &'static str,
    pub(crate) sizes: SizeSet,
    /// Why it is left out, if it is.
    pub(crate) mismatch: Option<Mismatch<'static>>,
}

/// Those that were probed; of the others there is no device, or no need.
pub(crate) fn probed(running: PageSize) -> impl Iterator<Item = Probed> {
    let more = MORE_DRIVERS.get().map(DriverHook::drivers);
    let all = DRIVERS.iter().copied().chain(more.into_iter().flatten());
    all.filter(|driver| driver.probed.load(Ordering::Relaxed))
        .map(move |driver| Probed {
            name: driver.name,
            sizes: driver.requirement.sizes(),
            mismatch: driver.requirement.check(driver.name, running).err(),
        })
}
