//! The bytes that one boot stores for the next: the number of boots, and the figures of the linear
//! map. Each part has a stamp. A reader uses the stamp to refuse decayed bytes, and bytes that mean
//! something else under another page size. The kernel's `persist` chooses the RAM.

use crate::devicetree::memory::Memory;
use crate::trace::area::pair;
use core::ops::Range;
use granule::arch::{Geometry, PageSize};
use granule::linear::LeafStats;
use granule_boot::stamp::{self, Stamp, StampError, StampKind, Units};

/// The number of boots, which does not depend on a page size.
const BOOTS: StampKind = *b"gr-boots";
/// The linear map's figures: numbers of leaves and tables of one page size.
const FIGURES: StampKind = *b"gr-lmap\0";

/// The most bytes of either part, with its stamp.
const PART: usize = 256;
/// Bytes of RAM that are used.
pub const BYTES: usize = 2 * PART;

/// The range that the value of `granule.persist=` names, or the text of what was expected.
pub fn range(value: &[u8]) -> Result<Range<u64>, &'static str> {
    let Some((start, bytes)) = pair(value) else {
        return Err("START,BYTES as two hexadecimal numbers, such as 0x4f000000,0x1000");
    };
    if start % 8 != 0 || bytes < BYTES as u64 {
        return Err("a multiple of 8, and at least 0x200 bytes");
    }
    match start.checked_add(bytes) {
        Some(end) => Ok(start..end),
        None => Err("a range that ends within 64 bits"),
    }
}

/// Checks that the range is mapped RAM that nothing else uses.
pub fn is_usable(range: &Range<u64>, memory: &Memory) -> Result<(), &'static str> {
    let banks = memory.banks().iter();
    if !banks
        .clone()
        .any(|bank| bank.start() <= range.start && range.end <= bank.end())
    {
        return Err("it does not lie in RAM that is used");
    }
    let mut taken = memory.reserved().iter().chain(memory.no_map());
    if taken.any(|one| one.start() < range.end && range.start < one.end()) {
        return Err("something else lies there");
    }
    Ok(())
}

/// The figures of a linear map, by which a later boot recognises an identical one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    bytes: [u8; PART - stamp::BYTES],
    used: usize,
}

impl Figures {
    /// The figures of a linear map with that geometry.
    pub fn of(geometry: &Geometry, stats: &LeafStats) -> Self {
        let head = [
            u64::from(geometry.va_bits()),
            geometry.format() as u64,
            stats.bytes,
            stats.tables,
        ];
        let leaves = stats
            .leaves()
            .flat_map(|(size, count)| [size.bytes | u64::from(size.contiguous), count]);
        let mut bytes = [0; PART - stamp::BYTES];
        let mut used = 0;
        // A page size has at most seven kinds of leaf, so they fit.
        for (to, word) in bytes
            .chunks_exact_mut(8)
            .zip(head.into_iter().chain(leaves))
        {
            to.copy_from_slice(&word.to_le_bytes());
            used += 8;
        }
        Self { bytes, used }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

/// The data that the last boot left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Boots with this RAM, the present one included.
    pub boots: u64,
    /// The page size of the last boot, if its stamp can be read.
    pub last: Result<PageSize, StampError>,
    /// Whether the linear map is the same as in the last boot, if its figures can be read.
    pub same_map: Result<bool, StampError>,
}

/// Reads the data that the last boot left in `area`, and stores the present boot's.
pub fn exchange(area: &mut [u8], running: PageSize, figures: &Figures) -> Left {
    let Some((boots, map)) = area.split_at_mut_checked(PART) else {
        let error = StampError::Truncated {
            needed: BYTES as u64,
            found: area.len() as u64,
        };
        return Left {
            boots: 1,
            last: Err(error),
            same_map: Err(error),
        };
    };
    let counted = Stamp::open(boots, BOOTS).and_then(|(stamp, data)| {
        stamp.check(running)?;
        let count = <[u8; 8]>::try_from(data).map_err(|_| StampError::Corrupted {
            what: "count of boots",
        })?;
        Ok((stamp.page_size(), u64::from_le_bytes(count)))
    });
    let same_map = Stamp::open(map, FIGURES).and_then(|(stamp, data)| {
        stamp.check(running)?;
        Ok(data == figures.bytes())
    });
    let before = counted.map_or(0, |(_, count)| count);
    let left = Left {
        boots: before.saturating_add(1),
        last: counted.map(|(size, _)| size),
        same_map,
    };
    leave(
        boots,
        BOOTS,
        Units::Bytes,
        running,
        &left.boots.to_le_bytes(),
    );
    leave(map, FIGURES, Units::Pages, running, figures.bytes());
    left
}

/// Stores `data` behind its stamp.
fn leave(part: &mut [u8], kind: StampKind, units: Units, running: PageSize, data: &[u8]) {
    let stamp = Stamp::new(kind, units, running, data).to_bytes();
    for (to, from) in part.iter_mut().zip(stamp.iter().chain(data)) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PageSize::{K4, K16, K64};
    use granule::arch::{CpuFeatures, PhysicalAddress, Regime, VaRange};
    use granule::table::Piece;

    fn figures(size: PageSize, ram: u64) -> Figures {
        let cpu = CpuFeatures {
            mmfr0: 0x0010_0005,
            ..CpuFeatures::NONE
        };
        let geometry = Geometry::new(&cpu, size, 48, VaRange::Upper, Regime::El1And0).unwrap();
        let piece = Piece {
            start: geometry.base(),
            output: PhysicalAddress(0x4000_0000),
            bytes: ram,
            attributes: granule::arch::Attributes::normal(granule::arch::Permissions::READ_WRITE),
            leaves: granule::table::Leaves::LARGEST,
        };
        Figures::of(&geometry, &LeafStats::new(&geometry, &[piece]))
    }

    #[test]
    fn boots_are_counted_under_every_page_size_and_maps_compared_under_their_own() {
        let mut area = [0xa5; BYTES + 100];
        let mut boot = |size, ram| exchange(&mut area, size, &figures(size, ram));
        let first = boot(K4, 1 << 30);
        assert_eq!(first.boots, 1);
        assert_eq!(first.last, Err(StampError::NoStamp));
        assert_eq!(first.same_map, Err(StampError::NoStamp));
        let again = boot(K4, 1 << 30);
        assert_eq!((again.boots, again.last), (2, Ok(K4)));
        assert_eq!(again.same_map, Ok(true));
        assert_eq!(boot(K4, 2 << 30).same_map, Ok(false));
        // Under another page size the count is understood and the map is refused.
        let other = boot(K64, 2 << 30);
        assert_eq!((other.boots, other.last), (4, Ok(K4)));
        let (written, running) = (K4, K64);
        let refused = StampError::OtherPageSize { written, running };
        assert_eq!(other.same_map, Err(refused));
        assert_eq!(boot(K64, 2 << 30).same_map, Ok(true));
        assert_eq!(boot(K16, 2 << 30).last, Ok(K64));
    }

    #[test]
    fn decayed_bytes_are_not_believed() {
        let good = {
            let mut area = [0; BYTES];
            exchange(&mut area, K4, &figures(K4, 1 << 30));
            area
        };
        for at in 0..BYTES {
            let mut area = good;
            area[at] ^= 0x10;
            let left = exchange(&mut area, K4, &figures(K4, 1 << 30));
            // The bytes behind the stored data may be anything.
            let used = |part: usize, data: usize| part..part + stamp::BYTES + data;
            let data = figures(K4, 1 << 30).used;
            assert_eq!(left.last.is_err(), used(0, 8).contains(&at), "{at}");
            let in_map = used(PART, data).contains(&at);
            assert_eq!(left.same_map.is_err(), in_map, "{at}");
            assert_eq!(left.boots, if left.last.is_err() { 1 } else { 2 });
            let again = exchange(&mut area, K4, &figures(K4, 1 << 30));
            assert_eq!(again.same_map, Ok(true));
        }
        let short = exchange(&mut [0; 10], K4, &figures(K4, 1 << 30));
        assert!(short.last.is_err());
    }

    #[test]
    fn the_word_and_the_place_are_checked() {
        assert_eq!(range(b"0x4f000000,0x1000"), Ok(0x4f00_0000..0x4f00_1000));
        for value in [
            &b"0x4f000000"[..],
            b"",
            b"1,2",
            b"0x4f000000,0x1000,",
            b"0x4f000001,0x1000",
            b"0x4f000000,0x1ff",
            b"0xfffffffffffffff8,0x1000",
        ] {
            assert!(range(value).is_err(), "{}", value.escape_ascii());
        }
        let mut memory = Memory::new(K4);
        memory.add_bank(0x4000_0000, 0x1000_0000).unwrap();
        memory.reserve(0x4100_0000, 1).unwrap();
        memory.mark_no_map(0x4200_0000, 0x1000).unwrap();
        let usable = |start: u64| is_usable(&(start..start + 0x1000), &memory).is_ok();
        assert!(usable(0x4000_0000) && usable(0x4fff_f000) && usable(0x40ff_f000));
        assert!(!usable(0x4fff_f001) && !usable(0x3fff_ffff));
        assert!(!usable(0x4100_0000) && !usable(0x40ff_f001) && !usable(0x4200_0800));
    }
}
