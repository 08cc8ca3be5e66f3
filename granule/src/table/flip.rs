//! Making single pages invalid and valid again beside everyone else: without the lock that other
//! operations on the tables are made under, and without memory.
//!
//! That is possible where the tables are split to pages beforehand and stay so: one store in an
//! entry that nobody else changes. For guard pages that are moved from where nothing may wait.

use super::{Environment, Liveness, PageTables, TableError};
use crate::arch::page_size::Page;
use crate::arch::{Geometry, PhysicalAddress, VirtualAddress};

/// Makes the pages of `bytes` bytes from `start`, in the tables below `root`, invalid (every access
/// faults; address and permissions are kept) or valid again: one store a page. The TLB is
/// invalidated once, after the stores and before this returns, when pages became invalid; never
/// when they became valid (IWZCBG). Pages that are so already stay as they are, at no cost.
///
/// # Errors
///
/// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
/// [`NotMapped`](TableError::NotMapped), and [`InsideLeaf`](TableError::InsideLeaf) where there are
/// no pages: nothing is split here. Nothing has changed then.
///
/// # Safety
///
/// `root` must be a full table page of `geometry`'s start level, and every table on the way to the
/// pages one that `environment` reaches; its allocator is not asked. While this runs others may change the tree, but neither an
/// entry of these pages nor one on the way to them; what is hidden must not be in use.
pub unsafe fn set_valid<P: Page, E: Environment>(
    root: PhysicalAddress,
    geometry: Geometry,
    environment: E,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Result<(), TableError> {
    // SAFETY: what others change meanwhile is not looked at, let alone written: below, only the
    // entries of the pages and those on the way to them are. At level 0 of FEAT_BBM, as tables
    // begin, no leaf is split and no entry beside the pages' own is stored.
    let mut tables =
        unsafe { PageTables::<P, _>::from_root(root, geometry, Liveness::Live, environment)? };
    if valid {
        tables.show(start, bytes)
    } else {
        tables.hide(start, bytes)
    }
}
