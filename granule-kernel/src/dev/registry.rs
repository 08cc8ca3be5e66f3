//! The drivers there are, and the question that each is asked before it touches its device: does it
//! work with the page size that was chosen?
//!
//! One that does not is left out, with a line that says what to do; the boot goes on without it.
//! What a driver requires it declares beside its code; here is the list of them.

use super::console::println;
use super::driver::{Driver, Probed};
use super::{gic, pl011, timer};
use crate::hook::Hook;
use granule::arch::PageSize;
use granule_kcore::parameters::Parameters;

/// All of the kernel's, in the order of the record.
static DRIVERS: [&Driver; 4] = [
    &pl011::DRIVER,
    &gic::V2_DRIVER,
    &gic::V3_DRIVER,
    &timer::DRIVER,
];

/// To be asked before a device is touched: whether its driver may go on. Says why not.
#[must_use]
pub(crate) fn probe(driver: &Driver, running: PageSize) -> bool {
    let asked = driver.ask(running);
    if let Err(mismatch) = &asked {
        println!("granule: {mismatch}");
    }
    asked.is_ok()
}

/// Drivers of the test image's own, which have no device.
pub(crate) trait DriverHook: Sync {
    /// Probes those that the command line asks for.
    fn probe(&self, parameters: &Parameters<'_>, running: PageSize);

    /// All of them, for the record.
    fn drivers(&self) -> &'static [Driver];
}

/// The hook of drivers.
pub(crate) static MORE_DRIVERS: Hook<dyn DriverHook> = Hook::new();

/// Those that were probed; of the others there is no device, or no need.
pub(crate) fn probed(running: PageSize) -> impl Iterator<Item = Probed> {
    let more = MORE_DRIVERS.get().map(DriverHook::drivers);
    let all = DRIVERS.iter().copied().chain(more.into_iter().flatten());
    all.filter_map(move |driver| driver.probed(running))
}
