//! Device drivers: the UART and the console on it, the interrupt controller, the timer, firmware
//! calls; and the check that a driver supports the chosen page size.

pub(crate) mod console;
pub(crate) mod driver;
pub(crate) mod intc;
pub(crate) mod psci;
pub(crate) mod registry;
pub(crate) mod timer;
pub(crate) mod uart;
