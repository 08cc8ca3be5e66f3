//! The largest machines and blocks, the metadata that a boot touches, and bad spans.

#![allow(unsafe_code, reason = "reads the metadata")]

use super::*;

const GIB_SHIFT: u32 = 30;

#[test]
fn the_largest_block_is_16_gib_with_any_page_size() {
    for page_size in PageSize::ALL {
        assert_eq!(
            page_size.bytes() << max_order(page_size),
            16 << GIB_SHIFT,
            "{page_size}"
        );
        assert!(max_order(page_size) < span::ORDERS as u32);
    }
}

/// 512 GiB from 1 GiB on: blocks of 1, 2, 4 and 8 GiB, 31 of 16 GiB, and 1 GiB at the end.
const BLOCKS_OF_512_GIB: u64 = 4 + 31 + 1;

#[test]
#[cfg_attr(miri, ignore = "Miri writes the gigabytes that the host only reserves")]
fn giving_in_512_gib_touches_one_chunk_a_block() {
    for page_size in PageSize::ALL {
        let gib = 1u64 << (GIB_SHIFT - page_size.shift());
        let (first, count) = (gib, 512 * gib);
        let mut memory = uninitialised(count);
        let mut frames = filled(page_size, first, count, &mut memory);
        assert_eq!(free_blocks(&frames).len() as u64, BLOCKS_OF_512_GIB);
        let chunk = u64::from(CHUNK_ENTRIES);
        assert_eq!(frames.touched(), BLOCKS_OF_512_GIB * chunk, "{page_size}");
        assert_eq!(frames.free_frames(), count);

        // The first page splits the first block of 1 GiB. It touches a chunk for each half of at least
        // a chunk; the first chunk is touched already.
        let initial = free_blocks(&frames);
        let page = frames.allocate(0).unwrap();
        let halves = u64::from(GIB_SHIFT - page_size.shift() - CHUNK_ENTRIES.ilog2());
        let touched = (BLOCKS_OF_512_GIB + halves) * chunk;
        assert_eq!(frames.touched(), touched, "{page_size}");
        frames.free(page, 0).unwrap();
        assert_eq!(free_blocks(&frames), initial);
        assert_eq!(frames.touched(), touched, "{page_size}");
    }
}

#[test]
fn metadata_that_was_not_touched_keeps_its_content() {
    // Words that read as free, of order 0.
    const POISON: u32 = 1;
    let count = 1u64 << 12;
    let words = metadata_words(count) as usize;
    let mut memory = vec![Word::new(POISON); words];
    {
        let mut frames = filled(PageSize::K4, 1 << 12, count, &mut memory);
        assert_eq!(free_blocks(&frames), [(1 << 12, 12)]);
        assert_eq!(frames.touched(), 256);
        let block = frames.allocate(10).unwrap();
        // The halves of 2048 and 1024 frames that remain after the split.
        assert_eq!(frames.touched(), 3 * 256);
        frames.free(block, 10).unwrap();
        // A lookup in untouched metadata does not touch it.
        let inside = Frame((1 << 12) + 1000);
        assert!(frames.free(inside, 0).is_err());
        assert!(frames.add_range(Frame(1 << 12), count).is_err());
        assert_eq!(frames.touched(), 3 * 256);
    }
    let bits = words - 3 * count as usize;
    let touched = |word: &Word| {
        // SAFETY: the memory was initialised when it was made.
        let word = unsafe { word.assume_init() };
        word != POISON
    };
    let entries = memory[bits..].chunks_exact(3);
    let changed = entries.filter(|entry| entry.iter().all(touched)).count();
    assert_eq!(changed, 3 * 256);
}

#[test]
#[cfg_attr(miri, ignore = "Miri writes the gigabytes that the host only reserves")]
fn the_largest_blocks_are_allocated_split_and_never_joined() {
    for page_size in PageSize::ALL {
        let order = max_order(page_size);
        let block = 1u64 << order;
        // Starts a page late and ends a page early.
        let (first, count) = (block + 1, 6 * block - 2);
        let mut memory = uninitialised(count);
        let mut frames = filled(page_size, first, count, &mut memory);
        let initial = free_blocks(&frames);
        assert_eq!(frames.allocate(order + 1), None);
        assert_eq!(frames.allocate(u32::MAX), None);
        let blocks: Vec<_> = core::iter::from_fn(|| frames.allocate(order)).collect();
        assert_eq!(blocks.len(), 4, "{page_size}");
        for frame in &blocks {
            assert_eq!(frame.0 % block, 0);
        }
        for frame in &blocks {
            frames.free(*frame, order).unwrap();
        }
        assert_eq!(free_blocks(&frames), initial);

        // Splits down to single frames and back, through every order.
        let mut taken = Vec::new();
        for order in (0..order).rev() {
            taken.push((frames.allocate(order).unwrap(), order));
        }
        for (frame, order) in shuffled(&taken) {
            frames.free(frame, order).unwrap();
        }
        assert_eq!(free_blocks(&frames), initial);
        assert_eq!(frames.allocated(), 0);
    }
}

#[test]
fn spans_that_cannot_be_managed_are_refused() {
    for page_size in PageSize::ALL {
        let mut frames = Frames::new(page_size);
        let end = 1u64 << (52 - page_size.shift());
        for (first, count) in [
            (0, 0),
            (0, u64::from(u32::MAX)),
            (0, 1 << 32),
            (0, u64::MAX),
            (end, 1),
            (end - 1, 2),
            (u64::MAX, 2),
        ] {
            let first = Frame(first);
            let bad = Err(FrameError::BadSpan(first, count));
            assert_eq!(frames.add_span(first, count, &mut []), bad);
        }
        let mut memory = uninitialised(10);
        let (needed, given) = (34, 31);
        let small = Err(FrameError::MetadataTooSmall { needed, given });
        assert_eq!(frames.add_span(Frame(0), 11, &mut memory), small);
        assert_eq!(metadata_bytes(11), 34 * 4);
        // The last frame number.
        let mut memory = uninitialised(1);
        frames.add_span(Frame(end - 1), 1, &mut memory).unwrap();
        frames.add_range(Frame(end - 1), 1).unwrap();
        let last = frames.allocate(0).unwrap();
        let address = last.address(page_size);
        assert_eq!(address.0, (1 << 52) - page_size.bytes());
        assert_eq!(Frame::containing(address, page_size), last);
        for (first, count) in [(end - 1, 1), (end - 3, 3)] {
            assert_eq!(
                frames.add_span(Frame(first), count, &mut []),
                Err(FrameError::SpansOverlap(Frame(first), Frame(end - 1)))
            );
        }
        // A bank added later may lie before the others.
        let mut memory = uninitialised(2);
        frames.add_span(Frame(end - 3), 2, &mut memory).unwrap();
        frames.add_range(Frame(end - 3), 2).unwrap();
        assert_eq!(frames.free_frames(), 2);
    }
}

#[test]
fn there_is_room_for_so_many_spans_and_each_is_found() {
    let mut memories: Vec<_> = (0..=MOST_SPANS).map(|_| uninitialised(4)).collect();
    let mut frames = Frames::new(PageSize::K4);
    let mut refused = None;
    for (at, memory) in (0u64..).zip(&mut memories) {
        refused = frames.add_span(Frame(at * 12), 4, memory).err();
    }
    let first = Frame(MOST_SPANS as u64 * 12);
    assert_eq!(refused, Some(FrameError::TooManySpans(first)));
    for at in 0..MOST_SPANS as u64 {
        frames.add_range(Frame(at * 12), 4).unwrap();
        let outside = Frame(at * 12 + 4);
        assert_eq!(
            frames.free(outside, 0),
            Err(FrameError::OutsideSpans(outside))
        );
    }
    let all: Vec<_> = core::iter::from_fn(|| frames.allocate(2)).collect();
    assert_eq!(all.len(), MOST_SPANS);
    for frame in all {
        frames.free(frame, 2).unwrap();
    }
    assert_eq!(frames.free_frames(), 4 * MOST_SPANS as u64);
}

#[test]
fn each_refusal_is_one_line_that_names_the_frame() {
    let frame = Frame(0xabc);
    let (order, first, count) = (3, frame, 7);
    for error in [
        FrameError::BadSpan(first, count),
        FrameError::SpansOverlap(first, Frame(0xdef)),
        FrameError::InUse {
            frame,
            allocated: true,
        },
        FrameError::TooManySpans(first),
        FrameError::OutsideSpans(frame),
        FrameError::AlreadyGiven(frame),
        FrameError::Misaligned(frame, order),
        FrameError::NotGiven(frame),
        FrameError::AlreadyFree(frame),
        FrameError::OtherBlock {
            frame,
            order,
            head: Frame(0xab8),
            allocated: 4,
        },
    ] {
        let line = error.to_string();
        assert!(line.contains("frame 0xabc"), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }
}
