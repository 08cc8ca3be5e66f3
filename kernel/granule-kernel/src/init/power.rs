//! Powers the machine off by PSCI, the only way that this kernel has.

use crate::arch::cpu;
use crate::dev::console::{self, println};
use crate::dev::psci;
use crate::handover::{Conduit, Handover};

/// Prints why the machine will not be powered off, if PSCI cannot do it.
pub(super) fn print_no_way(handover: &Handover) {
    let why = match handover.tree.psci {
        Conduit::Smc | Conduit::Hvc => return,
        Conduit::Unknown => "the device tree names no PSCI method",
        Conduit::OwnHvc => {
            "the device tree's PSCI method is hvc, which at EL2 would call this kernel itself"
        }
    };
    println!("granule: no way to power off: {why}; the kernel will halt at its end");
}

/// Powers the machine off, or prints that it cannot and halts.
pub(super) fn off() -> ! {
    // Returns if it cannot.
    psci::system_off();
    println!("granule: nothing powers this machine off: the CPU is halted");
    console::flush();
    cpu::halt()
}
