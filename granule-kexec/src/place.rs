//! Where segments are put: the lowest place that is free, and what the arm64 boot protocol says of
//! places. Whether segments can be where they are is [`segment`](super::segment)'s.

use super::layout::UNIT;
use super::segment::{Extent, Ground, Refusal, Segment, is_ram};

/// Any address.
pub const ANYWHERE: Extent = Extent::new(0, u64::MAX);

/// Bytes that a device tree may have, and of the blocks in which a kernel may map it, as normal memory,
/// before it knows what memory there is: so whatever else is in them must be such.
pub const TREE_BLOCK: u64 = 2 << 20;

/// A kernel maps its image and its initramfs in one window that begins at a multiple of 1 GiB.
const WINDOW: u64 = 32 << 30;
const WINDOW_ALIGN: u64 = 1 << 30;

/// Where an initramfs may be for an image at `image`.
#[must_use]
pub const fn near(image: &Extent) -> Extent {
    // Below it: the window that ends behind it. Above it: the window that begins before it.
    let end = image.start.saturating_add(image.bytes);
    let start = match end.checked_next_multiple_of(WINDOW_ALIGN) {
        Some(end) => end.saturating_sub(WINDOW),
        // Its last multiple is 2^64.
        None => WINDOW.wrapping_neg(),
    };
    let end = (image.start & !(WINDOW_ALIGN - 1)).saturating_add(WINDOW);
    Extent::new(start, end.saturating_sub(start))
}

/// Whether image, initramfs and device tree are where the boot protocol lets them be, each of which
/// could be there by itself. `unmapped` is RAM that must not be mapped.
///
/// # Errors
///
/// [`Refusal::Far`], [`Refusal::Long`] and [`Refusal::Block`].
pub fn check_boot(
    image: &Segment<'_>,
    initramfs: Option<&Segment<'_>>,
    tree: &Segment<'_>,
    ground: &Ground<'_>,
    unmapped: &[Extent],
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
    let block = Extent::new(start, bytes);
    if unmapped.iter().any(|it| it.overlaps(&block)) || !is_ram(&block, ground.ram) {
        return Err(Refusal::Block {
            segment: tree.name,
            place: tree.place(),
            block,
        });
    }
    Ok(())
}

/// The lowest address in `within`, a multiple of `align` plus `offset`, at which `memory` bytes of RAM
/// are neither reserved, nor kept, nor a place of `taken`, up to the end of `within`. `align` is a power
/// of two.
///
/// Who wants to have nothing to copy asks first with all memory in use among what is reserved.
///
/// # Errors
///
/// [`Refusal::TooBig`].
pub fn find_place(
    segment: &'static str,
    memory: u64,
    (align, offset): (u64, u64),
    within: &Extent,
    taken: &[Segment<'_>],
    ground: &Ground<'_>,
) -> Result<u64, Refusal> {
    let align = align.max(ground.page.bytes()).max(UNIT);
    let mut longest = 0;
    let mut best: Option<u64> = None;
    // A lowest place begins where a bank does, or behind something that is taken.
    let starts = ground.ram.iter().map(|bank| Some(bank.start));
    let behind = ground.reserved.iter().chain(ground.kept).map(Extent::end);
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
        let free = free_from(start, taken, ground).min(end.saturating_sub(start));
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

/// How many bytes from an address on are RAM that nothing is in.
fn free_from(start: u64, taken: &[Segment<'_>], ground: &Ground<'_>) -> u64 {
    let mut end = start;
    // Banks may touch each other.
    while let Some(bank) = ground
        .ram
        .iter()
        .find(|bank| bank.start <= end && bank.end().is_some_and(|last| end < last))
    {
        end = bank.end().unwrap_or(end);
    }
    let places = taken.iter().map(Segment::place);
    for one in ground
        .reserved
        .iter()
        .chain(ground.kept)
        .copied()
        .chain(places)
    {
        if one.overlaps(&Extent::new(start, end - start)) {
            end = one.start.max(start);
        }
    }
    end - start
}
