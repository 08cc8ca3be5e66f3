//! Why a translation failed: the fault status code in ESR_ELx and PAR_EL1.
//!
//! The code is decoded as far as page tables are concerned. What a kernel does about a fault, and
//! the classes of other exceptions, are not here.

/// ESR's exception class, bits 31:26.
#[inline]
const fn class(esr: u64) -> u64 {
    esr >> 26 & 0x3f
}

/// The classes of aborts: of an instruction fetch and of a data access, each from a lower exception
/// level and from the same one.
const INSTRUCTION_LOWER: u64 = 0x20;
const INSTRUCTION_SAME: u64 = 0x21;
const DATA_LOWER: u64 = 0x24;
const DATA_SAME: u64 = 0x25;

/// A fault status code: IFSC or DFSC of ESR_ELx, or FST of PAR_EL1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultStatus(pub u64);

impl FaultStatus {
    /// The status of an exception with this syndrome, if it is an instruction or data abort.
    #[must_use]
    #[inline]
    pub const fn of_esr(esr: u64) -> Option<Self> {
        match class(esr) {
            INSTRUCTION_LOWER | INSTRUCTION_SAME | DATA_LOWER | DATA_SAME => Some(Self(esr & 0x3f)),
            _ => None,
        }
    }

    /// The status in PAR_EL1 after an address translation instruction that failed; `None` after one
    /// that succeeded.
    #[must_use]
    #[inline]
    pub const fn of_par(par: u64) -> Option<Self> {
        if par & 1 == 1 {
            Some(Self(par >> 1 & 0x3f))
        } else {
            None
        }
    }

    /// Whether more than one TLB entry matches (RNGLXZ, IHYQMB). The abort is always synchronous:
    /// no memory access was made, so the instruction can be retried.
    #[must_use]
    #[inline]
    pub const fn is_tlb_conflict(self) -> bool {
        self.0 == 0x30
    }

    /// Whether an entry of any level was invalid.
    #[must_use]
    #[inline]
    pub const fn is_translation_fault(self) -> bool {
        matches!(self.0, 0x04..=0x07 | 0x2a | 0x2b)
    }

    /// Whether the tables forbid the access: an address size, translation, access flag or
    /// permission fault of any level that a 64-bit walk has.
    #[must_use]
    #[inline]
    pub const fn is_by_tables(self) -> bool {
        matches!(self.0, 0x00..=0x0f | 0x29 | 0x2b)
    }
}
