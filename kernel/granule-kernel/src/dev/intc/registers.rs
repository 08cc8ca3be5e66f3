//! A block of 32-bit registers of an interrupt controller.

#![allow(unsafe_code, reason = "the interrupt controller's registers")]

/// A block of 32-bit registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers(u64);

impl Registers {
    /// The registers at `address`.
    ///
    /// # Safety
    ///
    /// They must be mapped there as Device memory, for good, and be such that reading one has no effect.
    pub(super) const unsafe fn at(address: u64) -> Self {
        Self(address)
    }

    pub(super) fn read(self, offset: u64) -> u32 {
        // SAFETY: `at`'s caller answers for the registers; reading these has no effect.
        unsafe { ((self.0 + offset) as *const u32).read_volatile() }
    }

    pub(super) fn write(self, offset: u64, value: u32) {
        // SAFETY: as for `read`; writing them does not affect memory.
        unsafe { ((self.0 + offset) as *mut u32).write_volatile(value) };
    }
}
