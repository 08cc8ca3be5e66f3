//! The drivers there are, and the question that each is asked before it touches its device: does it
//! work with the page size that was chosen?
//!
//! One that does not is left out, with a line that says what to do; the boot goes on without it.
//! What a driver requires it declares beside its code; here is the list of them, and the drivers
//! that exist for tests: `granule.test=needs-4k`, `needs-16k`, `needs-64k`, `needs-at-most-16k` and
//! `needs-4k-or-64k`, each of which requires what its name says and has no device.

use crate::console::println;
use crate::{gic, pl011, user};
use core::sync::atomic::{AtomicBool, Ordering};
use granule::arch::PageSize::{self, K4, K16, K64};
use granule_boot::driver::{Mismatch, Requirement};
use granule_boot::sizes::SizeSet;
use granule_boot::words;

/// A driver: what it is called, and which page sizes it can work with.
pub(crate) struct Driver {
    name: &'static str,
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

/// Those for tests; the name is the word of `granule.test=`.
static TESTS: [Driver; 5] = [
    Driver::new("needs-4k", Requirement::Exactly(K4)),
    Driver::new("needs-16k", Requirement::Exactly(K16)),
    Driver::new("needs-64k", Requirement::Exactly(K64)),
    Driver::new("needs-at-most-16k", Requirement::AtMost(K16)),
    Driver::new(
        "needs-4k-or-64k",
        Requirement::OneOf(SizeSet::NONE.with(K4).with(K64)),
    ),
];

/// Probes the driver for tests that `bootargs` name, if they name one.
pub(crate) fn probe_test(bootargs: &[u8], running: PageSize) {
    let asked = words::find(bootargs, b"granule.test=");
    let wanted = |driver: &&Driver| asked == Some(driver.name.as_bytes());
    if let Some(driver) = TESTS.iter().find(wanted)
        && driver.probe(running)
    {
        println!("granule: driver {} is in use", driver.name);
    }
}

/// What became of one that was probed.
pub(crate) struct Probed {
    pub(crate) name: &'static str,
    pub(crate) sizes: SizeSet,
    /// Why it is left out, if it is.
    pub(crate) mismatch: Option<Mismatch<'static>>,
}

/// Those that were probed; of the others there is no device, or no need.
pub(crate) fn probed(running: PageSize) -> impl Iterator<Item = Probed> {
    let all = DRIVERS.iter().copied().chain(TESTS.iter());
    all.filter(|driver| driver.probed.load(Ordering::Relaxed))
        .map(move |driver| Probed {
            name: driver.name,
            sizes: driver.requirement.sizes(),
            mismatch: driver.requirement.check(driver.name, running).err(),
        })
}
