//! Making single pages invalid and valid again without the lock of the tables and without memory.
//!
//! This works where the tables are already split to pages and stay so: the operation is one store
//! into an entry that no other code changes. It serves guard pages that move in code that must not
//! wait.

#![allow(unsafe_code, reason = "entries that only the caller changes")]

use super::present_invalid::{SET_INVALID, SET_VALID};
use super::walk::Place;
use super::{Live, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::PageChoice;
use crate::arch::{Geometry, PhysicalAddress, VirtualAddress};

/// Makes the pages of `bytes` bytes from `start` invalid or valid again, in the tables below
/// `root`, with one store for each page. Every access to an invalid page faults; the entry keeps
/// its address and permissions. If pages became invalid, the TLB is invalidated once, after the
/// stores and before this function returns. Pages that became valid need no TLBI (IWZCBG). Pages
/// that are already in the requested state stay as they are, at no cost.
///
/// # Errors
///
/// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
/// [`NotMapped`](TableError::NotMapped), and [`InsideLeaf`](TableError::InsideLeaf) for a block or
/// contiguous group in the range, present-invalid or not: this function splits nothing, and a
/// member of a group may not differ from the others. The tables are then unchanged.
///
/// # Safety
///
/// `root` must be a full table page of `geometry`'s start level, and `environment` must reach every
/// table on the way to the pages; it allocates nothing. While this function runs, other code
/// may change the tree, except the entries of these pages and those on the way to them. Pages that
/// become invalid must not be in use.
pub unsafe fn set_valid<P: PageChoice, E: TableEnvironment>(
    root: PhysicalAddress,
    geometry: Geometry,
    environment: E,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Result<(), TableError> {
    // SAFETY: the code below accesses only the entries of the pages and those on the way to them;
    // the caller promises that no other code changes these meanwhile.
    let mut tables = unsafe { Live::<PageTables<P, _>>::from_root(root, geometry, environment)? };
    // SAFETY: the caller promises that pages that become invalid are not in use.
    unsafe { tables.changes() }.set_valid_pages(start, bytes, valid)
}

impl<P: PageChoice, E: TableEnvironment> PageTables<P, E> {
    fn set_valid_pages(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        valid: bool,
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        self.check_pages(from, to)?;
        let change = if valid { SET_VALID } else { SET_INVALID };
        self.change_leaves(from, to, change, None);
        self.pending.within(from, to);
        self.flush();
        Ok(())
    }

    /// Checks that all offsets from `from` to `to` are mapped by pages outside contiguous groups.
    fn check_pages(&self, from: u64, to: u64) -> Result<(), TableError> {
        let mut at = from;
        while at < to {
            let Place { slot, level, entry } = self.place(at);
            if !self.is_leaf(level, entry) {
                let address = self.address(at);
                return Err(TableError::NotMapped { address });
            }
            if !level.is_last() || entry.is_contiguous() {
                let (_, count) = self.group_at(slot.index, level, entry);
                let leaf_bytes = self.size().entry_bytes(level) * count as u64;
                let leaf = at & !(leaf_bytes - 1);
                return Err(TableError::InsideLeaf {
                    // The first page boundary that a split would need inside the leaf.
                    edge: self.address(from.max(leaf + self.size().bytes())),
                    leaf: self.address(leaf),
                    leaf_bytes,
                    takes: if level.is_last() {
                        BbmLevel::Level1
                    } else {
                        BbmLevel::Level2
                    },
                });
            }
            at = self.end_of(at, level);
        }
        Ok(())
    }
}
