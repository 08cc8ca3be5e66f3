//! Quiesces interrupts, for both GIC versions, by the registers that enable, pend and activate 32 interrupts
//! each.
//!
//! Distributor and redistributor have these registers at the same offsets. The GIC is quiesced for a next
//! kernel, which does not know which interrupts this one used.

use core::fmt;
use core::ops::Range;

const ENABLED: u64 = 0x100;
const DISABLE: u64 = 0x180;
const NOT_PENDING: u64 = 0x280;
const ACTIVE: u64 = 0x300;
const NOT_ACTIVE: u64 = 0x380;

/// An interrupt that stays enabled or active after it was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StillOn {
    number: u32,
    what: &'static str,
}

impl StillOn {
    /// An interrupt that stays enabled.
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

/// A block of 32-bit registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers(u64);

impl Registers {
    /// The registers at `address`.
    ///
    /// # Safety
    ///
    /// They must be mapped there as Device memory, for good.
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

    /// Waits for a limited time until a bit is 0.
    pub(super) fn wait(self, offset: u64, bit: u32) {
        const PATIENCE: u32 = 1_000_000;
        for _ in 0..PATIENCE {
            if self.read(offset) & bit == 0 {
                break;
            }
        }
    }

    /// Disables the interrupts of `words`, each of 32 interrupts, and clears their pending and active state.
    pub(super) fn disable_all(self, words: Range<u64>) {
        for word in words {
            for register in [DISABLE, NOT_PENDING, NOT_ACTIVE] {
                self.write(register + 4 * word, u32::MAX);
            }
        }
    }

    /// Checks that the interrupts are disabled and inactive, except those of `always`, which may stay
    /// enabled. A device may make its interrupt pending again, which is harmless while it is disabled.
    pub(super) fn check_disabled(self, words: Range<u64>, always: u32) -> Result<(), StillOn> {
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
