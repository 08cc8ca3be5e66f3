//! What both kinds of GIC have alike: 32 interrupts at a time that are enabled, pending, active.
//!
//! Distributor and redistributor have these registers at the same offsets. What is done to them
//! here is done to make a GIC quiet: for a kernel that knows nothing of what ours has used.

use core::fmt;
use core::ops::Range;

const ENABLED: u64 = 0x100;
const DISABLE: u64 = 0x180;
const NOT_PENDING: u64 = 0x280;
const ACTIVE: u64 = 0x300;
const NOT_ACTIVE: u64 = 0x380;

/// An interrupt that stays enabled or active, whatever is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StillOn {
    number: u32,
    what: &'static str,
}

impl StillOn {
    /// One that stays enabled.
    pub(crate) const fn enabled(number: u32) -> Self {
        Self {
            number,
            what: "enabled",
        }
    }
}

impl fmt::Display for StillOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "interrupt {} stays {} though the interrupt controller was told otherwise",
            self.number, self.what
        )
    }
}

/// Registers of 32 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers(u64);

impl Registers {
    /// Those at an address.
    ///
    /// # Safety
    ///
    /// They must be mapped there as Device memory, for good.
    pub(super) const unsafe fn at(address: u64) -> Self {
        Self(address)
    }

    pub(super) fn read(self, offset: u64) -> u32 {
        // SAFETY: `at`'s caller vouched for the registers; reading these changes nothing.
        unsafe { ((self.0 + offset) as *const u32).read_volatile() }
    }

    pub(super) fn write(self, offset: u64, value: u32) {
        // SAFETY: as for `read`; what they do concerns no memory.
        unsafe { ((self.0 + offset) as *mut u32).write_volatile(value) };
    }

    /// Waits until a bit is 0, for a while.
    pub(super) fn wait(self, offset: u64, bit: u32) {
        const PATIENCE: u32 = 1_000_000;
        for _ in 0..PATIENCE {
            if self.read(offset) & bit == 0 {
                break;
            }
        }
    }

    /// Words of 32 interrupts are neither enabled nor pending nor active.
    pub(super) fn silence(self, words: Range<u64>) {
        for word in words {
            for register in [DISABLE, NOT_PENDING, NOT_ACTIVE] {
                self.write(register + 4 * word, u32::MAX);
            }
        }
    }

    /// Whether that is so, but for `always`, which may be enabled for good. What a device still asserts
    /// is pending again, which harms nobody who has it disabled.
    pub(super) fn silent(self, words: Range<u64>, always: u32) -> Result<(), StillOn> {
        for word in words {
            for (register, what, but) in [(ENABLED, "enabled", always), (ACTIVE, "active", 0)] {
                let left = self.read(register + 4 * word) & !but;
                if left != 0 {
                    return Err(StillOn {
                        number: 32 * word as u32 + left.trailing_zeros(),
                        what,
                    });
                }
            }
        }
        Ok(())
    }
}
