//! Where the image goes: a free, aligned place in the firmware's memory map, by chance or the lowest.

/// A region of the firmware's memory map, as far as the stub looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The memory's type, a number of the UEFI specification.
    pub kind: u32,
    /// Physical address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The memory's attributes, bits of the UEFI specification.
    pub attributes: u64,
}

/// The types of memory that nobody keeps once the boot services have ended: code and data of loaders (1, 2)
/// and of boot services (3, 4), and free memory (7).
const UNKEPT: [u32; 5] = [1, 2, 3, 4, FREE];
/// Free memory, `EfiConventionalMemory`.
const FREE: u32 = 7;
/// The attributes of memory that can be mapped as Normal Write-Back, and of memory that is meant for special
/// purposes.
const WRITE_BACK: u64 = 1 << 3;
const SPECIAL_PURPOSE: u64 = 1 << 18;

/// The end of the addresses for an image: what every CPU reaches with every page size.
const END: u64 = 1 << 48;

impl Region {
    /// Whether the memory is ordinary RAM.
    #[must_use]
    pub const fn is_ordinary(&self) -> bool {
        self.attributes & WRITE_BACK != 0 && self.attributes & SPECIAL_PURPOSE == 0
    }

    /// Whether the memory is free, and ordinary RAM.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.kind == FREE && self.is_ordinary()
    }

    /// Whether its owner, the firmware or a device, keeps it after the boot services have ended.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !UNKEPT.contains(&self.kind)
    }

    /// The part of `start..start + bytes` that lies in the region: its first byte and its length, if there
    /// is one.
    #[must_use]
    pub fn part_of(&self, start: u64, bytes: u64) -> Option<(u64, u64)> {
        let first = self.start.max(start);
        let last = self.start.saturating_add(self.bytes);
        let end = last.min(start.saturating_add(bytes));
        (first < end).then(|| (first, end.saturating_sub(first)))
    }

    /// The first aligned place for `bytes` bytes and the number of places, which are `align` bytes apart.
    /// Address 0 is none, because a pointer to it is null.
    fn places(&self, bytes: u64, align: u64) -> (u64, u64) {
        let none = (0, 0);
        if !self.is_free() {
            return none;
        }
        let first = self.start.max(1).checked_next_multiple_of(align);
        let end = self.start.saturating_add(self.bytes).min(END);
        match (first, end.checked_sub(bytes)) {
            (Some(first), Some(last)) if first <= last => {
                let apart = last.saturating_sub(first).checked_div(align);
                (first, apart.unwrap_or_default().saturating_add(1))
            }
            _ => none,
        }
    }
}

/// Chooses a place for `bytes` bytes at a multiple of `align`: with random bits one of all places, each as
/// likely as the others, else the lowest. `None` if there is none.
pub fn choose(
    regions: impl Iterator<Item = Region> + Clone,
    bytes: u64,
    align: u64,
    random: Option<u64>,
) -> Option<u64> {
    let places = regions.map(|region| region.places(bytes, align));
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

    fn region(kind: u32, start: u64, bytes: u64) -> Region {
        Region {
            kind,
            start,
            bytes,
            attributes: WRITE_BACK,
        }
    }

    fn free(start: u64, bytes: u64) -> Region {
        region(FREE, start, bytes)
    }

    fn lowest(regions: &[Region], bytes: u64) -> Option<u64> {
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
        assert_eq!(lowest(&[free(u64::MAX - MIB, u64::MAX)], MIB), None);
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
        let part = |start, bytes| free(0x1000, 0x2000).part_of(start, bytes);
        assert_eq!(part(0, 0x1000), None);
        assert_eq!(part(0, 0x1800), Some((0x1000, 0x800)));
        assert_eq!(part(0x2000, u64::MAX), Some((0x2000, 0x1000)));
        assert_eq!(part(0x3000, 1), None);
    }

    fn maps() -> impl Strategy<Value = Vec<Region>> {
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
                    Region {
                        kind,
                        start,
                        bytes: pages << 12,
                        attributes: if write_back { WRITE_BACK } else { 0 },
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
                let fits = |it: &&Region| it.start <= place && place + bytes <= it.start + it.bytes;
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
