//! The registers and instructions of a CPU that goes to another space, each recorded as an event.

use granule::arch::registers::{Tcr, Ttbr};
use granule::space::switch::Registers;
use granule_model::{Barrier, Event, System};

/// Registers whose writes are passed to a closure.
pub(crate) struct Recorded<F: FnMut(Event)>(pub(crate) F);

impl<F: FnMut(Event)> Registers for Recorded<F> {
    unsafe fn write_tcr(&mut self, value: Tcr) {
        (self.0)(Event::System(System::TCR_EL1, value.0));
    }
    unsafe fn write_ttbr0(&mut self, value: Ttbr) {
        (self.0)(Event::System(System::TTBR0_EL1, value.bits()));
    }
    fn isb(&mut self) {
        (self.0)(Event::Barrier(Barrier::ISB));
    }
    fn tlbi_all_local(&mut self) {
        (self.0)(Event::System(System::VMALLE1, 0));
    }
    fn dsb_nsh(&mut self) {
        (self.0)(Event::Barrier(Barrier::DSB_NSH));
    }
}
