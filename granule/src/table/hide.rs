//! Present-invalid pages: pages that are made invalid and later valid again, for guard pages and memory
//! that must not be accessed. The entries keep their address and permissions.

use super::{BitChange, Environment, Holes, PageTables, TableError};
use crate::arch::page_size::Page;
use crate::arch::{Descriptor, VirtualAddress};

/// Makes valid leaves present-invalid.
pub(crate) const HIDE: BitChange = BitChange {
    of: Descriptor::VALID,
    clear: Descriptor::VALID,
    set: Descriptor::HIDDEN,
};

/// Makes present-invalid leaves valid again.
pub(crate) const SHOW: BitChange = BitChange {
    of: Descriptor::HIDDEN,
    clear: Descriptor::HIDDEN,
    set: Descriptor::VALID,
};

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Makes every access to `bytes` bytes from `start` fault, and invalidates the TLB for the range
    /// before it returns. Leaves are split at the ends of the range where the rules allow it.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect) with [`Holes::Refuse`]; hidden pages do not count as holes.
    pub fn hide(&mut self, start: VirtualAddress, bytes: u64) -> Result<(), TableError> {
        self.change(start, bytes, HIDE, Holes::Refuse)
    }

    /// Makes hidden pages in `bytes` bytes from `start` valid again. No TLBI is issued, because an
    /// invalid entry is not cached (IWZCBG).
    ///
    /// # Errors
    ///
    /// As for [`hide`](Self::hide).
    pub fn show(&mut self, start: VirtualAddress, bytes: u64) -> Result<(), TableError> {
        self.change(start, bytes, SHOW, Holes::Refuse)
    }
}
