//! Where things go in the firmware's memory map: the image, to a free and aligned place, by chance or the lowest;
//! all else, to pages of its own.

use crate::sizes;
use granule_boot::efi::Descriptor;
use granule_boot::tree::Range;

/// The end of the addresses for an image: what every CPU reaches with every page size.
const END: u64 = 1 << 48;

/// Bytes and alignment of what the stub allocates: pages of the largest size. The kernel cannot use a page that it
/// shares with memory of firmware's, and the kernel's page size is not chosen yet.
pub const UNIT: u64 = sizes::MAX.bytes();

/// Returns the bytes to request of firmware, whose memory is aligned to less, so that [`UNIT`]s for
/// `bytes` bytes lie inside wherever it is. `None` if there are too many.
#[must_use]
pub const fn to_allocate(bytes: u64, alignment: u64) -> Option<u64> {
    // None is as much as one.
    let bytes = if bytes == 0 { 1 } else { bytes };
    match bytes.checked_next_multiple_of(UNIT) {
        Some(whole) => whole.checked_add(UNIT.saturating_sub(alignment)),
        None => None,
    }
}

/// Whether memory shares a page with memory that is kept, in a kernel with any page size.
pub fn shares_a_page(mut map: impl Iterator<Item = Descriptor>, range: Range) -> bool {
    let pages = range.outward(UNIT);
    map.any(|one| one.is_kept() && one.part_of(pages).is_some())
}

/// The first aligned place for `bytes` bytes in a region and the number of places, which are `align` bytes apart.
/// Address 0 is none, because a pointer to it is null.
fn places(region: &Descriptor, bytes: u64, align: u64) -> (u64, u64) {
    let none = (0, 0);
    let Some(range) = region.range().filter(|_| region.is_free()) else {
        return none;
    };
    let first = range.start.max(1).checked_next_multiple_of(align);
    let end = range.start.saturating_add(range.bytes).min(END);
    match (first, end.checked_sub(bytes)) {
        (Some(first), Some(last)) if first <= last => {
            let apart = last.saturating_sub(first).checked_div(align);
            (first, apart.unwrap_or_default().saturating_add(1))
        }
        _ => none,
    }
}

/// Chooses a place for `bytes` bytes at a multiple of `align`: with random bits one of all places, each as
/// likely as the others, else the lowest. `None` if there is none.
pub fn choose(
    regions: impl Iterator<Item = Descriptor> + Clone,
    bytes: u64,
    align: u64,
    random: Option<u64>,
) -> Option<u64> {
    let places = regions.map(|region| places(&region, bytes, align));
    let Some(random) = random else {
        let there = places.filter(|(_, count)| *count > 0);
        return there.map(|(first, _)| first).min();
    };
    let count = |sum: u64, (_, count): (u64, u64)| sum.saturating_add(count);
    let all = places.clone().fold(0, count);
    // The high half of the product is below `all`, and as even as 64 bits allow.
    let mut index = ((u128::from(random) * u128::from(all)) >> 64) as u64;
    for (first, count) in places {
        if index < count {
            return Some(first.wrapping_add(index.wrapping_mul(align)));
        }
        index = index.wrapping_sub(count);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;
    const ALIGN: u64 = 2 * MIB;
    const FREE: u32 = 7;
    const WRITE_BACK: u64 = 1 << 3;
    const SPECIAL_PURPOSE: u64 = 1 << 18;

    fn region(kind: u32, start: u64, bytes: u64) -> Descriptor {
        Descriptor {
            kind,
            start,
            virtual_start: 0,
            pages: bytes >> 12,
            attributes: WRITE_BACK,
        }
    }

    fn free(start: u64, bytes: u64) -> Descriptor {
        region(FREE, start, bytes)
    }

    fn lowest(regions: &[Descriptor], bytes: u64) -> Option<u64> {
        choose(regions.iter().copied(), bytes, ALIGN, None)
    }

    #[test]
    fn the_lowest_place_fits_and_is_free() {
        let regions = [
            free(8 * MIB, 8 * MIB),
            region(4, 0, 4 * MIB),
            free(4 * MIB + 0x1000, 3 * MIB),
            free(1 << 48, 64 * MIB),
        ];
        assert_eq!(lowest(&regions, MIB), Some(6 * MIB));
        assert_eq!(lowest(&regions, MIB + 1), Some(6 * MIB));
        assert_eq!(lowest(&regions, 2 * MIB), Some(8 * MIB));
        assert_eq!(lowest(&regions, 8 * MIB), Some(8 * MIB));
        assert_eq!(lowest(&regions, 8 * MIB + 1), None);
        assert_eq!(lowest(&[free(0, 4 * MIB)], MIB), Some(2 * MIB));
        assert_eq!(lowest(&[free(0, 2 * MIB)], MIB), None);
        let mut special = free(0, 8 * MIB);
        special.attributes |= SPECIAL_PURPOSE;
        let mut device = free(0, 8 * MIB);
        device.attributes = 1;
        assert_eq!(lowest(&[special, device], MIB), None);
        let endless = free((u64::MAX - MIB) & !0xfff, u64::MAX);
        assert_eq!(lowest(&[endless], MIB), None);
    }

    #[test]
    fn by_chance_every_place_is_as_likely() {
        let regions = [
            free(4 * MIB, 8 * MIB),
            region(0, 12 * MIB, 4 * MIB),
            free(16 * MIB, 2 * MIB),
        ];
        let mut seen = BTreeMap::new();
        for step in 0..500_u64 {
            let random = step * (u64::MAX / 500) + u64::MAX / 1000;
            let place = choose(regions.into_iter(), 2 * MIB, ALIGN, Some(random));
            *seen.entry(place.unwrap()).or_insert(0) += 1;
        }
        let even = [4, 6, 8, 10, 16].map(|at| (at * MIB, 100));
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), even);
        let last = choose(regions.into_iter(), 2 * MIB, ALIGN, Some(u64::MAX));
        assert_eq!(last, Some(16 * MIB));
        assert_eq!(choose(regions.into_iter(), 9 * MIB, ALIGN, Some(7)), None);
    }

    #[test]
    fn memory_is_kept_by_its_owner_only() {
        let kept: Vec<_> = (0..17)
            .filter(|kind| region(*kind, 0, 1).is_kept())
            .collect();
        assert_eq!(kept, [0, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert!(region(0x8000_0000, 0, 1).is_kept());
        let part = |start, bytes| {
            let part = free(0x1000, 0x2000).part_of(Range { start, bytes })?;
            Some((part.start, part.bytes))
        };
        assert_eq!(part(0, 0x1000), None);
        assert_eq!(part(0, 0x1800), Some((0x1000, 0x800)));
        assert_eq!(part(0x2000, u64::MAX), Some((0x2000, 0x1000)));
        assert_eq!(part(0x3000, 1), None);
    }

    #[test]
    fn what_is_allocated_has_pages_of_its_own() {
        for bytes in [0, 1, 4096, UNIT - 1, UNIT, UNIT + 1, 100 * UNIT] {
            let whole = bytes.max(1).next_multiple_of(UNIT);
            for start in (0..40).map(|page| page << 12) {
                let end = start + to_allocate(bytes, 4096).unwrap();
                let fits = start.next_multiple_of(UNIT) + whole <= end;
                assert!(fits, "{bytes} at {start:#x}");
            }
        }
        assert_eq!(to_allocate(u64::MAX, 4096), None);
        // An initramfs beside what firmware keeps: with pages of 64K it would be lost.
        let kept = region(6, 0x4803_1000, 0x1000);
        let (before, behind) = (free(0x4000_0000, 0x100_0000), free(0x4803_2000, 0x10_0000));
        let map = [before, kept, behind];
        let shares = |start, bytes| shares_a_page(map.into_iter(), Range { start, bytes });
        assert!(shares(0x4803_2000, 0x1_0000));
        assert!(shares(0x4802_0000, 0x1_0001));
        assert!(!shares(0x4802_0000, 0x1_0000));
        assert!(!shares(0x4804_0000, 0x8000));
    }

    fn maps() -> impl Strategy<Value = Vec<Descriptor>> {
        let kind = prop_oneof![3 => Just(FREE), 1 => 0..16_u32];
        let one = (kind, 1..20_000_u64, any::<bool>());
        // Neighbours in any order, in pages of 4K, as firmware's maps of hundreds of regions are.
        proptest::collection::vec(one, 0..600).prop_map(|all| {
            let mut at = 0x4000_0000;
            let mut map: Vec<_> = all
                .into_iter()
                .map(|(kind, pages, write_back)| {
                    let start = at;
                    at += pages << 12;
                    Descriptor {
                        attributes: if write_back { WRITE_BACK } else { 0 },
                        ..region(kind, start, pages << 12)
                    }
                })
                .collect();
            map.reverse();
            map
        })
    }

    proptest! {
        #[test]
        fn a_place_is_aligned_and_inside_one_free_region(
            map in maps(),
            bytes in 1..32 * MIB,
            random: Option<u64>,
        ) {
            let inside = |place: u64| {
                let fits = |it: &&Descriptor| it.start <= place && place + bytes <= it.start + (it.pages << 12);
                map.iter().filter(|it| it.is_free()).any(|it| fits(&it))
            };
            match choose(map.iter().copied(), bytes, ALIGN, random) {
                Some(place) => prop_assert!(place % ALIGN == 0 && inside(place), "{place:#x}"),
                None => {
                    let any = map.iter().any(|it| inside(it.start.next_multiple_of(ALIGN)));
                    prop_assert!(!any);
                }
            }
        }
    }
}
