//! The choice of a segment's destination: the lowest free place, and the boot protocol's rules on
//! distances. The checks of chosen destinations belong to [`segment`](super::segment).

use super::layout::UNIT;
use super::segment::{MemoryMap, PhysRange, Refusal, Segment, is_ram};

/// Any address.
pub const ANYWHERE: PhysRange = PhysRange::new(0, u64::MAX);

/// The most bytes that a device tree may have, and the size of the blocks in which a kernel may map
/// the tree before it has read the memory map from it. The blocks are mapped as Normal memory, so
/// everything else in them must be Normal memory too.
pub const TREE_BLOCK: u64 = 2 << 20;

/// A kernel maps its image and its initramfs in one window that starts at a multiple of 1 GiB.
const WINDOW: u64 = 32 << 30;
const WINDOW_ALIGN: u64 = 1 << 30;

/// The window in which an initramfs may be for an image at `image`.
#[must_use]
pub const fn near(image: &PhysRange) -> PhysRange {
    // The lowest window ends after the image, the highest window begins before it.
    let end = image.start.saturating_add(image.bytes);
    let start = match end.checked_next_multiple_of(WINDOW_ALIGN) {
        Some(end) => end.saturating_sub(WINDOW),
        // The next multiple would be 2^64.
        None => WINDOW.wrapping_neg(),
    };
    let end = (image.start & !(WINDOW_ALIGN - 1)).saturating_add(WINDOW);
    PhysRange::new(start, end.saturating_sub(start))
}

/// Checks the distances and sizes that the boot protocol prescribes for image, initramfs and device
/// tree. Each of them has already passed [`check_places`](super::check_places). `unmapped` is RAM
/// that must not be mapped.
///
/// # Errors
///
/// Fails with [`Refusal::Far`], [`Refusal::Long`] and [`Refusal::Block`].
pub fn check_boot(
    image: &Segment<'_>,
    initramfs: Option<&Segment<'_>>,
    tree: &Segment<'_>,
    memory_map: &MemoryMap<'_>,
    unmapped: &[PhysRange],
) -> Result<(), Refusal> {
    let window = near(&image.place());
    if let Some(far) = initramfs.filter(|it| !window.holds(&it.place())) {
        return Err(Refusal::Far {
            segment: far.name,
            place: far.place(),
            window,
        });
    }
    if tree.bytes > TREE_BLOCK {
        return Err(Refusal::Long {
            segment: tree.name,
            bytes: tree.bytes,
            most: TREE_BLOCK,
        });
    }
    let start = tree.destination & !(TREE_BLOCK - 1);
    let end = tree.destination.saturating_add(tree.bytes);
    let bytes = (end - start).next_multiple_of(TREE_BLOCK);
    let block = PhysRange::new(start, bytes);
    if unmapped.iter().any(|it| it.overlaps(&block)) || !is_ram(&block, memory_map.ram) {
        return Err(Refusal::Block {
            segment: tree.name,
            place: tree.place(),
            block,
        });
    }
    Ok(())
}

/// The lowest address in `within`, a multiple of `align` plus `offset`, at which `memory` bytes of
/// RAM are neither reserved, nor kept, nor part of a destination in `taken`. All bytes lie in
/// `within`. `align` is a power of two.
///
/// To avoid copying, a caller first reserves all memory in use.
///
/// # Errors
///
/// Fails with [`Refusal::TooBig`].
pub fn find_place(
    segment: &'static str,
    memory: u64,
    (align, offset): (u64, u64),
    within: &PhysRange,
    taken: &[Segment<'_>],
    memory_map: &MemoryMap<'_>,
) -> Result<u64, Refusal> {
    let align = align.max(memory_map.page.bytes()).max(UNIT);
    let mut longest = 0;
    let mut best: Option<u64> = None;
    // The lowest free place begins at the start of a bank or directly behind something that is
    // taken.
    let starts = memory_map.ram.iter().map(|bank| Some(bank.start));
    let behind = memory_map
        .reserved
        .iter()
        .chain(memory_map.kept)
        .map(PhysRange::end);
    let places = taken.iter().map(|one| one.place().end());
    for start in starts.chain(behind).chain(places).flatten() {
        let start = start.max(within.start);
        let Some(start) = start
            .checked_sub(offset & (align - 1))
            .map_or(Some(0), |start| start.checked_next_multiple_of(align))
            .and_then(|start| start.checked_add(offset & (align - 1)))
        else {
            continue;
        };
        let end = within.start.saturating_add(within.bytes);
        let free = free_from(start, taken, memory_map).min(end.saturating_sub(start));
        longest = longest.max(free);
        if free >= memory && best.is_none_or(|best| start < best) {
            best = Some(start);
        }
    }
    best.ok_or(Refusal::TooBig {
        segment,
        memory,
        longest,
    })
}

/// Returns the bytes of free RAM from an address on.
fn free_from(start: u64, taken: &[Segment<'_>], memory_map: &MemoryMap<'_>) -> u64 {
    let mut end = start;
    // Adjacent banks count as one.
    while let Some(bank) = memory_map
        .ram
        .iter()
        .find(|bank| bank.start <= end && bank.end().is_some_and(|last| end < last))
    {
        end = bank.end().unwrap_or(end);
    }
    let places = taken.iter().map(Segment::place);
    for one in memory_map
        .reserved
        .iter()
        .chain(memory_map.kept)
        .copied()
        .chain(places)
    {
        if one.overlaps(&PhysRange::new(start, end - start)) {
            end = one.start.max(start);
        }
    }
    end - start
}
