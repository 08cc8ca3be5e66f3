//! Frames with several owners, runs of single frames, and the resulting free blocks, each compared
//! with a map from frames to their numbers of owners.

use super::*;
use crate::frames::metadata::CHUNK_ENTRIES;
use granule_testing::cases::config;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Allocate a given frame, by place.
    Exactly { place: u64 },
    /// Allocate a frame of a free group.
    InGroup { order: u32, index: u64 },
    /// Allocate any single frame.
    Any,
    /// Allocate frames in one block.
    Singles { order: u32 },
    /// Share a run, by place; may be refused.
    Share { place: u64, count: u64 },
    /// Leave a frame to its other owners, by place; may do nothing.
    Leave { place: u64 },
    /// Release a run, by place; may be refused.
    Release { place: u64, count: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let count = || prop_oneof![4 => Just(1u64), 2 => 1u64..20, 1 => 1u64..300];
    prop_oneof![
        4 => any::<u64>().prop_map(|place| Op::Exactly { place }),
        3 => (0u32..9, any::<u64>())
            .prop_map(|(order, index)| Op::InGroup { order, index: index % (1 << order) }),
        4 => Just(Op::Any),
        3 => (0u32..9).prop_map(|order| Op::Singles { order }),
        4 => (any::<u64>(), count()).prop_map(|(place, count)| Op::Share { place, count }),
        2 => any::<u64>().prop_map(|place| Op::Leave { place }),
        5 => (any::<u64>(), count()).prop_map(|(place, count)| Op::Release { place, count }),
    ]
}

const FIRST: u64 = 0x1003;
const COUNT: u64 = 700;
/// The second span is adjacent, so that runs reach from one into the other.
const SECOND: u64 = 60;

/// The free frames as blocks, each as large as possible.
fn expected_blocks(owners: &BTreeMap<u64, u64>) -> Vec<(u64, u32)> {
    let spans = [(FIRST, COUNT), (FIRST + COUNT, SECOND)];
    let most = max_order(PageSize::K4);
    largest_blocks(&spans, most, |frame| !owners.contains_key(&frame))
}

fn both(memory: &mut [Box<[Word]>; 2]) -> Frames<'_> {
    let mut frames = Frames::new(PageSize::K4);
    let [first, second] = memory;
    frames.add_span(Frame(FIRST), COUNT, first).unwrap();
    frames
        .add_span(Frame(FIRST + COUNT), SECOND, second)
        .unwrap();
    frames.add_range(Frame(FIRST), COUNT + SECOND).unwrap();
    frames
}

proptest! {
    #![proptest_config(config(200, 1))]
    #[test]
    fn owners_are_counted_and_nothing_is_lost(ops in prop::collection::vec(op(), 1..if cfg!(miri) { 12 } else { 200 })) {
        let mut memory = [uninitialised(COUNT), uninitialised(SECOND)];
        let mut frames = both(&mut memory);
        let initial = free_blocks(&frames);
        let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
        // Frames that were ever allocated in one block.
        let mut runs = BTreeSet::new();
        let mut refused = 0;
        let frame_at = |place: u64| FIRST + place % (COUNT + SECOND);
        for op in ops {
            match op {
                Op::Exactly { place } => {
                    let number = frame_at(place);
                    let taken = frames.allocate_exact(Frame(number));
                    prop_assert_eq!(taken, !owners.contains_key(&number));
                    owners.entry(number).or_insert(1);
                }
                Op::InGroup { order, index } => {
                    let there = expected_blocks(&owners).iter().any(|(_, found)| *found >= order);
                    let got = frames.allocate_in_group(order, index);
                    prop_assert_eq!(got.is_some(), there);
                    if let Some(Frame(number)) = got {
                        let start = number - index;
                        prop_assert!(start.is_multiple_of(1 << order));
                        // The rest of the group stays free for a later request.
                        let group = start..start + (1 << order);
                        prop_assert!(owners.range(group).next().is_none());
                        owners.insert(number, 1);
                    }
                }
                Op::Any => {
                    if let Some(Frame(number)) = frames.allocate(0) {
                        prop_assert_eq!(owners.insert(number, 1), None);
                    }
                }
                Op::Singles { order } => {
                    let there = expected_blocks(&owners).iter().any(|(_, found)| *found >= order);
                    let got = frames.allocate_singles(order);
                    prop_assert_eq!(got.is_some(), there);
                    if let Some(Frame(first)) = got {
                        prop_assert!(first.is_multiple_of(1 << order));
                        for number in first..first + (1 << order) {
                            prop_assert_eq!(owners.insert(number, 1), None);
                        }
                        runs.extend(first..first + (1 << order));
                    }
                }
                Op::Share { place, count } => {
                    let start = frame_at(place);
                    let sound = (start..start + count).all(|number| owners.contains_key(&number));
                    prop_assert_eq!(frames.share(Frame(start), count).is_ok(), sound);
                    refused += u64::from(!sound);
                    if sound {
                        for number in start..start + count {
                            *owners.get_mut(&number).unwrap() += 1;
                        }
                    }
                }
                Op::Leave { place } => {
                    let number = frame_at(place);
                    let left = frames.leave(Frame(number));
                    let shared = owners.get(&number).is_some_and(|count| *count > 1);
                    // A frame that was allocated with others may still be counted with them.
                    prop_assert!(left == shared || shared && runs.contains(&number));
                    if left {
                        *owners.get_mut(&number).unwrap() -= 1;
                    }
                }
                Op::Release { place, count } => {
                    let start = frame_at(place);
                    let mut freed = Vec::new();
                    let released = frames.release(Frame(start), count, |Frame(first), count| {
                        freed.extend(first..first + count);
                    });
                    let mut gone = Vec::new();
                    let mut sound = true;
                    for number in start..start + count {
                        match owners.get_mut(&number) {
                            None => { sound = false; break; }
                            Some(1) => { owners.remove(&number); gone.push(number); }
                            Some(left) => *left -= 1,
                        }
                    }
                    prop_assert_eq!(released.is_ok(), sound);
                    refused += u64::from(!sound);
                    prop_assert_eq!(freed, gone);
                }
            }
            prop_assert_eq!(frames.allocated(), owners.len() as u64);
            prop_assert_eq!(frames.refused(), refused);
            prop_assert_eq!(free_blocks(&frames), expected_blocks(&owners));
            for (number, count) in &owners {
                let shared = |count: &u64| *count > 1;
                let same = |at: &u64| owners.get(at).is_some_and(|at| shared(at) == shared(count));
                let in_first = *number < FIRST + COUNT;
                let (start, frames_in) = if in_first { (FIRST, COUNT) } else { (FIRST + COUNT, SECOND) };
                // The answer ends with the span and with the chunk of entries.
                let offset = number - start;
                let chunk = u64::from(CHUNK_ENTRIES);
                let most = 5.min(frames_in - offset).min(chunk - offset % chunk);
                let alike = (*number..number + most).take_while(same).count() as u32;
                let (answer, length) = frames.sharing(Frame(*number), 5);
                prop_assert_eq!(answer, shared(count));
                prop_assert_eq!(frames.is_shared(Frame(*number)), answer);
                // It may also end with a run, which then goes on with other frames.
                let range = *number..number + 5;
                let any_run = runs.range(range.clone()).next().is_some();
                if any_run {
                    let sound = range.take_while(same).count() as u32;
                    prop_assert!((1..=sound).contains(&length));
                } else {
                    prop_assert_eq!(length, alike);
                }
            }
        }
        for (number, count) in owners {
            for _ in 0..count {
                frames.release(Frame(number), 1, |_, _| ()).unwrap();
            }
        }
        prop_assert_eq!(frames.allocated(), 0);
        prop_assert_eq!(free_blocks(&frames), initial);
    }
}

#[test]
fn a_group_is_filled_frame_after_frame() {
    let mut memory = uninitialised(64);
    let mut frames = filled(PageSize::K16, 0x80, 64, &mut memory);
    let Frame(start) = frames.allocate_in_group(4, 0).unwrap();
    assert!(start.is_multiple_of(16));
    for next in start + 1..start + 16 {
        assert!(frames.allocate_exact(Frame(next)), "{next:#x}");
        assert!(!frames.allocate_exact(Frame(next)), "{next:#x} twice");
    }
    assert_eq!(frames.allocated(), 16);
    assert_eq!(frames.allocate_in_group(2, 4), None, "no such index");
    let mut freed = Vec::new();
    frames
        .release(Frame(start), 16, |frame, count| {
            freed.push((frame.0, count))
        })
        .unwrap();
    assert_eq!(freed, [(start, 16)]);
    assert_eq!(free_blocks(&frames), [(0x80, 6)]);
}

#[test]
fn a_run_is_single_frames_each_with_an_owner_of_its_own() {
    let mut memory = uninitialised(64);
    let mut frames = filled(PageSize::K16, 0x80, 64, &mut memory);
    let Frame(start) = frames.allocate_singles(4).unwrap();
    assert!(start.is_multiple_of(16));
    assert_eq!(frames.allocated(), 16);
    frames.share(Frame(start + 3), 2).unwrap();
    frames.release(Frame(start), 16, |_, _| ()).unwrap();
    assert_eq!(frames.allocated(), 2);
    assert_eq!(frames.allocate_singles(6), None, "two are in use");
    frames.free(Frame(start + 3), 0).unwrap();
    frames.release(Frame(start + 4), 1, |_, _| ()).unwrap();
    assert_eq!(free_blocks(&frames), [(0x80, 6)]);
    assert!(frames.reserve(33));
    assert_eq!(frames.allocate_singles(5), None, "others are reserved");
    assert!(frames.allocate_singles(0).is_some());
}

#[test]
fn reserved_frames_are_not_given_out() {
    let mut memory = uninitialised(8);
    let mut frames = filled(PageSize::K4, 0, 8, &mut memory);
    assert!(frames.reserve(7));
    assert!(frames.allocate_exact(Frame(3)));
    assert!(!frames.allocate_exact(Frame(4)));
    assert_eq!(frames.allocate_in_group(0, 0), None);
    frames.unreserve(7);
    assert!(frames.allocate_exact(Frame(4)));
}

#[test]
fn blocks_have_one_owner() {
    let mut memory = uninitialised(8);
    let mut frames = filled(PageSize::K4, 0, 8, &mut memory);
    let block = frames.allocate(1).unwrap();
    for result in [
        frames.share(block, 1),
        frames.share(Frame(block.0 + 1), 1),
        frames.release(block, 1, |_, _| ()),
        frames.share(Frame(100), 1),
    ] {
        assert!(result.is_err());
    }
    assert_eq!(frames.refused(), 4);
    assert_eq!(frames.sharing(block, 1), (false, 1));
    assert_eq!(frames.free(block, 1), Ok(()));
}
