//! Random operations, compared with a model: a set of free frames and a map of allocated blocks.

use super::*;
use granule_testing::cases::config;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Give in frames at a place among all spans' frames; may be refused.
    Add {
        place: usize,
        count: u64,
    },
    Allocate {
        order: u32,
    },
    /// Free an allocated block with its order.
    Free {
        which: usize,
    },
    /// Free anything at a place; may be refused.
    FreeAt {
        place: usize,
        order: u32,
    },
    Reserve {
        count: u64,
    },
    Unreserve {
        count: u64,
    },
    TakeReserved {
        most: u64,
    },
    /// Take out frames at a place; may be refused.
    TakeOut {
        place: usize,
        count: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let place = any::<usize>;
    prop_oneof![
        2 => (place(), 0u64..300).prop_map(|(place, count)| Op::Add { place, count }),
        6 => prop_oneof![4 => 0u32..4, 1 => 0u32..10, 1 => 18u32..25]
            .prop_map(|order| Op::Allocate { order }),
        6 => place().prop_map(|which| Op::Free { which }),
        2 => (place(), 0u32..6).prop_map(|(place, order)| Op::FreeAt { place, order }),
        1 => (0u64..200).prop_map(|count| Op::Reserve { count }),
        1 => (0u64..50).prop_map(|count| Op::Unreserve { count }),
        1 => (0u64..70).prop_map(|most| Op::TakeReserved { most }),
        2 => (place(), prop_oneof![0u64..20, 0u64..300])
            .prop_map(|(place, count)| Op::TakeOut { place, count }),
    ]
}

/// Spans as (first, count), ascending, some without a gap.
fn spans() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![
        Just(0u64),
        0u64..40,
        (0u64..10).prop_map(|shift| 1 << shift)
    ];
    // The model is slow in Miri; two chunks of metadata are enough for it.
    let most = if cfg!(miri) { 300u64 } else { 900 };
    let count = prop_oneof![1u64..100, 1..most, Just(most / 256 * 256)];
    (
        prop_oneof![Just(0u64), 0u64..5000, Just((1u64 << 36) - 5000)],
        prop::collection::vec((gap, count), 1..4),
    )
        .prop_map(|(mut at, spans)| {
            let mut placed = Vec::new();
            for (gap, count) in spans {
                placed.push((at + gap, count));
                at += gap + count;
            }
            placed
        })
}

struct Model {
    most: u32,
    spans: Vec<(u64, u64)>,
    free: BTreeSet<u64>,
    allocated: BTreeMap<u64, u32>,
    reserved: u64,
    refused: u64,
}

impl Model {
    fn span_of(&self, frame: u64) -> Option<(u64, u64)> {
        self.spans
            .iter()
            .copied()
            .find(|(first, count)| (*first..first + count).contains(&frame))
    }

    /// The allocated block that holds `frame`.
    fn block_of(&self, frame: u64) -> Option<(u64, u32)> {
        let (head, order) = self.allocated.range(..=frame).next_back()?;
        (frame < head + (1 << order)).then_some((*head, *order))
    }

    /// The free frames as blocks, each as large as possible.
    fn blocks(&self) -> Vec<(u64, u32)> {
        largest_blocks(&self.spans, self.most, |frame| self.free.contains(&frame))
    }

    fn unreserved(&self) -> u64 {
        self.free.len() as u64 - self.reserved
    }

    /// Records the allocation of a block of `order` at `frame`, and checks that it was the best fit.
    fn allocate(&mut self, frame: u64, order: u32) {
        let blocks = self.blocks();
        let from = blocks
            .iter()
            .find(|(head, order)| (*head..head + (1 << order)).contains(&frame))
            .unwrap();
        let best = blocks.iter().filter(|(_, at)| *at >= order).map(|b| b.1);
        assert_eq!(Some(from.1), best.min());
        assert_eq!(frame % (1 << order), 0);
        for frame in frame..frame + (1 << order) {
            assert!(self.free.remove(&frame));
        }
    }

    fn add(&mut self, start: u64, count: u64) -> Result<(), FrameError> {
        let mut given = None;
        for frame in start..start + count {
            if self.span_of(frame).is_none() {
                // An error of an earlier frame comes first, because the allocator checks span by span.
                return Err(given.unwrap_or(FrameError::OutsideSpans(Frame(frame))));
            }
            let known = self.free.contains(&frame) || self.block_of(frame).is_some();
            if known && given.is_none() {
                given = Some(FrameError::AlreadyGiven(Frame(frame)));
            }
        }
        match given {
            Some(error) => Err(error),
            None => {
                self.free.extend(start..start + count);
                Ok(())
            }
        }
    }

    fn take_out(&mut self, start: u64, count: u64) -> Result<(), FrameError> {
        for number in start..start + count {
            let frame = Frame(number);
            if self.span_of(number).is_none() {
                return Err(FrameError::OutsideSpans(frame));
            }
            if !self.free.contains(&number) {
                let allocated = self.block_of(number).is_some();
                return Err(FrameError::InUse { frame, allocated });
            }
        }
        let unreserved = self.unreserved();
        if count > unreserved {
            return Err(FrameError::SetAside { count, unreserved });
        }
        for number in start..start + count {
            self.free.remove(&number);
        }
        Ok(())
    }

    fn free(&mut self, number: u64, order: u32) -> Result<(), FrameError> {
        let frame = Frame(number);
        if self.span_of(number).is_none() {
            return Err(FrameError::OutsideSpans(frame));
        }
        if !number.is_multiple_of(1 << order) {
            return Err(FrameError::Misaligned(frame, order));
        }
        if self.free.contains(&number) {
            return Err(FrameError::AlreadyFree(frame));
        }
        match self.block_of(number) {
            None => Err(FrameError::NotGiven(frame)),
            Some((head, allocated)) if (head, allocated) == (number, order) => {
                self.allocated.remove(&head);
                self.free.extend(number..number + (1 << order));
                Ok(())
            }
            Some((head, allocated)) => Err(FrameError::OtherBlock {
                frame,
                order,
                head: Frame(head),
                allocated,
            }),
        }
    }

    /// The frame at a place among the spans, with one frame around each.
    fn at(&self, place: usize) -> u64 {
        let all: u64 = self.spans.iter().map(|(_, count)| count + 2).sum();
        let mut place = place as u64 % all;
        for (first, count) in &self.spans {
            if place < count + 2 {
                return (first + place).saturating_sub(1);
            }
            place -= count + 2;
        }
        unreachable!("the place is among them")
    }
}

/// Applies `op` to both, and compares the results.
fn step(op: Op, frames: &mut Frames<'_>, model: &mut Model) {
    match op {
        Op::Add { place, count } => {
            let start = model.at(place);
            assert_eq!(
                frames.add_range(Frame(start), count),
                model.add(start, count)
            );
        }
        Op::Allocate { order } => {
            let possible = order <= model.most
                && model.unreserved() >= 1 << order
                && model.blocks().iter().any(|(_, at)| *at >= order);
            let got = frames.allocate(order);
            assert_eq!(got.is_some(), possible);
            if let Some(frame) = got {
                model.allocate(frame.0, order);
                model.allocated.insert(frame.0, order);
            }
        }
        Op::Free { which } => {
            let count = model.allocated.len().max(1);
            let block = model.allocated.iter().nth(which % count);
            if let Some((&head, &order)) = block {
                assert_eq!(frames.free(Frame(head), order), Ok(()));
                assert_eq!(model.free(head, order), Ok(()));
            }
        }
        Op::FreeAt { place, order } => {
            let number = model.at(place);
            let freed = model.free(number, order);
            assert_eq!(frames.free(Frame(number), order), freed);
            model.refused += u64::from(freed.is_err());
        }
        Op::Reserve { count } => {
            let possible = model.unreserved() >= count;
            assert_eq!(frames.reserve(count), possible);
            if possible {
                model.reserved += count;
            }
        }
        Op::Unreserve { count } => {
            frames.unreserve(count);
            model.reserved = model.reserved.saturating_sub(count);
        }
        Op::TakeOut { place, count } => {
            let start = model.at(place);
            assert_eq!(
                frames.take_out(Frame(start), count),
                model.take_out(start, count)
            );
        }
        Op::TakeReserved { most } => {
            let largest = model.blocks().iter().map(|(_, order)| 1 << order).max();
            let got = frames.take_reserved(most);
            assert_eq!(got.is_some(), most.min(model.reserved) > 0);
            if let Some((Frame(first), count)) = got {
                // The run is as long as powers of two and the free blocks allow.
                assert!(count.is_power_of_two() && count <= most.min(model.reserved));
                assert!(2 * count > most.min(model.reserved) || Some(count) == largest);
                model.allocate(first, count.ilog2());
                model
                    .allocated
                    .extend((first..first + count).map(|at| (at, 0)));
                model.reserved -= count;
            }
        }
    }
}

/// Checks that all visible state is the same, and that every free block is as large as possible.
fn compare(frames: &Frames<'_>, model: &Model) {
    let allocated: u64 = model.allocated.values().map(|order| 1u64 << order).sum();
    assert_eq!(frames.allocated(), allocated);
    assert_eq!(frames.free_frames(), model.free.len() as u64);
    assert_eq!(frames.total(), allocated + model.free.len() as u64);
    assert_eq!(frames.reserved(), model.reserved);
    assert_eq!(frames.refused(), model.refused);
    assert_eq!(free_blocks(frames), model.blocks());
    let mut listed = Vec::new();
    frames.each_free(|frame, order| listed.push((frame.0, order)));
    listed.sort_unstable();
    assert_eq!(listed, model.blocks());
    for (first, count) in &model.spans {
        for number in [*first, first + count / 2, first + count - 1] {
            let (frame, free) = (Frame(number), model.free.contains(&number));
            assert_eq!(frames.is_free(frame), free);
            let given = free || model.block_of(number).is_some();
            assert_eq!(frames.is_given(frame), given);
        }
        assert_eq!(frames.have_room_for(Frame(*first), *count), Some(true));
    }
}

fn run(page_size: PageSize, spans: Vec<(u64, u64)>, fill: bool, content: Option<u32>, ops: &[Op]) {
    let mut memories: Vec<_> = spans
        .iter()
        .map(|(_, count)| {
            let mut memory = uninitialised(*count);
            if let Some(word) = content {
                memory.fill(Word::new(word));
            }
            memory
        })
        .collect();
    let mut frames = Frames::new(page_size);
    // Any order works: here the second half backwards, then the first.
    let half = spans.len() / 2;
    let (early, late) = memories.split_at_mut(half);
    let late = spans[half..].iter().zip(late).rev();
    for ((first, count), memory) in late.chain(spans[..half].iter().zip(early)) {
        frames.add_span(Frame(*first), *count, memory).unwrap();
    }
    let mut model = Model {
        most: max_order(page_size),
        spans: spans.clone(),
        free: BTreeSet::new(),
        allocated: BTreeMap::new(),
        reserved: 0,
        refused: 0,
    };
    if fill {
        for (first, count) in spans {
            frames.add_range(Frame(first), count).unwrap();
            model.add(first, count).unwrap();
        }
    }
    for op in ops {
        step(*op, &mut frames, &mut model);
        // Miri checks the allocator's reads; the comparison would take it minutes.
        if !cfg!(miri) {
            compare(&frames, &model);
        }
    }
    while !model.allocated.is_empty() {
        step(Op::Free { which: ops.len() }, &mut frames, &mut model);
    }
    compare(&frames, &model);
    assert_eq!(frames.allocated(), 0);
}

proptest! {
    #![proptest_config(config(400, 1))]

    #[test]
    fn the_allocator_does_as_the_model(
        page_size in prop::sample::select(&PageSize::ALL[..]),
        spans in spans(),
        fill in any::<bool>(),
        // Uninitialised, or words that mean free or allocated of order 0 or 3.
        content in prop::sample::select(&[None, Some(1), Some(2), Some(0x301), Some(0x302)][..]),
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 6 } else { 120 }),
    ) {
        run(page_size, spans, fill, content, &ops);
    }
}
