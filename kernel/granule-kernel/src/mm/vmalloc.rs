//! The vmalloc area: memory in whole pages that follow each other in a window beside the image, wherever their
//! frames lie. For code that is loaded later, and for memory that is larger than a free block.
//!
//! A page of an area has two mappings: its own, in pages that nothing merges or splits, and that of the linear map.
//! A change of permissions ([`pageattr`](super::pageattr)) changes both, so that code and constants cannot be
//! written through the linear map, and no page is ever writable through one and executable through the other. With
//! `rodata=off` and `noalias`, where nothing is read-only in the linear map, only the area's own mapping changes.
//!
//! Nothing but the tables has the list of an area's frames. An area gives them back writable, and its leaves of the
//! linear map are merged again at once, so a loaded and unloaded module leaves no trace in it.

#![allow(unsafe_code, reason = "an area's memory")]

use super::error::LinearError;
use super::kernel_tables::{self, Flush, Kernel, TableState, Tree, pointer};
use super::pageattr::{Refused, first_refused};
use super::{merge, pages, walker};
use crate::arch::image;
use crate::lock::Lock;
use arrayvec::ArrayVec;
use core::ops::Range;
use granule::arch::{Attributes, PageSize, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::{Holes, Leaves, PermissionChange, TableError};
use granule_kcore::layout;

const MOST_AREAS: usize = 64;

/// The alignment of areas, and the least gap between two, which is mapped nowhere: the largest page.
const ALIGNMENT: u64 = PageSize::MAX.bytes();

/// Pages that are freed under one taking of the tables' lock.
const MOST_AT_ONCE: usize = 64;

/// The ranges of all areas, ascending, with the gap behind each.
static AREAS: Lock<ArrayVec<Range<u64>, MOST_AREAS>> = Lock::new(ArrayVec::new_const());

/// Whether an address lies in the window.
pub(super) fn is_there(address: VirtualAddress) -> bool {
    layout::vmalloc(image::start()).contains(&address.0)
}

/// Finds room for `bytes` bytes, and keeps it.
fn keep(bytes: u64) -> Option<u64> {
    let window = layout::vmalloc(image::start());
    let whole = bytes
        .checked_next_multiple_of(ALIGNMENT)?
        .checked_add(ALIGNMENT)?;
    AREAS.with(|areas| {
        let (mut at, mut index) = (window.start, areas.len());
        for (number, area) in areas.iter().enumerate() {
            if area.start - at >= whole {
                index = number;
                break;
            }
            at = area.end;
        }
        let end = at.checked_add(whole).filter(|end| *end <= window.end)?;
        areas.try_insert(index, at..end).ok()?;
        Some(at)
    })
}

/// Calls `look` with memory that is not this kernel's, mapped read-only meanwhile: whole pages from `first` on. `None` if
/// there is no room or no memory for tables.
pub(crate) fn with_mapped<R>(
    first: PhysicalAddress,
    bytes: u64,
    look: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let at = keep(bytes)?;
    let start = VirtualAddress(at);
    let attributes = Attributes::normal(Permissions::READ);
    let mapped = kernel_tables::change(Flush::Now, |_, _, tree| {
        tree.map(start, first, bytes, attributes, Leaves::PAGES)?;
        walker::assume_visible(tree, start, bytes);
        Ok::<(), TableError>(())
    });
    let result = matches!(mapped, Some(Ok(()))).then(|| {
        let memory = core::ptr::with_exposed_provenance(at as usize);
        // SAFETY: it was just mapped, in room that `keep` gave to nobody else, and is unmapped below alone. The caller
        // answers for the memory: any bytes are valid.
        look(unsafe { core::slice::from_raw_parts(memory, bytes as usize) })
    });
    let unmapped = result.is_none()
        || kernel_tables::change(Flush::Now, |_, _, tree| {
            walker::unmap(tree, start, bytes).is_ok()
        }) == Some(true);
    // Room that is still mapped is not used again.
    if unmapped {
        AREAS.with(|areas| areas.retain(|area| area.start != at));
    }
    result
}

/// Zeroed memory in an area of its own, writable and not executable at first. Freed on drop.
#[derive(Debug)]
pub(crate) struct Area {
    start: u64,
    bytes: u64,
    /// Bytes that are mapped: all, once the area is made.
    mapped: u64,
}

impl Area {
    /// Allocates at least `bytes` bytes. `None` if there is no room or no memory.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let kernel = kernel_tables::kernel()?;
        let bytes = bytes.max(1).checked_next_multiple_of(kernel.page())?;
        let mut area = Self {
            start: keep(bytes)?,
            bytes,
            mapped: 0,
        };
        while area.mapped < bytes {
            area.map_more(kernel)?;
        }
        Some(area)
    }

    /// Maps a run of frames behind those that are mapped. `None` if there is no memory.
    fn map_more(&mut self, kernel: &Kernel) -> Option<()> {
        let page = kernel.page();
        let (first, count) = pages::allocate_run((self.bytes - self.mapped) / page).ok()?;
        let bytes = count * page;
        let start = VirtualAddress(self.start + self.mapped);
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        let mapped = pointer(first).and_then(|memory| {
            // SAFETY: the frames were just allocated, and the linear map shows them writable.
            unsafe { memory.write_bytes(0, bytes as usize) };
            kernel_tables::change(Flush::Now, |_, _, tree| {
                tree.map(start, first, bytes, attributes, Leaves::PAGES)?;
                walker::assume_visible(tree, start, bytes);
                Ok::<(), TableError>(())
            })
        });
        if matches!(mapped, Some(Ok(()))) {
            self.mapped += bytes;
            return Some(());
        }
        // Nothing is mapped there.
        pages::release(first, count);
        None
    }

    pub(crate) const fn start(&self) -> VirtualAddress {
        VirtualAddress(self.start)
    }

    /// Bytes of the whole pages.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory.
    ///
    /// # Safety
    ///
    /// No page of it was made read-only, and nothing else uses the memory while the slice lives.
    pub(crate) unsafe fn memory(&mut self) -> &mut [u8] {
        let start = core::ptr::with_exposed_provenance_mut(self.start as usize);
        // SAFETY: the area is mapped while this value lives; the caller answers for the rest.
        unsafe { core::slice::from_raw_parts_mut(start, self.bytes as usize) }
    }

    /// Calls `what` with the runs of frames that a part of the area consists of: the first address, the bytes.
    pub(crate) fn each_run(&self, part: Range<u64>, mut what: impl FnMut(PhysicalAddress, u64)) {
        let (mut at, end) = (self.start + part.start, self.start + part.end);
        while at < end {
            // Outside of the lock for `what`.
            let run = kernel_tables::look(|kernel, _, tree| run_at(kernel, tree, at..end));
            let Some(Some((first, bytes))) = run else {
                return;
            };
            what(first, bytes);
            at += bytes;
        }
    }

    /// Unmaps the first pages that are left and frees their frames. Returns the bytes, or `None` if the tables
    /// refuse.
    fn free_some(&self, at: u64, end: u64) -> Option<u64> {
        let mut runs = ArrayVec::<(PhysicalAddress, u64), MOST_AT_ONCE>::new();
        let bytes = kernel_tables::change(Flush::Now, |kernel, _, tree| {
            let mut bytes = 0;
            while at + bytes < end && !runs.is_full() {
                let (first, run) = run_at(kernel, tree, at + bytes..end)?;
                runs.push((first, run / kernel.page()));
                bytes += run;
            }
            walker::unmap(tree, VirtualAddress(at), bytes).ok()?;
            Some(bytes)
        });
        let bytes = bytes.flatten()?;
        // Every CPU has dropped the area's own mapping.
        for (first, count) in runs {
            pages::release(first, count);
        }
        Some(bytes)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let start = VirtualAddress(self.start);
        // Where the linear map has no page of the area that is read-only, this changes nothing.
        let shown = kernel_tables::change(Flush::Now, |kernel, state, tree| {
            alias(kernel, state, tree, (start, self.mapped), |_| true)
        });
        let (mut at, end) = (self.start, self.start + self.mapped);
        // Frames that are still mapped, or read-only, must not get another owner: they stay, and the count of
        // frames shows it.
        let mut sound = matches!(shown, Some(Ok(())));
        while sound && at < end {
            match self.free_some(at, end) {
                Some(bytes) => at += bytes,
                None => sound = false,
            }
        }
        if sound {
            AREAS.with(|areas| areas.retain(|area| area.start != self.start));
        }
        merge::merge_candidates();
    }
}

/// The frames at the start of a range of mapped pages, as far as they follow each other: the first address, the
/// bytes.
fn run_at(kernel: &Kernel, tree: &Tree<'_>, range: Range<u64>) -> Option<(PhysicalAddress, u64)> {
    let output = |at: u64| Some(tree.query(VirtualAddress(at))?.output.0);
    let first = output(range.start)?;
    let mut at = range.start + kernel.page();
    while at < range.end && output(at) == Some(first + (at - range.start)) {
        at += kernel.page();
    }
    Some((PhysicalAddress(first), at - range.start))
}

/// Makes the linear map's alias of each page writable or read-only, as `writable` decides by the permissions of the
/// page's own mapping. Pages that are so already are not touched, so no leaf is split that was not before.
fn alias(
    kernel: &Kernel,
    state: &mut TableState,
    tree: &mut Tree<'_>,
    (start, bytes): (VirtualAddress, u64),
    writable: impl Fn(&Permissions) -> bool,
) -> Result<(), LinearError> {
    if !kernel.changes_aliases {
        return Ok(());
    }
    let (mut at, end) = (start.0, start.0 + bytes);
    // Of pages that follow each other in the linear map and change alike: the first, the end, and the change.
    let mut run: Option<(u64, u64, bool)> = None;
    while at < end {
        let wanted = there(kernel, tree, at).filter(|(_, own, linear)| writable(own) != *linear);
        let wanted = wanted.map(|(linear, own, _)| (linear.0, writable(&own)));
        run = match (run, wanted) {
            (Some((first, behind, to)), Some((page, also))) if behind == page && to == also => {
                Some((first, behind + kernel.page(), to))
            }
            (before, wanted) => {
                change_alias(kernel, state, tree, before)?;
                wanted.map(|(page, to)| (page, page + kernel.page(), to))
            }
        };
        at += kernel.page();
    }
    change_alias(kernel, state, tree, run)
}

/// The address of a page in the linear map, the permissions of its own mapping, and whether the linear map shows it
/// writable.
fn there(kernel: &Kernel, tree: &Tree<'_>, at: u64) -> Option<(VirtualAddress, Permissions, bool)> {
    let own = tree.query(VirtualAddress(at))?;
    let linear = kernel.placement.virtual_address(own.output)?;
    let shown = tree.query(linear)?.attributes.permissions;
    Some((linear, own.attributes.permissions, shown.writable))
}

fn change_alias(
    kernel: &Kernel,
    state: &mut TableState,
    tree: &mut Tree<'_>,
    run: Option<(u64, u64, bool)>,
) -> Result<(), LinearError> {
    let Some((first, end, writable)) = run else {
        return Ok(());
    };
    let change = PermissionChange {
        writable: Some(writable),
        ..PermissionChange::NONE
    };
    let (start, bytes) = (VirtualAddress(first), end - first);
    tree.protect(start, bytes, change, Holes::Refuse)?;
    state.flush_deferred(tree, start, bytes);
    merge::note(kernel, state, start, bytes);
    Ok(())
}

/// Changes the permissions of an area's pages, and of their alias in the linear map. All of them, or none.
pub(super) fn protect(
    start: VirtualAddress,
    pages: u64,
    change: PermissionChange,
    refused: Option<Refused>,
) -> Result<(), LinearError> {
    kernel_tables::change(Flush::Now, |kernel, state, tree| {
        let bytes = pages.saturating_mul(kernel.page());
        let outside = LinearError::Outside {
            start: start.0,
            bytes,
        };
        let window = layout::vmalloc(image::start());
        let end = start.0.checked_add(bytes).filter(|end| *end <= window.end);
        let mut all = (start.0..end.ok_or(outside)?).step_by(kernel.page() as usize);
        if !start.0.is_multiple_of(kernel.page()) || all.any(|at| there(kernel, tree, at).is_none())
        {
            return Err(outside);
        }
        if bytes == 0 {
            return Ok(());
        }
        if let Some(refused) = refused
            && let Some(address) = first_refused(kernel, tree, start, bytes, refused)?
        {
            return Err(LinearError::WritableExecutable { address });
        }
        let range = (start, bytes);
        // The alias first: it may be part of larger leaves, which memory may be too short to split. The own
        // mapping then is as it was, and tells what the alias must be again; those leaves are split already.
        if let Some(writable) = change.writable
            && let Err(error) = alias(kernel, state, tree, range, |_| writable)
        {
            alias(kernel, state, tree, range, |own| own.writable)?;
            return Err(error);
        }
        // Each leaf is a page, so nothing is split.
        tree.protect(start, bytes, change, Holes::Refuse)?;
        walker::assume_visible(tree, start, bytes);
        Ok(())
    })
    .unwrap_or(Err(LinearError::TooEarly))
}
