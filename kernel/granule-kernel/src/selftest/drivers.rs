//! Drivers without a device. Each requires the page sizes in its name.

use crate::dev::console::println;
use crate::dev::driver::Driver;
use crate::dev::registry::{self, DriverHook};
use granule::arch::PageSize::{K4, K16, K64};
use granule_boot::driver::Requirement;
use granule_boot::sizes::SizeSet;

/// The drivers; each name is the word of `granule.test=`.
static DRIVERS: [Driver; 5] = [
    Driver::new("needs-4k", Requirement::Exactly(K4)),
    Driver::new("needs-16k", Requirement::Exactly(K16)),
    Driver::new("needs-64k", Requirement::Exactly(K64)),
    Driver::new("needs-at-most-16k", Requirement::AtMost(K16)),
    Driver::new(
        "needs-4k-or-64k",
        Requirement::OneOf(SizeSet::NONE.with(K4).with(K64)),
    ),
];

/// The hook that probes the driver on the command line.
pub(super) static HOOK: DriverHook = DriverHook {
    probe: |parameters, running| {
        let wanted = |driver: &&Driver| parameters.test.asks_for(driver.name.as_bytes());
        if let Some(driver) = DRIVERS.iter().find(wanted)
            && registry::probe(driver, running)
        {
            println!("granule: driver {} is in use", driver.name);
        }
    },
    drivers: &DRIVERS,
};
