//! What each page of the linear map allows, and changing it: the names that Linux uses.
//!
//! All of them take the address of a page in the linear map and a number of pages, and do all or
//! nothing: what stands in the way is found before anything changes. A leaf that the range begins or
//! ends in is split, on CPUs whose level of FEAT_BBM allows that; elsewhere it is an error, unless
//! the map is in pages (`rodata=on|full` without such CPUs, `debug_pagealloc=on`). No pages at all
//! is no error, and changes nothing.
//!
//! | call | afterwards |
//! |---|---|
//! | [`set_memory_ro`], [`set_memory_rw`] | not writable, writable |
//! | [`set_memory_nx`], [`set_memory_x`] | not executable, executable |
//! | [`set_memory_valid`] | every access faults, or what was allowed before is allowed again |
//! | [`set_direct_map_invalid`] | every access faults |
//! | [`set_direct_map_default`] | valid, writable, not executable, as all RAM began |
//!
//! Rules, whatever `rodata=` says; that word only decides how the boot makes the map:
//!
//! - The pages are the caller's: allocated to it, not a table's, not in use for what they are to
//!   lose.
//! - No page is ever writable and executable: [`set_memory_x`] wants pages that are read-only
//!   already, [`set_memory_rw`] pages that are not executable. Invalid pages count as what they will
//!   be.
//! - The alias of the kernel's image never changes: text and constants could be written there, and
//!   the tables themselves are reached through it. The part of the image's storage that the boot
//!   gave back is memory like any other.
//! - Guard pages ([`guard`](super::guard)) only change through their pool.
//! - A hole in the range, or an end outside the linear map, is an error.
//!
//! When one returns, every CPU sees the change: the TLB was invalidated for the range (not when
//! pages only became valid, which takes none, IWZCBG). The two that end in `_noflush` leave that to
//! [`flush_direct_map`], or to whichever call that does not end so meets their range next; but where there
//! are large leaves that may not be split live they leave nothing. Making memory executable says nothing of
//! instruction caches: who writes code cleans and invalidates them.
//!
//! They may be called wherever the page allocator may: with interrupts masked or in an interrupt,
//! on any CPU, also while others are parked; they mask interrupts for as long as they take. Not
//! from within each other, and not before the page allocator has taken over.

use super::error::LinearError;
use super::live::{self, Done, Flush, Kernel, Live, Tree};
use super::merge;
use granule::arch::{Kind, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::{PermissionChange, TableError};

const NO_CHANGE: PermissionChange = PermissionChange {
    writable: None,
    user: None,
    privileged_execute: None,
    user_execute: None,
    guarded: None,
    software: None,
};

/// Makes pages read-only.
///
/// # Errors
///
/// See the module's rules; [`TableError::OutOfTables`] when a leaf cannot be split for want of
/// memory, [`TableError::InsideLeaf`] when the CPUs do not allow it.
pub(crate) fn set_memory_ro(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    let change = PermissionChange {
        writable: Some(false),
        ..NO_CHANGE
    };
    protect(start, pages, change, None)
}

/// Makes pages writable.
///
/// # Errors
///
/// As for [`set_memory_ro`]; [`LinearError::WritableExecutable`] when one of them is executable.
pub(crate) fn set_memory_rw(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    let change = PermissionChange {
        writable: Some(true),
        ..NO_CHANGE
    };
    let refused: Refused = |permissions| permissions.privileged_execute;
    protect(start, pages, change, Some(refused))
}

/// Makes pages executable for the kernel.
///
/// # Errors
///
/// As for [`set_memory_ro`]; [`LinearError::WritableExecutable`] when one of them is writable.
pub(crate) fn set_memory_x(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    let change = PermissionChange {
        privileged_execute: Some(true),
        ..NO_CHANGE
    };
    let refused: Refused = |permissions| permissions.writable;
    protect(start, pages, change, Some(refused))
}

/// Makes pages not executable.
///
/// # Errors
///
/// As for [`set_memory_ro`].
pub(crate) fn set_memory_nx(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    let change = PermissionChange {
        privileged_execute: Some(false),
        ..NO_CHANGE
    };
    protect(start, pages, change, None)
}

/// Makes every access to pages fault, or lets those through again that were before: permissions
/// are kept meanwhile, and may be changed.
///
/// # Errors
///
/// As for [`set_memory_ro`].
pub(crate) fn set_memory_valid(
    start: VirtualAddress,
    pages: u64,
    valid: bool,
) -> Result<(), LinearError> {
    in_range(start, pages, Flush::Now, |_, tree, start, bytes| {
        if valid {
            tree.show(start, bytes)?;
        } else {
            tree.hide(start, bytes)?;
        }
        Ok(())
    })
}

/// Makes every access to pages fault.
///
/// # Errors
///
/// As for [`set_memory_ro`].
pub(crate) fn set_direct_map_invalid(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    in_range(start, pages, Flush::Now, |_, tree, start, bytes| {
        Ok(tree.hide(start, bytes)?)
    })
}

/// As [`set_direct_map_invalid`], but accesses may go on succeeding until [`flush_direct_map`].
///
/// # Errors
///
/// As for [`set_memory_ro`].
pub(crate) fn set_direct_map_invalid_noflush(
    start: VirtualAddress,
    pages: u64,
) -> Result<(), LinearError> {
    in_range(start, pages, Flush::Later, |_, tree, start, bytes| {
        Ok(tree.hide(start, bytes)?)
    })
}

/// Makes pages what all RAM was to begin with: valid, writable, not executable.
///
/// # Errors
///
/// As for [`set_memory_ro`].
pub(crate) fn set_direct_map_default(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    in_range(start, pages, Flush::Now, |kernel, tree, start, bytes| {
        Ok(to_default(kernel, tree, start, bytes)?)
    })
}

/// As [`set_direct_map_default`], but CPUs may go by what was allowed before, or not allowed, until
/// [`flush_direct_map`].
///
/// # Errors
///
/// As for [`set_memory_ro`].
pub(crate) fn set_direct_map_default_noflush(
    start: VirtualAddress,
    pages: u64,
) -> Result<(), LinearError> {
    in_range(start, pages, Flush::Later, |kernel, tree, start, bytes| {
        Ok(to_default(kernel, tree, start, bytes)?)
    })
}

fn to_default(kernel: &Kernel, tree: &mut dyn Tree, start: VirtualAddress, bytes: u64) -> Done {
    // The second operation may have to split where the first had nothing to change: an invalid leaf
    // with the permissions already. It must not run out of memory then.
    let page = kernel.page();
    let mut cut = 0;
    for edge in [start.0, start.0 + (bytes - page)] {
        tree.visit(VirtualAddress(edge), page, &mut |entry| {
            let large = entry.bytes > page || entry.descriptor.is_contiguous();
            cut += usize::from(entry.kind == Kind::Hidden && large);
            true
        })?;
    }
    let needed = 2 * kernel.geometry.levels() as usize;
    if cut > 0 && !tree.reserve(needed) {
        return Err(TableError::OutOfTables { needed });
    }
    let default = PermissionChange {
        writable: Some(true),
        privileged_execute: Some(false),
        ..NO_CHANGE
    };
    // In this order: never valid with what was allowed before. Most pages were never anything else,
    // and then there is nothing to invalidate.
    let other: Refused = |permissions| !permissions.writable || permissions.privileged_execute;
    if first_refused(kernel, tree, start, bytes, other)?.is_some() {
        tree.protect(start, bytes, default)?;
    }
    tree.show(start, bytes)
}

/// Invalidates the TLB for pages that were changed without.
///
/// # Errors
///
/// [`LinearError::Outside`], [`LinearError::TooEarly`].
pub(crate) fn flush_direct_map(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    live::change(Flush::Now, |kernel, live, tree| {
        let bytes = kernel.bytes_in(start, pages)?;
        if bytes > 0 {
            tree.flush(start, bytes);
            live.deferred.invalidated(start.0, bytes);
        }
        Ok(())
    })
    .unwrap_or(Err(LinearError::TooEarly))
}

/// Whether the page that `address` lies in is in the linear map and valid.
pub(crate) fn kernel_page_present(address: VirtualAddress) -> bool {
    live::look(|kernel, _, tree| {
        kernel.placement.physical_address(address).is_some() && tree.query(address).is_some()
    })
    .unwrap_or(false)
}

/// Whether a page with these permissions stands in the way.
type Refused = fn(&Permissions) -> bool;

fn protect(
    start: VirtualAddress,
    pages: u64,
    change: PermissionChange,
    refused: Option<Refused>,
) -> Result<(), LinearError> {
    in_range(start, pages, Flush::Now, |kernel, tree, start, bytes| {
        if let Some(refused) = refused
            && let Some(address) = first_refused(kernel, tree, start, bytes, refused)?
        {
            return Err(LinearError::WritableExecutable { address });
        }
        Ok(tree.protect(start, bytes, change)?)
    })
}

/// The first address in the range that is in a leaf which stands in the way.
fn first_refused(
    kernel: &Kernel,
    tree: &mut dyn Tree,
    start: VirtualAddress,
    bytes: u64,
    refused: Refused,
) -> Result<Option<VirtualAddress>, TableError> {
    let mut first = None;
    tree.visit(start, bytes, &mut |entry| {
        let leaf = matches!(entry.kind, Kind::Leaf | Kind::Hidden);
        if first.is_none()
            && leaf
            && refused(&Permissions::decode(
                entry.descriptor,
                kernel.geometry.regime(),
            ))
        {
            first = Some(VirtualAddress(entry.start.0.max(start.0)));
        }
        first.is_none()
    })?;
    Ok(first)
}

/// Whether the range keeps off what nobody may change here; in physical addresses.
pub(super) fn check_free(
    kernel: &Kernel,
    live: &Live,
    start: VirtualAddress,
    bytes: u64,
) -> Result<PhysicalAddress, LinearError> {
    let outside = LinearError::Outside {
        start: start.0,
        bytes,
    };
    let physical = kernel.placement.physical_address(start).ok_or(outside)?;
    if kernel.is_image(physical.0, bytes) {
        return Err(LinearError::Image { start, bytes });
    }
    if live.meets_pool(start.0, bytes) {
        return Err(LinearError::Guarded { start, bytes });
    }
    Ok(physical)
}

/// Does `work` to the pages under the lock, once they may be changed, and notes that something there
/// may be merged.
fn in_range(
    start: VirtualAddress,
    pages: u64,
    flush: Flush,
    work: impl FnOnce(&Kernel, &mut dyn Tree, VirtualAddress, u64) -> Result<(), LinearError>,
) -> Result<(), LinearError> {
    let done = live::change(flush, |kernel, live, tree| {
        let bytes = kernel.bytes_in(start, pages)?;
        if bytes == 0 {
            return Ok(());
        }
        check_free(kernel, live, start, bytes)?;
        work(kernel, tree, start, bytes)?;
        if flush == Flush::Later && kernel.may_put_off() {
            live.deferred.add(start.0, bytes);
        } else {
            live.rely(tree, start, bytes);
        }
        merge::note(kernel, live, start, bytes);
        Ok(())
    })
    .unwrap_or(Err(LinearError::TooEarly));
    merge::wake();
    done
}
