//! Changes the permissions of pages in the linear map (pageattr). The functions have Linux's names.
//!
//! Each function takes the linear-map address of a page and a number of pages; those of the first two rows also an
//! address in the vmalloc area, whose pages have two mappings ([`vmalloc`]). It changes all of
//! them or none: obstacles are found before the first change. A leaf that straddles an end of the
//! range is split if the CPUs' BBM level allows that, and is an error otherwise, unless the map is
//! in pages (`rodata=on|full` without such CPUs, `debug_pagealloc=on`). An empty range is not an
//! error and changes nothing.
//!
//! | call | afterwards |
//! |---|---|
//! | [`set_memory_ro`], [`set_memory_rw`] | not writable, writable |
//! | [`set_memory_nx`], [`set_memory_x`] | not executable, executable |
//! | [`set_memory_valid`] | every access faults, or the earlier permissions apply again |
//! | [`set_direct_map_invalid`] | every access faults |
//! | [`set_direct_map_default`] | valid, writable, not executable, the initial state of RAM |
//!
//! The rules do not depend on `rodata=`, which only decides how the boot builds the map:
//!
//! - The caller owns the pages: it has allocated them, no table is among them, and nothing uses the
//!   permission that they lose.
//! - No page is ever writable and executable. [`set_memory_x`] requires read-only pages, and
//!   [`set_memory_rw`] requires pages that are not executable. An invalid page counts with the permissions
//!   that it would have when valid.
//! - The alias of the kernel's image never changes: text and constants could be written through it, and the
//!   kernel accesses its own tables through it. The part of the image's storage that the boot freed is
//!   ordinary memory.
//! - Guard pages ([`guard`](super::guard)) change only through their pool.
//! - A hole in the range, or an end outside the linear map, is an error.
//!
//! When a function returns, every CPU sees the change: the TLB was invalidated for the range. Pages that only
//! become valid need no invalidation (IWZCBG). The two functions that end in `_noflush` leave the TLBI to
//! [`flush_direct_map`], or to the next other call that covers their range. Where large leaves exist that may
//! not be split live, they defer nothing. Making memory executable does not maintain instruction caches: the
//! writer of the code cleans and invalidates them.
//!
//! The functions may be called wherever the page allocator may: with interrupts masked, in an interrupt, on
//! any CPU, and while other CPUs are parked. They mask interrupts while they run. They must not be called
//! from within each other, nor before the page allocator has taken over.

use super::error::LinearError;
use super::kernel_tables::{self, Flush, Kernel, TableState, Tree};
use super::{merge, vmalloc, walker};
use core::ops::ControlFlow;
use granule::arch::{Attributes, Kind, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::{Holes, PermissionChange, TableError, Visit};

const NO_CHANGE: PermissionChange = PermissionChange::NONE;

/// Makes pages read-only. Errors: the module's rules; [`TableError::OutOfTables`] when there is no memory to split a
/// leaf, [`TableError::InsideLeaf`] when the CPUs do not allow the split.
pub(crate) fn set_memory_ro(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    let change = PermissionChange {
        writable: Some(false),
        ..NO_CHANGE
    };
    protect(start, pages, change, None)
}

/// Makes pages writable. Errors: as for [`set_memory_ro`]; [`LinearError::WritableExecutable`] when one of them is
/// executable.
pub(crate) fn set_memory_rw(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    let change = PermissionChange {
        writable: Some(true),
        ..NO_CHANGE
    };
    let refused: Refused = |permissions| permissions.privileged_execute;
    protect(start, pages, change, Some(refused))
}

/// Makes pages executable for the kernel. Errors: as for [`set_memory_ro`]; [`LinearError::WritableExecutable`]
/// when one of them is writable.
pub(crate) fn set_memory_x(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    let change = PermissionChange {
        privileged_execute: Some(true),
        ..NO_CHANGE
    };
    let refused: Refused = |permissions| permissions.writable;
    protect(start, pages, change, Some(refused))
}

/// Makes pages not executable.
#[allow(dead_code, reason = "self-tests use it")]
pub(crate) fn set_memory_nx(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    let change = PermissionChange {
        privileged_execute: Some(false),
        ..NO_CHANGE
    };
    protect(start, pages, change, None)
}

/// Makes every access to pages fault, or makes the pages valid again. Invalid pages keep their permissions,
/// which may be changed meanwhile.
#[allow(dead_code, reason = "self-tests use it")]
pub(crate) fn set_memory_valid(
    start: VirtualAddress,
    pages: u64,
    valid: bool,
) -> Result<(), LinearError> {
    if valid {
        in_range(start, pages, Flush::Now, |_, tree, start, bytes| {
            Ok(tree.set_valid(start, bytes)?)
        })
    } else {
        set_direct_map_invalid(start, pages)
    }
}

/// Makes every access to pages fault.
pub(crate) fn set_direct_map_invalid(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    to_invalid(start, pages, Flush::Now)
}

/// As [`set_direct_map_invalid`], but CPUs may still access the pages until [`flush_direct_map`].
#[allow(dead_code, reason = "self-tests use it")]
pub(crate) fn set_direct_map_invalid_noflush(
    start: VirtualAddress,
    pages: u64,
) -> Result<(), LinearError> {
    to_invalid(start, pages, Flush::Later)
}

fn to_invalid(start: VirtualAddress, pages: u64, flush: Flush) -> Result<(), LinearError> {
    in_range(start, pages, flush, |_, tree, start, bytes| {
        Ok(tree.set_invalid(start, bytes)?)
    })
}

/// Gives pages the initial state of RAM: valid, writable, not executable.
#[allow(dead_code, reason = "self-tests use it")]
pub(crate) fn set_direct_map_default(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    in_range(start, pages, Flush::Now, to_default)
}

/// As [`set_direct_map_default`], but CPUs may use the earlier permissions until [`flush_direct_map`].
#[allow(dead_code, reason = "self-tests use it")]
pub(crate) fn set_direct_map_default_noflush(
    start: VirtualAddress,
    pages: u64,
) -> Result<(), LinearError> {
    in_range(start, pages, Flush::Later, to_default)
}

fn to_default(
    kernel: &Kernel,
    tree: &mut Tree<'_>,
    start: VirtualAddress,
    bytes: u64,
) -> Result<(), LinearError> {
    // The second operation may have to split a leaf that the first did not change: an invalid leaf that has
    // the permissions already. It must not run out of memory then.
    let page = kernel.page();
    let mut cut = 0;
    for edge in [start.0, start.0 + (bytes - page)] {
        tree.visit(VirtualAddress(edge), page, |entry| {
            let large = entry.bytes > page || entry.descriptor.is_contiguous();
            cut += usize::from(entry.kind == Kind::PresentInvalid && large);
            Visit::EVERYTHING
        })?;
    }
    let needed = 2 * (4 - kernel.geometry.start_level().number()) as usize;
    if cut > 0 && !walker::reserve(tree, needed) {
        return Err(TableError::OutOfTables { needed }.into());
    }
    let default = PermissionChange {
        writable: Some(true),
        privileged_execute: Some(false),
        ..NO_CHANGE
    };
    // Permissions first: a page must never be valid with its earlier permissions. Most pages have the default
    // permissions, and then no invalidation is needed.
    let other: Refused = |permissions| !permissions.writable || permissions.privileged_execute;
    if first_refused(kernel, tree, start, bytes, other)?.is_some() {
        tree.protect(start, bytes, default, Holes::Refuse)?;
    }
    Ok(tree.set_valid(start, bytes)?)
}

/// Invalidates the TLB for pages that were changed by a `_noflush` call. Fails with [`LinearError::Outside`],
/// [`LinearError::TooEarly`].
#[allow(dead_code, reason = "self-tests use it")]
pub(crate) fn flush_direct_map(start: VirtualAddress, pages: u64) -> Result<(), LinearError> {
    kernel_tables::change(Flush::Now, |kernel, state, tree| {
        let bytes = kernel.bytes_in(start, pages)?;
        if bytes > 0 {
            walker::flush(tree, start, bytes);
            state.deferred.invalidated(start.0, bytes);
        }
        Ok(())
    })
    .unwrap_or(Err(LinearError::TooEarly))
}

/// Whether the page that contains `address` is valid in the linear map.
#[allow(dead_code, reason = "self-tests use it")]
pub(crate) fn kernel_page_present(address: VirtualAddress) -> bool {
    kernel_tables::look(|kernel, _, tree| {
        kernel.placement.physical_address(address).is_some() && tree.query(address).is_some()
    })
    .unwrap_or(false)
}

/// Whether a page with these permissions forbids the change.
pub(super) type Refused = fn(&Permissions) -> bool;

fn protect(
    start: VirtualAddress,
    pages: u64,
    change: PermissionChange,
    refused: Option<Refused>,
) -> Result<(), LinearError> {
    if vmalloc::is_there(start) {
        return vmalloc::protect(start, pages, change, refused);
    }
    in_range(start, pages, Flush::Now, |kernel, tree, start, bytes| {
        if let Some(refused) = refused
            && let Some(address) = first_refused(kernel, tree, start, bytes, refused)?
        {
            return Err(LinearError::WritableExecutable { address });
        }
        Ok(tree.protect(start, bytes, change, Holes::Refuse)?)
    })
}

/// The first address in the range whose leaf forbids the change.
pub(super) fn first_refused(
    kernel: &Kernel,
    tree: &mut Tree<'_>,
    start: VirtualAddress,
    bytes: u64,
    refused: Refused,
) -> Result<Option<VirtualAddress>, TableError> {
    let first = tree.visit(start, bytes, |entry| {
        let leaf = matches!(entry.kind, Kind::Leaf | Kind::PresentInvalid);
        if leaf && refused(&Attributes::decode(entry.descriptor, &kernel.geometry).permissions) {
            return ControlFlow::Break(entry.start.max(start));
        }
        ControlFlow::Continue(Visit::Descend)
    })?;
    Ok(first.break_value())
}

/// Checks that no part of the range is protected from changes here (image, guard pages). Takes physical
/// addresses.
pub(super) fn check_free(
    kernel: &Kernel,
    state: &TableState,
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
    if state.meets_pool(start.0, bytes) {
        return Err(LinearError::Guarded { start, bytes });
    }
    Ok(physical)
}

/// Checks that the pages may change, calls `work` on them under the lock, and notes the range as a merge
/// candidate.
fn in_range(
    start: VirtualAddress,
    pages: u64,
    flush: Flush,
    work: impl FnOnce(&Kernel, &mut Tree<'_>, VirtualAddress, u64) -> Result<(), LinearError>,
) -> Result<(), LinearError> {
    let done = kernel_tables::change(flush, |kernel, state, tree| {
        let bytes = kernel.bytes_in(start, pages)?;
        if bytes == 0 {
            return Ok(());
        }
        check_free(kernel, state, start, bytes)?;
        work(kernel, tree, start, bytes)?;
        if flush == Flush::Later && kernel.may_defer_tlbi() {
            state.deferred.add(start.0, bytes);
        } else {
            state.flush_deferred(tree, start, bytes);
        }
        merge::note(kernel, state, start, bytes);
        Ok(())
    })
    .unwrap_or(Err(LinearError::TooEarly));
    merge::wake();
    done
}
