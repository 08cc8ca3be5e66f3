//! The list of drivers. Before a driver touches its device, the kernel checks that it supports the
//! chosen page size.
//!
//! A driver that does not is left out, with a line that gives the remedy, and the boot continues
//! without it. Each driver declares its requirements beside its own code.

use super::console::println;
use super::driver::{Driver, Probed};
use super::{intc, timer, uart};
use crate::hook::Hook;
use granule::arch::PageSize;
use granule_boot::driver::Requirement;
use granule_kcore::parameters::Parameters;

/// The kernel's drivers, in the order of the boot record.
static DRIVERS: [&Driver; 10] = [
    &uart::PL011,
    &uart::SBSA,
    &uart::UART8250,
    &uart::CADENCE,
    &uart::IMX,
    &intc::GIC_V2_DRIVER,
    &intc::GIC_V3_DRIVER,
    &intc::BCM2836_DRIVER,
    &timer::DRIVER,
    &VIRTIO_DISK,
];

/// Its code is above the page allocator, from which its device's memory comes.
pub(crate) static VIRTIO_DISK: Driver = Driver::new("virtio-blk", Requirement::Any);

/// Whether `driver` supports the page size. Prints why not. Call it before touching the device.
#[must_use]
pub(crate) fn probe(driver: &Driver, running: PageSize) -> bool {
    let asked = driver.ask(running);
    if let Err(mismatch) = &asked {
        println!("granule: {mismatch}");
    }
    asked.is_ok()
}

/// The test image's own drivers, which have no device.
pub(crate) struct DriverHook {
    /// Probes the drivers that the command line names.
    pub(crate) probe: fn(&Parameters<'_>, PageSize),
    /// All of these drivers, for the boot record.
    pub(crate) drivers: &'static [Driver],
}

/// The installed hook over drivers.
pub(crate) static MORE_DRIVERS: Hook<DriverHook> = Hook::new();

/// The drivers that were probed. The others have no device, or were not needed.
pub(crate) fn probed(running: PageSize) -> impl Iterator<Item = Probed> {
    let more = MORE_DRIVERS.get().map(|hook| hook.drivers);
    let all = DRIVERS.iter().copied().chain(more.into_iter().flatten());
    all.filter_map(move |driver| driver.probed(running))
}
