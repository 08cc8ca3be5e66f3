//! The registers of a PL011 in the current address space. What is written to them is decided in
//! [`granule_kcore::pl011`].

use granule_kcore::pl011::Registers;

pub(crate) static DRIVER: super::driver::Driver =
    super::driver::Driver::new("pl011", granule_boot::driver::Requirement::Any);

/// A PL011 at an address.
pub(crate) type Pl011 = granule_kcore::pl011::Pl011<Mapped>;

/// The address of the registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped(*mut u32);

/// The PL011 whose registers are at `base` in the current address space.
///
/// # Safety
///
/// As long as the value is used, `base` must be the address of 4 KiB of PL011 registers, 4-byte
/// aligned and mapped as Device memory.
pub(crate) unsafe fn at(base: u64) -> Pl011 {
    granule_kcore::pl011::Pl011(Mapped(base as *mut u32))
}

impl Registers for Mapped {
    fn read(self, offset: usize) -> u32 {
        // SAFETY: a register of the PL011, for which `at`'s caller answers.
        unsafe { self.0.byte_add(offset).read_volatile() }
    }

    fn write(self, offset: usize, value: u32) {
        // SAFETY: as in `read`.
        unsafe { self.0.byte_add(offset).write_volatile(value) }
    }
}
