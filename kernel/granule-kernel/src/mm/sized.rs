//! Memory in pages of any size, for programs whose page size may be another than the kernel's. Pages of the
//! kernel's size are frames of [`pages`]. Smaller ones are pieces of frames, which are subdivided on demand; a
//! larger one is an aligned run of frames, each with one owner, that are shared and released together.
//!
//! The lock of the pieces is taken before that of [`pages`]. It masks interrupts as that one does.
//!
//! A frame is subdivided when a piece is wanted and no subdivided frame has room, and goes back with its last
//! piece, so sharing and releasing need no memory, and a boot that has no smaller programs pays nothing.
//! (With pages of 64K kernel stacks are pieces, whatever the programs'.) If there is no free run for a larger
//! page, memory is exhausted. A program of the kernel's page size has its pages without this module:
//! `task::space_environment` chooses by type, when the space is made. Table pages are few, so there is one
//! allocator of them ([`sized_tables`](super::sized_tables)), and one copy in the image of what changes
//! tables for programs of a page size.

#![allow(
    unsafe_code,
    reason = "records of subdivided frames, through the linear map"
)]

use super::hook::refuses_allocation;
use super::kernel_tables;
use super::pages::{self, Counted, Pages, notify_allocated, notify_freed};
use crate::lock::Lock;
use granule::arch::{PageSize, PhysicalAddress};
use granule_kcore::frames::subdivide::{PieceRecord, Pieces, RecordAt, Store, UNIT_SHIFT};
use granule_kcore::frames::tables::Source;
use granule_kcore::frames::{Frame, Frames};

/// The frames of [`Pages`], and records through the linear map.
struct KernelStore {
    /// From a physical address to its place in the linear map.
    distance: u64,
}

impl Source for KernelStore {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        Pages.with(what)
    }
}

impl Store for KernelStore {
    fn record(&mut self, at: RecordAt) -> &mut PieceRecord {
        let address = at.address().0.wrapping_add(self.distance) as usize;
        let record = core::ptr::with_exposed_provenance_mut::<PieceRecord>(address);
        // SAFETY: only `granule_kcore::frames::subdivide` makes the place of a record, in a frame that it
        // allocated for records; no two records overlap, and one is lent at a time. The linear map shows the frame
        // writable, and a record is made of integers, which may hold anything.
        unsafe { &mut *record }
    }

    fn allocated(&mut self, first: PhysicalAddress, bytes: u64) {
        notify_allocated(first, bytes);
    }

    fn freed(&mut self, first: PhysicalAddress, bytes: u64) {
        notify_freed(first, bytes);
    }
}

/// `None` until a piece is wanted.
static PIECES: Lock<Option<Pieces<KernelStore>>> = Lock::new(None);

/// The placement of pages of a size in the kernel's frames.
#[derive(Clone, Copy)]
enum Fit {
    /// A page is a frame.
    Frame,
    /// A page is a piece of this order.
    Piece(u32),
    /// A page is a run of `2^order` frames.
    Run(u32),
}

fn fit(size: PageSize) -> Fit {
    let kernel = kernel_tables::kernel().map_or(size, |kernel| kernel.geometry.page_size());
    if size == kernel {
        Fit::Frame
    } else if size < kernel {
        Fit::Piece(size.shift() - UNIT_SHIFT)
    } else {
        Fit::Run(size.shift() - kernel.shift())
    }
}

/// Calls `what` with the pieces; `None` before the kernel's tables are known.
fn with_pieces<R>(what: impl FnOnce(&mut Pieces<KernelStore>) -> R) -> Option<R> {
    let kernel = kernel_tables::kernel()?;
    PIECES.with(|pieces| {
        let pieces = pieces.get_or_insert_with(|| {
            let distance = kernel.placement.distance();
            Pieces::new(KernelStore { distance }, kernel.geometry.page_size())
        });
        Some(what(pieces))
    })
}

/// As [`with_pieces`], for an allocation, which a test may refuse.
fn allocate_piece(
    what: impl FnOnce(&mut Pieces<KernelStore>) -> Option<PhysicalAddress>,
) -> Option<PhysicalAddress> {
    if refuses_allocation() {
        return None;
    }
    with_pieces(what).flatten()
}

/// Allocates `2^order` single frames by `first`, which allocates the first of them, or none.
fn allocate_frames(
    order: u32,
    first: impl FnOnce(&mut Frames<'_>) -> Option<Frame>,
) -> Option<PhysicalAddress> {
    if refuses_allocation() {
        return None;
    }
    let (first, size) = Pages.with(|frames| {
        let first = first(frames)?;
        for number in 1..1 << order {
            if !frames.allocate_exact(Frame(first.0 + number)) {
                // These were just allocated.
                let _ = frames.release(first, number, |_, _| ());
                return None;
            }
        }
        Some((first, frames.page_size()))
    })?;
    let address = first.address(size);
    notify_allocated(address, size.bytes() << order);
    Some(address)
}

/// Allocates a page with one owner; `None` if there is none. The content may be anything.
#[inline(never)]
pub(crate) fn allocate_one(size: PageSize) -> Option<PhysicalAddress> {
    allocate_run(size, 1)
}

/// Allocates the page at `address`, if all of it is free.
#[inline(never)]
pub(crate) fn allocate_exactly(
    size: PageSize,
    address: PhysicalAddress,
) -> Option<PhysicalAddress> {
    match fit(size) {
        Fit::Frame => pages::allocate_exactly(address),
        Fit::Piece(order) => {
            allocate_piece(|pieces| pieces.allocate_exactly(address, order).then_some(address))
        }
        Fit::Run(order) => allocate_frames(order, |frames| {
            let first = Frame::containing(address, frames.page_size());
            frames.allocate_exact(first).then_some(first)
        }),
    }
}

/// Allocates one page of a free group: number `index` of `count` pages. The group begins at a multiple of its
/// size, and `count` is a power of two.
#[inline(never)]
pub(crate) fn allocate_in_group(size: PageSize, count: u64, index: u64) -> Option<PhysicalAddress> {
    let group = count.checked_ilog2()?;
    match fit(size) {
        Fit::Frame => pages::allocate_in_group(count, index),
        Fit::Piece(order) => allocate_piece(|pieces| pieces.allocate_in_group(group, index, order)),
        Fit::Run(order) => allocate_frames(order, |frames| {
            frames.allocate_in_group(group + order, index << order)
        }),
    }
}

/// Allocates `count` pages, a power of two, that follow each other and are aligned to their bytes, each with one
/// owner. `None` if there is no such run.
#[inline(never)]
pub(crate) fn allocate_run(size: PageSize, count: u64) -> Option<PhysicalAddress> {
    let run = count.checked_ilog2()?;
    match fit(size) {
        Fit::Frame => pages::allocate_singles(count),
        Fit::Piece(order) => allocate_piece(|pieces| pieces.allocate_run(run, order)),
        Fit::Run(order) => pages::allocate_singles(count << order),
    }
}

/// Most pieces that are shared or released under one taking of the lock, because interrupts wait for it.
const MOST_AT_ONCE: u64 = 512;

/// Calls `what` with parts of the `count` pieces of `size` from `first`. Parts end at multiples of
/// [`MOST_AT_ONCE`], so that the frames freed in one part follow each other.
fn in_parts(
    size: PageSize,
    first: PhysicalAddress,
    count: u64,
    what: impl Fn(&mut Pieces<KernelStore>, PhysicalAddress, u64),
) {
    let (mut at, mut left) = (first, count);
    while left > 0 {
        let part = (MOST_AT_ONCE - (at.0 >> size.shift()) % MOST_AT_ONCE).min(left);
        with_pieces(|pieces| what(pieces, at, part));
        at.0 += part << size.shift();
        left -= part;
    }
}

/// Adds one owner to each of `count` pages from `first`.
#[inline(never)]
pub(crate) fn share(size: PageSize, first: PhysicalAddress, count: u64) {
    match fit(size) {
        Fit::Frame => pages::share(first, count),
        Fit::Run(order) => pages::share(first, count << order),
        Fit::Piece(order) => in_parts(size, first, count, |pieces, first, count| {
            // The pieces count the calls that they refuse.
            let _ = pieces.share(first, count, order);
        }),
    }
}

/// Removes one owner from each of `count` pages from `first`.
#[inline(never)]
pub(crate) fn release(size: PageSize, first: PhysicalAddress, count: u64) {
    match fit(size) {
        Fit::Frame => pages::release(first, count),
        Fit::Run(order) => pages::release(first, count << order),
        Fit::Piece(order) => in_parts(size, first, count, |pieces, first, count| {
            // The pieces count the calls that they refuse.
            let _ = pieces.release(first, count, order);
        }),
    }
}

/// Whether a page has more than one owner, and for how many pages from `first` the same answer holds: at most
/// `count`, and at most as many as one taking of the lock examines.
#[inline(never)]
pub(crate) fn sharing(size: PageSize, first: PhysicalAddress, count: u64) -> (bool, u64) {
    match fit(size) {
        Fit::Frame => pages::sharing(first, count),
        Fit::Run(order) => {
            // The frames of a page have the same owners, so its first one answers for it.
            let (shared, alike) = pages::sharing(first, count << order);
            (shared, alike.div_ceil(1 << order))
        }
        Fit::Piece(order) => {
            let count = count.min(MOST_AT_ONCE);
            with_pieces(|pieces| pieces.sharing(first, count, order)).unwrap_or((false, 1))
        }
    }
}

/// Whether the frame at `address` is subdivided.
pub(crate) fn is_in_piece(address: PhysicalAddress) -> bool {
    Pages.with(|frames| frames.is_subdivided(Frame::containing(address, frames.page_size())))
}

/// Bytes of RAM that are free, those in subdivided frames included.
pub(crate) fn free_bytes() -> u64 {
    // Under the lock, so that no frame is subdivided or given back in between.
    PIECES.with(|pieces| {
        let units = pieces
            .as_ref()
            .map_or(0, |pieces| pieces.counted().free_units);
        let frames = Pages.with(|frames| frames.free_frames() << frames.page_size().shift());
        frames + (units << UNIT_SHIFT)
    })
}

/// As [`pages::counted`], with the calls about pieces that were refused.
pub(crate) fn counted() -> Counted {
    let refused =
        PIECES.with(|pieces| pieces.as_ref().map_or(0, |pieces| pieces.counted().refused));
    let counted = pages::counted();
    Counted {
        refused: counted.refused + refused,
        ..counted
    }
}
