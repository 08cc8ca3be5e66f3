//! Tests of the whole allocator, on host memory for metadata that starts uninitialised, or full of
//! words that look like entries.

// Shuttle switches stacks in assembly, which Miri does not run.
#[cfg(not(miri))]
mod interleaved;
mod limits;
mod model;
mod owners;
mod tables;

use super::metadata::{CHUNK_ENTRIES, metadata_bytes};
use super::*;

/// Metadata memory for so many frames.
fn uninitialised(frames: u64) -> Box<[Word]> {
    Box::<[u32]>::new_uninit_slice(metadata_words(frames) as usize)
}

/// All free blocks, ascending; panics if a list is inconsistent.
fn free_blocks(frames: &Frames<'_>) -> Vec<(u64, u32)> {
    frames.spans().iter().flat_map(Span::free_blocks).collect()
}

/// An allocator with one span of `count` frames from `first`, all given in.
fn filled(page_size: PageSize, first: u64, count: u64, memory: &mut [Word]) -> Frames<'_> {
    let mut frames = Frames::new(page_size);
    frames.add_span(Frame(first), count, memory).unwrap();
    frames.add_range(Frame(first), count).unwrap();
    frames
}

/// An arbitrary permutation: steps of a prime.
fn shuffled<T: Copy>(of: &[T]) -> Vec<T> {
    let step = 1_000_003;
    assert_ne!(of.len() % step, 0);
    (0..of.len()).map(|i| of[i * step % of.len()]).collect()
}

#[test]
fn every_frame_is_given_once_and_all_come_back() {
    for page_size in PageSize::ALL {
        // The same accesses with each size, and minutes under Miri.
        if cfg!(miri) && page_size != PageSize::K4 {
            continue;
        }
        let (first, count) = (0x4_0003, 300);
        let mut memory = uninitialised(count);
        let mut frames = filled(page_size, first, count, &mut memory);
        let initial = free_blocks(&frames);
        for order in [3, 1, 0].into_iter().take(if cfg!(miri) { 1 } else { 3 }) {
            let mut blocks = Vec::new();
            while let Some(frame) = frames.allocate(order) {
                assert_eq!(frame.0 % (1 << order), 0);
                blocks.push(frame);
            }
            // The odd ends contain no aligned block.
            let expected = ((first + count) >> order) - ((first - 1) >> order) - 1;
            assert_eq!(blocks.len() as u64, expected, "order {order}");
            assert_eq!(frames.allocated(), expected << order);
            assert_eq!(frames.free_frames(), count - (expected << order));
            let mut sorted = blocks.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), blocks.len());
            assert!(first <= sorted[0].0);
            assert!(sorted[sorted.len() - 1].0 + (1 << order) <= first + count);

            for frame in shuffled(&blocks) {
                assert_eq!(frames.free(frame, order), Ok(()));
            }
            assert_eq!((frames.allocated(), frames.refused()), (0, 0));
            assert_eq!(free_blocks(&frames), initial);
        }
    }
}

#[test]
fn ranges_given_in_piece_by_piece_make_the_same_blocks_as_at_once() {
    let (first, count) = (5, 700);
    let mut memory = uninitialised(count);
    let whole = free_blocks(&filled(PageSize::K4, first, count, &mut memory));
    assert_eq!(
        whole,
        [
            (5, 0),
            (6, 1),
            (8, 3),
            (16, 4),
            (32, 5),
            (64, 6),
            (128, 7),
            (256, 8),
            (512, 7),
            (640, 6),
            (704, 0)
        ]
    );
    let mut memory = uninitialised(count);
    let mut frames = Frames::new(PageSize::K4);
    frames.add_span(Frame(first), count, &mut memory).unwrap();
    for (start, count) in [(17, 100), (300, 405), (5, 1), (6, 11), (117, 1), (118, 182)] {
        frames.add_range(Frame(start), count).unwrap();
    }
    assert_eq!(free_blocks(&frames), whole);
    assert_eq!(frames.total(), count);
}

#[test]
fn a_hole_is_never_given_out() {
    let mut memory = uninitialised(64);
    let mut frames = Frames::new(PageSize::K16);
    frames.add_span(Frame(64), 64, &mut memory).unwrap();
    frames.add_range(Frame(64), 20).unwrap();
    frames.add_range(Frame(85), 43).unwrap();
    assert_eq!(frames.allocate(6), None);
    let mut seen = Vec::new();
    while let Some(Frame(number)) = frames.allocate(0) {
        seen.push(number);
    }
    seen.sort_unstable();
    let expected: Vec<_> = (64..128).filter(|number| *number != 84).collect();
    assert_eq!(seen, expected);
    for number in seen {
        frames.free(Frame(number), 0).unwrap();
    }
    let hole = Frame(84);
    let not_given = Err(FrameError::NotGiven { frame: hole });
    assert_eq!(frames.free(hole, 0), not_given);
    // The last frame completes one block.
    frames.add_range(hole, 1).unwrap();
    assert_eq!(free_blocks(&frames), [(64, 6)]);
}

#[test]
fn a_wrong_free_is_refused_with_the_reason_and_changes_nothing() {
    let mut memory = uninitialised(1024);
    let mut frames = Frames::new(PageSize::K4);
    frames.add_span(Frame(0x1000), 1024, &mut memory).unwrap();
    frames.add_range(Frame(0x1000), 512).unwrap();
    let block = frames.allocate(4).unwrap();
    let page = frames.allocate(0).unwrap();
    let inside = Frame(block.0 + 5);
    let before = (free_blocks(&frames), frames.allocated());
    let other = |frame, order| FrameError::OtherBlock {
        frame,
        order,
        head: block,
        allocated: 4,
    };
    let wrong = [
        ((block, 3), other(block, 3)),
        ((block, 5), other(block, 5)),
        ((inside, 0), other(inside, 0)),
        (
            (inside, 4),
            FrameError::Misaligned {
                frame: inside,
                order: 4,
            },
        ),
        // Untouched metadata, in a block that was never split.
        (
            (Frame(0x11fe), 0),
            FrameError::AlreadyFree {
                frame: Frame(0x11fe),
            },
        ),
        (
            (Frame(0x13ff), 0),
            FrameError::NotGiven {
                frame: Frame(0x13ff),
            },
        ),
        (
            (Frame(0x1400), 0),
            FrameError::OutsideSpans {
                frame: Frame(0x1400),
            },
        ),
        (
            (Frame(0xfff), 0),
            FrameError::OutsideSpans {
                frame: Frame(0xfff),
            },
        ),
        (
            (Frame(u64::MAX), 0),
            FrameError::OutsideSpans {
                frame: Frame(u64::MAX),
            },
        ),
        (
            (block, 23),
            FrameError::OrderTooLarge {
                order: 23,
                most: 22,
            },
        ),
        (
            (block, u32::MAX),
            FrameError::OrderTooLarge {
                order: u32::MAX,
                most: 22,
            },
        ),
    ];
    for (count, ((frame, order), error)) in (1..).zip(wrong) {
        assert_eq!(frames.free(frame, order), Err(error));
        assert_eq!(frames.refused(), count);
        assert_eq!((free_blocks(&frames), frames.allocated()), before);
    }
    // Freed twice: while its buddy is allocated, and after everything was merged.
    frames.free(block, 4).unwrap();
    let twice = Err(FrameError::AlreadyFree { frame: block });
    assert_eq!(frames.free(block, 4), twice);
    frames.free(page, 0).unwrap();
    assert_eq!(frames.free(block, 4), twice);
    let twice = Err(FrameError::AlreadyFree { frame: page });
    assert_eq!(frames.free(page, 0), twice);
    assert_eq!(free_blocks(&frames), [(0x1000, 9)]);
    assert_eq!(frames.refused(), 11 + 3);
}

#[test]
fn a_frame_given_in_twice_is_refused_and_changes_nothing() {
    let mut memory = uninitialised(20_000);
    let mut frames = Frames::new(PageSize::K64);
    frames.add_span(Frame(0), 20_000, &mut memory).unwrap();
    frames.add_range(Frame(1024), 4096).unwrap();
    frames.add_range(Frame(19_000), 1).unwrap();
    let allocated = frames.allocate(10).unwrap();
    let before = free_blocks(&frames);
    for (start, count, first) in [
        (1024, 4096, 1024),
        (1024, 1, 1024),
        (allocated.0 + 1023, 1, allocated.0 + 1023),
        (5119, 2, 5119),
        (3333, 1, 3333),
        (0, 1025, 1024),
        (0, 20_000, 1024),
        (5120, 14_880, 19_000),
        (18_999, 2, 19_000),
    ] {
        assert_eq!(
            frames.add_range(Frame(start), count),
            Err(FrameError::AlreadyGiven {
                frame: Frame(first)
            }),
            "{start} {count}"
        );
        assert_eq!(free_blocks(&frames), before);
        assert_eq!(frames.total(), 4097);
    }
    assert_eq!(frames.add_range(Frame(0), 0), Ok(()));
    for (start, count) in [(0, 1024), (5120, 13_880), (19_001, 999)] {
        assert_eq!(frames.add_range(Frame(start), count), Ok(()));
    }
    frames.free(allocated, 10).unwrap();
    assert_eq!(
        free_blocks(&frames),
        [
            (0, 14),
            (16_384, 11),
            (18_432, 10),
            (19_456, 9),
            (19_968, 5)
        ]
    );
}

#[test]
fn neighbouring_spans_stay_apart_and_gaps_are_refused() {
    let (mut low, mut high, mut far) = (uninitialised(8), uninitialised(8), uninitialised(8));
    let mut frames = Frames::new(PageSize::K4);
    frames.add_span(Frame(0), 8, &mut low).unwrap();
    frames.add_span(Frame(8), 8, &mut high).unwrap();
    frames.add_span(Frame(32), 8, &mut far).unwrap();
    let gap = Err(FrameError::OutsideSpans { frame: Frame(16) });
    assert_eq!(frames.add_range(Frame(4), 13), gap);
    assert_eq!((frames.total(), free_blocks(&frames).len()), (0, 0));
    let overflow = Err(FrameError::OutsideSpans { frame: Frame(33) });
    assert_eq!(frames.add_range(Frame(33), u64::MAX), overflow);

    frames.add_range(Frame(4), 12).unwrap();
    frames.add_range(Frame(32), 1).unwrap();
    assert_eq!(free_blocks(&frames), [(4, 2), (8, 3), (32, 0)]);
    // Small blocks are used first, wherever they are; no large one is split without need.
    assert_eq!(frames.allocate(0), Some(Frame(32)));
    assert_eq!(frames.allocate(1), Some(Frame(4)));
    assert_eq!(frames.allocate(3), Some(Frame(8)));
    assert_eq!(frames.allocate(2), None);
    assert_eq!(frames.free_frames(), 2);
}
