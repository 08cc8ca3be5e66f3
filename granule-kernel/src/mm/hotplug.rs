//! Memory that comes and goes while the kernel runs.
//!
//! A range is in the linear map and with the page allocator, or in neither: each call does both or,
//! when it fails, none. Taking frames out of the allocator happens at once, so nobody gets one of
//! memory that is about to go; giving them in is the last step. Where an edge falls inside a leaf
//! the leaf is split, as for permissions, and may be merged again later.
//!
//! What the boot found may be removed as well, if nothing of it is in use: what the kernel has for
//! good (its image, the boot's tables, what is known of each frame) is not the allocator's.

use super::error::LinearError;
use super::live::{self, Flush, Kernel, Live, Tree};
use super::permissions::check_free;
use super::{merge, pages};
use core::fmt;
use granule::arch::{Attributes, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::TableError;
use granule_kcore::frames::metadata::{Word, metadata_at, metadata_bytes};
use granule_kcore::frames::tables::Source;
use granule_kcore::frames::{Frame, FrameError};

/// Why memory was not added or removed. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HotplugError {
    /// The linear map cannot have it, or cannot be without.
    Linear(LinearError),
    /// The page allocator refuses.
    Frames(FrameError),
    /// The range lies partly among memory that there was before, and partly not.
    Mixed { start: PhysicalAddress, bytes: u64 },
    /// There is no block of free pages for what is to be known of the new frames.
    Metadata { bytes: u64 },
}

impl fmt::Display for HotplugError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear(error) => write!(f, "{error}"),
            Self::Frames(error) => write!(f, "{error}"),
            Self::Mixed { start, bytes } => write!(
                f,
                "only some of {bytes:#x} bytes at {start} lie where there was memory before; add those and the others apart"
            ),
            Self::Metadata { bytes } => write!(
                f,
                "no free block of {bytes} bytes is there for what is to be known of the new pages; free memory first"
            ),
        }
    }
}

impl core::error::Error for HotplugError {}

impl From<LinearError> for HotplugError {
    fn from(error: LinearError) -> Self {
        Self::Linear(error)
    }
}

impl From<TableError> for HotplugError {
    fn from(error: TableError) -> Self {
        Self::Linear(LinearError::Table(error))
    }
}

impl From<FrameError> for HotplugError {
    fn from(error: FrameError) -> Self {
        Self::Frames(error)
    }
}

/// Frames from `start`, in pages, and where the linear map has them.
fn place(
    kernel: &Kernel,
    live: &Live,
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
    check_free(kernel, live, address, bytes)?;
    let frame = Frame::containing(start, kernel.geometry.page_size());
    Ok((address, frame, bytes / page))
}

/// Adds `bytes` bytes of RAM from physical `start`: maps them in the linear map with the largest
/// leaves there may be, writable and not executable, and gives the frames to the page allocator.
/// What was there before is overwritten as the pages are used.
///
/// With `debug_pagealloc=on` they are pages, and invalid until they are allocated.
///
/// # Errors
///
/// [`LinearError::Outside`] when the linear map cannot reach it; [`TableError::AlreadyMapped`],
/// [`TableError::OutOfTables`]; [`HotplugError::Mixed`], [`HotplugError::Metadata`].
///
/// # Safety
///
/// The range must be RAM, and used by nobody.
pub(crate) unsafe fn add_memory(start: PhysicalAddress, bytes: u64) -> Result<(), HotplugError> {
    let (known, count, page) = live::look(|kernel, live, _| {
        let (_, frame, count) = place(kernel, live, start, bytes)?;
        let known = pages::Pages.with(|frames| frames.have_room_for(frame, count));
        let known = known.ok_or(HotplugError::Mixed { start, bytes })?;
        Ok::<_, HotplugError>((known, count, kernel.page()))
    })
    .unwrap_or(Err(LinearError::TooEarly.into()))?;
    // Frames that come back are known already; what is to be known of new ones comes out of the
    // memory there is, so that all of the new can go again. It stays for when they come back.
    let metadata = if known {
        None
    } else {
        let bytes = metadata_bytes(count);
        let order = bytes.div_ceil(page).next_power_of_two().trailing_zeros();
        let block = pages::allocate(order).ok_or(HotplugError::Metadata { bytes })?;
        Some((block, order))
    };
    // A span that was added keeps its metadata for good, also if it then gets no frames.
    let mut kept = false;
    let added = live::change(Flush::Now, |kernel, live, tree| {
        let (address, frame, count) = place(kernel, live, start, bytes)?;
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        tree.map(address, start, bytes, attributes, kernel.leaves)?;
        let given = pages::Pages.with(|frames| {
            if let Some((block, _)) = metadata {
                let block = block.address(kernel.geometry.page_size());
                let words = kernel.placement.virtual_address(block);
                let words = words.map_or(0, |words| words.0) as *mut Word;
                // SAFETY: just allocated, for good if this is kept; the linear map shows it.
                let metadata = unsafe { metadata_at(words, count) };
                frames.add_span(frame, count, metadata)?;
                kept = true;
            }
            // Nobody can allocate them before they are invalid.
            if kernel.debug_pagealloc {
                let hidden = tree.hide(address, bytes);
                debug_assert!(hidden.is_ok(), "pages that were just mapped: {hidden:?}");
            }
            frames.add_range(frame, count)
        });
        match given {
            Ok(()) => {
                tree.relied(address, bytes);
                merge::note(kernel, live, address, bytes);
                Ok(())
            }
            Err(error) => {
                // What was just mapped is unmapped without splitting anything.
                let _ = tree.unmap(address, bytes);
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

/// Removes `bytes` bytes of RAM from physical `start`: takes the frames out of the page allocator,
/// all of which must be free, and unmaps them; tables that get empty are given back. When this
/// returns no CPU has a translation to the range.
///
/// # Errors
///
/// [`FrameError::InUse`] names the first frame that is allocated or not the allocator's;
/// [`LinearError::Image`]; [`TableError::InsideLeaf`] when a leaf would have to be split and the
/// CPUs do not allow it, [`TableError::OutOfTables`].
pub(crate) fn remove_memory(start: PhysicalAddress, bytes: u64) -> Result<(), HotplugError> {
    let removed = live::change(Flush::Now, |kernel, live, tree| {
        let (address, frame, count) = place(kernel, live, start, bytes)?;
        pages::Pages.with(|frames| frames.take_out(frame, count))?;
        if let Err(error) = unmap(tree, address, bytes) {
            // They were given in before, and nobody else has given them in meanwhile.
            let back = pages::Pages.with(|frames| frames.add_range(frame, count));
            debug_assert!(back.is_ok(), "frames that were just taken out: {back:?}");
            return Err(error);
        }
        live.rely(tree, address, bytes);
        merge::note(kernel, live, address, bytes);
        Ok(())
    })
    .unwrap_or(Err(LinearError::TooEarly.into()));
    merge::wake();
    removed
}

fn unmap(tree: &mut dyn Tree, address: VirtualAddress, bytes: u64) -> Result<(), HotplugError> {
    tree.unmap(address, bytes).map_err(HotplugError::from)
}
