//! The choice of spans for the pieces of RAM.

use super::{MAX_BLOCK_SHIFT, MOST_SPANS, PHYSICAL_BITS};
use arrayvec::ArrayVec;
use granule::arch::PageSize;
use granule_boot::memblock::Region;

/// The spans that get metadata of their own, start and end. Starts from the pieces, cuts those that have more frames
/// than a span can have, and joins neighbours across ever larger holes until the spans are few enough. RAM beyond
/// the last span is in none: there are more than 128 times 16 TiB.
pub fn spans(
    pieces: impl Iterator<Item = Region> + Clone,
    page_size: PageSize,
) -> ArrayVec<(u64, u64), MOST_SPANS> {
    // A cut at a multiple of the largest block costs no block.
    let block = 1_u64 << MAX_BLOCK_SHIFT;
    let most = u64::from(u32::MAX) << page_size.shift() & !(block - 1);
    let mut hole = 0;
    loop {
        let mut spans = ArrayVec::<(u64, u64), MOST_SPANS>::new();
        let fits = pieces.clone().all(|piece| {
            let (mut start, end) = (piece.start(), piece.end());
            if let Some(last) = spans.last_mut()
                && start - last.1 <= hole
                && end - last.0 <= most
            {
                last.1 = end;
                return true;
            }
            while start < end {
                let cut = end.min((start + most) & !(block - 1));
                if spans.try_push((start, cut)).is_err() {
                    return false;
                }
                start = cut;
            }
            true
        });
        if fits || hole >> PHYSICAL_BITS != 0 {
            return spans;
        }
        hole = (hole * 2).max(crate::sizes::MAX.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule::arch::PageSize::{K4, K16, K64};

    const GIB: u64 = 1 << 30;
    const TIB: u64 = 1 << 40;

    /// The pieces are start and end. Every piece is in spans, and each span has fewer than 2^32 - 1 frames.
    fn of(pieces: &[(u64, u64)], size: PageSize) -> Vec<(u64, u64)> {
        let pieces = pieces
            .iter()
            .map(|(start, end)| Region::new(*start, *end).unwrap());
        let spans = spans(pieces.clone(), size);
        for (start, end) in &spans {
            assert!((1..u64::from(u32::MAX)).contains(&((end - start) >> size.shift())));
        }
        for piece in pieces {
            let inside = spans.iter().filter_map(|span| piece.inside(span.0, span.1));
            assert_eq!(inside.map(Region::len).sum::<u64>(), piece.len(), "{piece}");
        }
        spans.to_vec()
    }

    #[test]
    fn a_piece_with_too_many_frames_is_cut_at_a_multiple_of_the_largest_block() {
        let start = GIB;
        for (size, end, cuts) in [
            (K4, start + 15 * TIB, &[][..]),
            (K4, start + 16 * TIB, &[16 * TIB - 16 * GIB]),
            (K4, 33 * TIB, &[16 * TIB - 16 * GIB, 32 * TIB - 32 * GIB]),
            (K16, 65 * TIB, &[64 * TIB - 16 * GIB]),
            (K64, 255 * TIB, &[]),
        ] {
            let edges: Vec<_> = [start].iter().chain(cuts).chain([&end]).copied().collect();
            let expected: Vec<_> = edges.windows(2).map(|pair| (pair[0], pair[1])).collect();
            assert_eq!(of(&[(start, end)], size), expected, "{size}");
        }
    }

    #[test]
    fn neighbours_are_joined_until_there_are_few_enough_and_never_too_long_for_a_span() {
        let pieces = |count: u64, step: u64, bytes: u64| -> Vec<_> {
            (0..count).map(|n| (n * step, n * step + bytes)).collect()
        };
        assert_eq!(of(&pieces(128, 1 << 20, 1 << 16), K64).len(), 128);
        assert_eq!(of(&pieces(129, 1 << 20, 1 << 16), K64).len(), 1);
        // Each is too long to be joined, and two of them are cut.
        let long = [(0, 17 * TIB), (20 * TIB, 38 * TIB)];
        assert_eq!(of(&long, K4).len(), 4);
    }

    #[test]
    fn more_ram_than_all_spans_hold_is_left_over() {
        let all = Region::new(0, 1 << PHYSICAL_BITS).unwrap();
        assert_eq!(spans(core::iter::once(all), K4).len(), MOST_SPANS);
    }
}
