//! Making pages invalid for a while and valid again: guard pages, and memory that is not to be
//! touched. The entries keep address and permissions.

use super::{BitChange, Environment, Holes, PageTables, TableError};
use crate::arch::page_size::Page;
use crate::arch::{Descriptor, VirtualAddress};

/// Makes valid leaves invalid, with the mark of those that were valid.
pub(crate) const HIDE: BitChange = BitChange {
    of: Descriptor::VALID,
    clear: Descriptor::VALID,
    set: Descriptor::HIDDEN,
};

/// Makes hidden leaves valid again.
pub(crate) const SHOW: BitChange = BitChange {
    of: Descriptor::HIDDEN,
    clear: Descriptor::HIDDEN,
    set: Descriptor::VALID,
};

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Makes `bytes` bytes from `start` fault on every access, and invalidates the TLB for them
    /// before it returns. Leaves are split at the ends where the rules allow it.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect) with [`Holes::Refuse`]; hidden pages are no holes.
    pub fn hide(&mut self, start: VirtualAddress, bytes: u64) -> Result<(), TableError> {
        self.change(start, bytes, HIDE, Holes::Refuse)
    }

    /// Makes hidden pages among `bytes` bytes from `start` valid again. No TLBI: what was invalid
    /// is not cached (IWZCBG).
    ///
    /// # Errors
    ///
    /// As for [`hide`](Self::hide).
    pub fn show(&mut self, start: VirtualAddress, bytes: u64) -> Result<(), TableError> {
        self.change(start, bytes, SHOW, Holes::Refuse)
    }
}
