//! Device drivers: the UART and the console on it, the interrupt controller, the timer, firmware
//! calls; and the check that a driver supports the chosen page size.

pub(crate) mod pl011;

#[cfg(target_os = "none")]
pub(crate) mod console;
#[cfg(target_os = "none")]
pub(crate) mod driver;
#[cfg(target_os = "none")]
pub(crate) mod gic;
#[cfg(target_os = "none")]
pub(crate) mod psci;
#[cfg(target_os = "none")]
pub(crate) mod registry;
#[cfg(target_os = "none")]
pub(crate) mod timer;
