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

/// The free frames of spans (first, count) as blocks, each as large as possible.
fn largest_blocks(
    spans: &[(u64, u64)],
    most: u32,
    is_free: impl Fn(u64) -> bool,
) -> Vec<(u64, u32)> {
    let mut blocks = Vec::new();
    for (first, count) in spans {
        let (mut at, end) = (*first, first + count);
        while at < end {
            let run_end = (at..end).find(|frame| !is_free(*frame)).unwrap_or(end);
            while at < run_end {
                let fits =
                    |order: &u32| at.is_multiple_of(1 << order) && at + (1 << order) <= run_end;
                let order = (0..=most).rev().find(fits).unwrap();
                blocks.push((at, order));
                at += 1 << order;
            }
            at += 1;
        }
    }
    blocks
}

/// An arbitrary permutation: steps of a prime.
fn shuffled<T: Copy>(of: &[T]) -> Vec<T> {
    let step = 1_000_003;
    assert_ne!(of.len() % step, 0);
    (0..of.len()).map(|i| of[i * step % of.len()]).collect()
}

/// Beside the frees that the random operations try.
#[test]
fn a_wrong_free_is_refused_with_the_reason_and_changes_nothing() {
    let mut memory = uninitialised(1024);
    let mut frames = filled(PageSize::K4, 0x1000, 512, &mut memory);
    let block = frames.allocate(4).unwrap();
    let before = (free_blocks(&frames), frames.allocated());
    let too_large = |order| FrameError::OrderTooLarge { order, most: 22 };
    let last = Frame(u64::MAX);
    for (count, (frame, order, error)) in (1..).zip([
        (block, 23, too_large(23)),
        (block, u32::MAX, too_large(u32::MAX)),
        (last, 0, FrameError::OutsideSpans(last)),
        // Untouched metadata, in a block that was never split.
        (Frame(0x11fe), 0, FrameError::AlreadyFree(Frame(0x11fe))),
    ]) {
        assert_eq!(frames.free(frame, order), Err(error));
        assert_eq!(frames.refused(), count);
        assert_eq!((free_blocks(&frames), frames.allocated()), before);
    }
    frames.free(block, 4).unwrap();
    // A second time, after everything was merged.
    let twice = Err(FrameError::AlreadyFree(block));
    assert_eq!(frames.free(block, 4), twice);
    assert_eq!(free_blocks(&frames), [(0x1000, 9)]);
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
        let given = Err(FrameError::AlreadyGiven(Frame(first)));
        assert_eq!(
            frames.add_range(Frame(start), count),
            given,
            "{start} {count}"
        );
        assert_eq!(free_blocks(&frames), before);
        assert_eq!(frames.total(), 4097);
    }
    let overflow = Err(FrameError::OutsideSpans(Frame(33)));
    assert_eq!(frames.add_range(Frame(33), u64::MAX), overflow);
    assert_eq!(frames.add_range(Frame(0), 0), Ok(()));
    for (start, count) in [(0, 1024), (5120, 13_880), (19_001, 999)] {
        assert_eq!(frames.add_range(Frame(start), count), Ok(()));
    }
    frames.free(allocated, 10).unwrap();
    let merged = [
        (0, 14),
        (16_384, 11),
        (18_432, 10),
        (19_456, 9),
        (19_968, 5),
    ];
    assert_eq!(free_blocks(&frames), merged);
}
