//! Quiesces interrupts, for both GIC versions, by the registers that enable, pend and activate 32 interrupts
//! each.
//!
//! Distributor and redistributor have these registers at the same offsets. The GIC is quiesced for
//! a next kernel, which has no record of the interrupts that this one used.

use super::super::common::StillOn;
use super::super::registers::Registers;
use core::ops::Range;

const ENABLED: u64 = 0x100;
const DISABLE: u64 = 0x180;
const NOT_PENDING: u64 = 0x280;
const ACTIVE: u64 = 0x300;
const NOT_ACTIVE: u64 = 0x380;

impl Registers {
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
                    let number = 32 * word as u32 + left.trailing_zeros();
                    return Err(StillOn::stays(number, what));
                }
            }
        }
        Ok(())
    }
}
