//! The arguments of `kexec_load`: what is refused before any byte is read or any page taken, in the order of Linux.
//! Whether a place is RAM that may be written is for [`granule_kexec::check_places`].

use granule::arch::PageSize;
use granule_kexec::PhysRange;
use thiserror::Error;

/// The most segments of a next kernel, as in Linux.
pub const MOST_SEGMENTS: usize = 16;

/// The flag for a kernel that a panic starts.
pub const ON_CRASH: u64 = 1;
/// The flag of Linux by which programs may change a crash kernel's list of CPUs and memory. Here nothing changes
/// that list, so the flag has no effect.
const UPDATE_ELFCOREHDR: u64 = 4;

/// The architecture in bits 31:16 of the flags: the running one, or its ELF number, 183.
const ARCHITECTURES: [u64; 2] = [0, 0xb7_0000];

/// A segment as the program describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSegment {
    /// Address of the bytes in the program.
    pub from: u64,
    /// Number of these bytes.
    pub bytes: u64,
    /// Memory of the next kernel, which is zeroed behind the bytes.
    pub place: PhysRange,
}

impl UserSegment {
    /// Reads a segment in the order of its words.
    #[must_use]
    pub const fn from_words([from, bytes, start, memory]: [u64; 4]) -> Self {
        let place = PhysRange::new(start, memory);
        Self { from, bytes, place }
    }
}

/// Why segments are refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum SegmentsError {
    #[error(
        "kexec_load has flags {0:#x}: expected 0x1 (on crash), 0x4, both or none, and architecture 0 or 183 in bits 31:16"
    )]
    Flags(u64),
    #[error("kexec_load has {0} segments: expected at most {MOST_SEGMENTS}")]
    Count(u64),
    #[error(
        "segment{0} takes {bytes:#x} bytes at {start:#x}: expected multiples of this kernel's {2} page size, below 2^64",
        start = .1.start, bytes = .1.bytes
    )]
    Place(usize, PhysRange, PageSize),
    #[error("segment{0} overlaps segment{1}: expected places apart from each other")]
    Overlap(usize, usize),
    #[error("segment{0} has more bytes than memory: expected at least as much memory")]
    Bytes(usize),
    #[error("the segments take more than half of the {0:#x} bytes of RAM: take smaller ones")]
    Half(u64),
    #[error("the entry {0:#x} is in no segment: expected the address of an instruction there")]
    Entry(u64),
}

impl SegmentsError {
    /// Whether Linux returns EADDRNOTAVAIL for it, and not EINVAL.
    #[must_use]
    pub const fn is_about_addresses(&self) -> bool {
        matches!(self, Self::Place(..) | Self::Entry(_))
    }
}

/// Checks flags and number. Returns the number of segments, and whether the kernel is for a panic. Fails with
/// [`SegmentsError::Flags`] and [`SegmentsError::Count`].
pub fn check_call(flags: u64, count: u64) -> Result<(usize, bool), SegmentsError> {
    if !ARCHITECTURES.contains(&(flags & !(ON_CRASH | UPDATE_ELFCOREHDR))) {
        return Err(SegmentsError::Flags(flags));
    }
    match usize::try_from(count) {
        Ok(fits) if fits <= MOST_SEGMENTS => Ok((fits, flags & ON_CRASH != 0)),
        _ => Err(SegmentsError::Count(count)),
    }
}

/// Checks the segments of a kernel that begins at `entry`, on a machine with so many bytes of RAM. Fails with the
/// first of the errors that Linux has, then with [`SegmentsError::Entry`].
pub fn check_segments(
    segments: impl Iterator<Item = UserSegment> + Clone,
    entry: u64,
    page: PageSize,
    ram: u64,
) -> Result<(), SegmentsError> {
    let places = segments.clone().map(|it| it.place);
    for (index, place) in places.clone().enumerate() {
        let whole = (place.start | place.bytes) & (page.bytes() - 1) == 0;
        if !whole || place.end().is_none() {
            return Err(SegmentsError::Place(index, place, page));
        }
    }
    for (index, place) in places.clone().enumerate() {
        let mut before = places.clone().take(index);
        if let Some(other) = before.position(|other| other.overlaps(&place)) {
            return Err(SegmentsError::Overlap(index, other));
        }
    }
    if let Some(index) = segments.clone().position(|it| it.bytes > it.place.bytes) {
        return Err(SegmentsError::Bytes(index));
    }
    let all = places.clone().map(|place| place.bytes);
    if all.fold(0, u64::saturating_add) > ram / 2 {
        return Err(SegmentsError::Half(ram));
    }
    let instruction = PhysRange::new(entry, 4);
    if !places.clone().any(|place| place.holds(&instruction)) {
        return Err(SegmentsError::Entry(entry));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use PageSize::{K4, K16, K64};
    use granule_testing::cases::config;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const RAM: u64 = 1 << 30;

    #[test]
    fn flags_and_numbers_are_those_of_linux() {
        for (flags, crash) in [(0, false), (1, true), (4, false), (5, true)] {
            for arch in [0, 183 << 16] {
                for count in [0, 1, 16] {
                    let expected = Ok((count as usize, crash));
                    assert_eq!(check_call(flags | arch, count), expected);
                }
                for count in [17, 1 << 32, u64::MAX] {
                    let expected = Err(SegmentsError::Count(count));
                    assert_eq!(check_call(flags | arch, count), expected);
                }
            }
        }
        // Keeping the context, an unknown flag, other architectures, and bits above them.
        for flags in [
            2,
            3,
            8,
            0x8000,
            40 << 16,
            62 << 16,
            1 << 32,
            183 << 16 | 1 << 63,
        ] {
            assert_eq!(check_call(flags, 17), Err(SegmentsError::Flags(flags)));
        }
    }

    fn segment(bytes: u64, start: u64, memory: u64) -> UserSegment {
        UserSegment::from_words([0x1234, bytes, start, memory])
    }

    /// Two that are well, at 2 GiB, and a change to the second.
    fn with(second: UserSegment) -> [UserSegment; 2] {
        [segment(5, 0x8000_0000, 0x1_0000), second]
    }

    #[test]
    fn each_error_comes_in_the_order_of_linux() {
        let (mib, at) = (1 << 20, 0x8010_0000);
        let place =
            |start, bytes, page| SegmentsError::Place(1, PhysRange::new(start, bytes), page);
        for (page, second, error) in [
            (K64, segment(mib, at, mib), None),
            (K64, segment(0, at, mib), None),
            // Nothing at all, even inside of another, and one that ends where the other begins.
            (K64, segment(0, 0x8000_0000, 0), None),
            (K4, segment(1, 0x7fff_f000, 0x1000), None),
            (K4, segment(1, 0x8001_0000, 0x1000), None),
            (
                K16,
                segment(1, at + 0x1000, mib),
                Some(place(at + 0x1000, mib, K16)),
            ),
            (K4, segment(1, at + 8, mib), Some(place(at + 8, mib, K4))),
            (
                K64,
                segment(1, at, mib + 0x4000),
                Some(place(at, mib + 0x4000, K64)),
            ),
            (K4, segment(1, at, mib + 1), Some(place(at, mib + 1, K4))),
            // The end of both is beyond 64 bits.
            (
                K4,
                segment(1, u64::MAX << 12, 0x1000),
                Some(place(u64::MAX << 12, 0x1000, K4)),
            ),
            (
                K64,
                segment(1, at, u64::MAX << 16),
                Some(place(at, u64::MAX << 16, K64)),
            ),
            // With more bytes than memory, and too large, too.
            (
                K4,
                segment(2 * RAM, 0x8000_f000, RAM),
                Some(SegmentsError::Overlap(1, 0)),
            ),
            (
                K4,
                segment(1, 0x7fff_f000, 0x2000),
                Some(SegmentsError::Overlap(1, 0)),
            ),
            (K4, segment(2 * RAM, at, RAM), Some(SegmentsError::Bytes(1))),
            (K4, segment(mib + 1, at, mib), Some(SegmentsError::Bytes(1))),
            (K64, segment(1, at, RAM / 2 - 0x1_0000), None),
            (K64, segment(1, at, RAM / 2), Some(SegmentsError::Half(RAM))),
            (K4, segment(1, at, RAM), Some(SegmentsError::Half(RAM))),
        ] {
            let result = check_segments(with(second).into_iter(), 0x8000_0000, page, RAM);
            assert_eq!(result, error.map_or(Ok(()), Err), "{second:x?}");
            // The order of the segments does not matter for whether they are refused.
            let [a, b] = with(second);
            assert_eq!(
                check_segments([b, a].into_iter(), 0x8000_0000, page, RAM).is_err(),
                error.is_some()
            );
        }
    }

    #[test]
    fn the_entry_is_an_instruction_of_a_segment() {
        let segments = with(segment(0, 0x9000_0000, 0x1000));
        for (entry, is_well) in [
            (0x8000_0000, true),
            (0x8000_fffc, true),
            (0x9000_0ffc, true),
            (0x7fff_fffc, false),
            (0x8000_fffe, false),
            (0x8001_0000, false),
            (0x9000_1000, false),
            (0, false),
            (u64::MAX, false),
        ] {
            let error = SegmentsError::Entry(entry);
            let expected = if is_well { Ok(()) } else { Err(error) };
            assert_eq!(
                check_segments(segments.into_iter(), entry, K4, RAM),
                expected
            );
        }
        let entry = check_segments([].into_iter(), 0, K4, RAM);
        assert_eq!(entry, Err(SegmentsError::Entry(0)));
    }

    #[test]
    fn the_errors_of_addresses_are_named() {
        let place = SegmentsError::Place(0, PhysRange::default(), K4);
        for (error, addresses) in [
            (place, true),
            (SegmentsError::Entry(0), true),
            (SegmentsError::Flags(2), false),
            (SegmentsError::Count(17), false),
            (SegmentsError::Overlap(1, 0), false),
            (SegmentsError::Bytes(0), false),
            (SegmentsError::Half(1), false),
        ] {
            assert_eq!(error.is_about_addresses(), addresses, "{error}");
        }
    }

    /// The class of an error, by the order in which they are reported.
    fn class(result: Result<(), SegmentsError>) -> u32 {
        match result {
            Err(SegmentsError::Place(..)) => 0,
            Err(SegmentsError::Overlap(..)) => 1,
            Err(SegmentsError::Bytes(_)) => 2,
            Err(SegmentsError::Half(_)) => 3,
            Err(SegmentsError::Entry(_)) => 4,
            Ok(()) => 5,
            Err(other) => panic!("{other}"),
        }
    }

    proptest! {
        #![proptest_config(config(2000, 1))]

        /// In halves of pages, each in a set of what is taken.
        #[test]
        fn segments_are_judged_as_by_counting(
            page in prop::sample::select(&PageSize::ALL[..]),
            halves in any::<bool>(),
            parts in prop::collection::vec((0_u64..24, 0_u64..4, 0_u64..6), 1..5),
            ram in 0_u64..40,
            entry in 0_u64..24,
        ) {
            let half = page.bytes() / 2;
            // Half of the cases have whole pages only.
            let unit = if halves { 1 } else { 2 };
            let parts = parts.into_iter().map(|(at, memory, bytes)| (unit * at, unit * memory, bytes));
            let parts: Vec<_> = parts.collect();
            let segments = parts.iter().map(|(at, memory, bytes)| {
                UserSegment::from_words([0, bytes * half, at * half, memory * half])
            });
            let found = check_segments(segments, unit * entry * half, page, ram * half);
            let mut taken = BTreeSet::new();
            let cells = || parts.iter().flat_map(|(at, memory, _)| *at..at + memory);
            let expected = if parts.iter().any(|(at, memory, _)| at % 2 + memory % 2 != 0) {
                0
            } else if !cells().all(|cell| taken.insert(cell)) {
                1
            } else if parts.iter().any(|(_, memory, bytes)| bytes > memory) {
                2
            } else if 2 * cells().count() as u64 > ram {
                3
            } else if !taken.contains(&(unit * entry)) {
                4
            } else {
                5
            };
            prop_assert_eq!(class(found), expected);
        }
    }
}
