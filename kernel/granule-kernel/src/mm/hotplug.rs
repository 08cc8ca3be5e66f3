//! Adds RAM to the running kernel and removes it.
//!
//! A range is in both the linear map and the page allocator, or in neither. Each call does both steps or,
//! when it fails, none. Removal first takes all frames out of the allocator at once, so no caller can
//! allocate memory that is about to go. Addition gives the frames to the allocator last. Where the edge of a
//! range falls inside a leaf, the leaf is split, as for a permission change, and may be merged again later.
//!
//! Memory that was present at boot can be removed too, if none of it is in use. Memory that the kernel keeps
//! for good (its image, the boot's tables, the frame metadata) does not belong to the allocator and cannot be
//! removed.
//!
//! The metadata of new frames comes from the memory that was there before, so that all of the new memory can
//! be removed again.

#![allow(unsafe_code, reason = "added and removed memory")]

use super::error::LinearError;
use super::kernel_tables::{self, Flush, Kernel, TableState, Tree};
use super::pageattr::check_free;
use super::{merge, pages, walker};
use granule::arch::{Attributes, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::TableError;
use granule_kcore::frames::metadata::{Word, metadata_at, metadata_bytes};
use granule_kcore::frames::tables::Source;
use granule_kcore::frames::{Frame, FrameError};
use thiserror::Error;

/// Why memory was not added or removed. Nothing has changed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum HotplugError {
    /// The linear map cannot add or drop the range.
    #[error("{0}")]
    Linear(#[from] LinearError),
    /// The page allocator refused.
    #[error("{0}")]
    Frames(#[from] FrameError),
    #[error(
        "only some of {bytes:#x} bytes at {start} lie where there was memory before; add those and the others apart"
    )]
    Mixed { start: PhysicalAddress, bytes: u64 },
    #[error(
        "no free block of {bytes} bytes is there for what is to be known of the new pages; free memory first"
    )]
    Metadata { bytes: u64 },
}

impl From<TableError> for HotplugError {
    fn from(error: TableError) -> Self {
        Self::Linear(LinearError::Table(error))
    }
}

/// The first frame, the number of frames, and their address in the linear map.
fn place(
    kernel: &Kernel,
    state: &TableState,
    start: PhysicalAddress,
    bytes: u64,
) -> Result<(VirtualAddress, Frame, u64), HotplugError> {
    let outside = LinearError::Outside {
        start: start.0,
        bytes,
    };
    let page = kernel.page();
    let last = start
        .0
        .checked_add(bytes.saturating_sub(1))
        .ok_or(outside)?;
    let whole = start.0.is_multiple_of(page) && bytes.is_multiple_of(page) && bytes > 0;
    let address = kernel.placement.virtual_address(start).ok_or(outside)?;
    let reached = kernel
        .placement
        .virtual_address(PhysicalAddress(last))
        .is_some();
    if !whole || !reached || last >> kernel.geometry.pa_bits() != 0 {
        return Err(outside.into());
    }
    check_free(kernel, state, address, bytes)?;
    let frame = Frame::containing(start, kernel.geometry.page_size());
    Ok((address, frame, bytes / page))
}

/// Adds `bytes` bytes of RAM from physical address `start`. Maps them in the linear map with the largest
/// leaves allowed, writable and not executable, and gives the frames to the page allocator. Their contents
/// are overwritten as the pages are used.
///
/// With `debug_pagealloc=on` the range is mapped in pages, each invalid until it is allocated. Fails with
/// [`LinearError::Outside`] when the linear map cannot reach the range; [`TableError::AlreadyMapped`],
/// [`TableError::OutOfTables`]; [`HotplugError::Mixed`], [`HotplugError::Metadata`].
///
/// # Safety
///
/// The range must be RAM that nothing uses.
pub(crate) unsafe fn add_memory(start: PhysicalAddress, bytes: u64) -> Result<(), HotplugError> {
    let (known, count, page) = kernel_tables::look(|kernel, state, _| {
        let (_, frame, count) = place(kernel, state, start, bytes)?;
        let known = pages::Pages.with(|frames| frames.have_room_for(frame, count));
        let known = known.ok_or(HotplugError::Mixed { start, bytes })?;
        Ok::<_, HotplugError>((known, count, kernel.page()))
    })
    .unwrap_or(Err(LinearError::TooEarly.into()))?;
    // Frames that come back have metadata already. The metadata of new frames is allocated from existing
    // memory, so that the whole new range can be removed again. It is kept for the range's return.
    let metadata = if known {
        None
    } else {
        let bytes = metadata_bytes(count);
        let order = bytes.div_ceil(page).next_power_of_two().trailing_zeros();
        let block = pages::allocate(order).ok_or(HotplugError::Metadata { bytes })?;
        Some((block, order))
    };
    // A span that was added keeps its metadata for good, even if it gets no frames afterwards.
    let mut kept = false;
    let added = kernel_tables::change(Flush::Now, |kernel, state, tree| {
        let (address, frame, count) = place(kernel, state, start, bytes)?;
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        tree.map(address, start, bytes, attributes, kernel.leaves)?;
        let given = pages::Pages.with(|frames| {
            if let Some((block, _)) = metadata {
                let block = block.address(kernel.geometry.page_size());
                let words = kernel.placement.virtual_address(block);
                let words = words.map_or(0, |words| words.0) as *mut Word;
                // SAFETY: the block was just allocated, and is never freed if it is kept. The linear map
                // shows it writable.
                let metadata = unsafe { metadata_at(words, count) };
                frames.add_span(frame, count, metadata)?;
                kept = true;
            }
            // Make the pages invalid before the allocator can hand them out.
            if kernel.debug_pagealloc {
                let present_invalid = tree.set_invalid(address, bytes);
                debug_assert!(
                    present_invalid.is_ok(),
                    "pages that were just mapped: {present_invalid:?}"
                );
            }
            frames.add_range(frame, count)
        });
        match given {
            Ok(()) => {
                walker::assume_visible(tree, address, bytes);
                merge::note(kernel, state, address, bytes);
                Ok(())
            }
            Err(error) => {
                // The range was just mapped as a whole, so unmapping it splits no leaf.
                let _ = walker::unmap(tree, address, bytes);
                Err(HotplugError::from(error))
            }
        }
    })
    .unwrap_or(Err(LinearError::TooEarly.into()));
    if let Some((block, order)) = metadata
        && !kept
    {
        let _ = pages::free(block, order);
    }
    merge::wake();
    added
}

/// Removes `bytes` bytes of RAM from physical address `start`. Takes the frames out of the page allocator,
/// all of which must be free, and unmaps them. Empty tables are freed. When this function returns, no CPU has
/// a translation to the range. Errors: [`FrameError::InUse`] names the first frame that is allocated or does
/// not belong to the allocator; [`LinearError::Image`]; [`TableError::InsideLeaf`] when a leaf would have to be
/// split and the CPUs do not allow it; [`TableError::OutOfTables`].
pub(crate) fn remove_memory(start: PhysicalAddress, bytes: u64) -> Result<(), HotplugError> {
    let removed = kernel_tables::change(Flush::Now, |kernel, state, tree| {
        let (address, frame, count) = place(kernel, state, start, bytes)?;
        pages::Pages.with(|frames| frames.take_out(frame, count))?;
        if let Err(error) = unmap(tree, address, bytes) {
            // The allocator had these frames before, and nothing else can have given them back meanwhile.
            let back = pages::Pages.with(|frames| frames.add_range(frame, count));
            debug_assert!(back.is_ok(), "frames that were just taken out: {back:?}");
            return Err(error);
        }
        state.flush_deferred(tree, address, bytes);
        merge::note(kernel, state, address, bytes);
        Ok(())
    })
    .unwrap_or(Err(LinearError::TooEarly.into()));
    merge::wake();
    removed
}

fn unmap(tree: &mut Tree<'_>, address: VirtualAddress, bytes: u64) -> Result<(), HotplugError> {
    walker::unmap(tree, address, bytes).map_err(HotplugError::from)
}
