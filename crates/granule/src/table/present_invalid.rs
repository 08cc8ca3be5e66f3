//! Present-invalid pages: pages that are made invalid and later valid again, for guard pages and
//! memory that must not be accessed. The entries keep their address and permissions.

use super::stage::Stage;
use super::{BitChange, Holes, PageTables, TableEnvironment, TableError};
use crate::arch::Descriptor;
use crate::arch::page_size::PageChoice;

/// Makes valid leaves present-invalid.
pub(crate) const SET_INVALID: BitChange = BitChange {
    of: Descriptor::VALID,
    clear: Descriptor::VALID,
    set: Descriptor::PRESENT_INVALID,
};

/// Makes present-invalid leaves valid again.
pub(crate) const SET_VALID: BitChange = BitChange {
    of: Descriptor::PRESENT_INVALID,
    clear: Descriptor::PRESENT_INVALID,
    set: Descriptor::VALID,
};

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Makes every access to `bytes` bytes from `start` fault, and invalidates the TLB for the
    /// range before it returns. Leaves are split at the ends of the range where the rules allow it.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect) with [`Holes::Refuse`]; present-invalid pages do not count
    /// as holes.
    pub fn set_invalid(&mut self, start: S::Input, bytes: u64) -> Result<(), TableError> {
        self.change(start, bytes, SET_INVALID, Holes::Refuse)
    }

    /// Makes present-invalid pages in `bytes` bytes from `start` valid again. No TLBI is issued,
    /// because an invalid entry is not cached (IWZCBG).
    ///
    /// # Errors
    ///
    /// As for [`set_invalid`](Self::set_invalid).
    pub fn set_valid(&mut self, start: S::Input, bytes: u64) -> Result<(), TableError> {
        self.change(start, bytes, SET_VALID, Holes::Refuse)
    }
}
