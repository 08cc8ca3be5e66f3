//! Subdivided frames: random calls beside a map of pieces, failing allocations, and wrong calls.

use super::piece_records::{PieceRecord, RefusedAt};
use super::*;
use crate::frames::metadata::{Word, metadata_bytes};
use crate::frames::{FrameError, max_order};
use granule_testing::cases::config;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const FIRST: u64 = 0x1003;

/// The frames, and the memory of records by address. It holds nonsense before it is written.
struct Host<'m> {
    frames: Frames<'m>,
    records: HashMap<u64, PieceRecord>,
    /// Allocations that may still succeed.
    left: u64,
    /// Frames that are registered as in use.
    used: BTreeSet<u64>,
}

impl Source for Host<'_> {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        let withheld = match self.left {
            0 => self.frames.unreserved(),
            _ => 0,
        };
        assert!(self.frames.reserve(withheld));
        let before = self.frames.allocated();
        let result = what(&mut self.frames);
        self.frames.unreserve(withheld);
        if self.frames.allocated() > before {
            self.left -= 1;
        }
        result
    }
}

impl Store for Host<'_> {
    fn record(&mut self, at: RecordAt) -> &mut PieceRecord {
        let size = self.frames.page_size();
        let frame = Frame::containing(at.address(), size);
        assert!(
            self.used.contains(&frame.0),
            "{at:?} is in no frame of records"
        );
        assert!(at.address().0 % size.bytes() <= size.bytes() - size_of::<PieceRecord>() as u64);
        self.records
            .entry(at.0)
            .or_insert(PieceRecord::of(Frame(77), 0x5a5a))
    }

    fn allocated(&mut self, first: PhysicalAddress, bytes: u64) {
        let size = self.frames.page_size();
        for number in 0..bytes >> size.shift() {
            assert!(self.used.insert(Frame::containing(first, size).0 + number));
        }
    }

    fn freed(&mut self, first: PhysicalAddress, bytes: u64) {
        let size = self.frames.page_size();
        for number in 0..bytes >> size.shift() {
            let number = Frame::containing(first, size).0 + number;
            assert!(self.used.remove(&number));
            self.records.retain(|at, _| at >> size.shift() != number);
        }
    }
}

fn memory(count: u64) -> Box<[Word]> {
    Box::<[u32]>::new_uninit_slice((metadata_bytes(count) / 4) as usize)
}

fn pieces(page_size: PageSize, count: u64, memory: &mut [Word]) -> Pieces<Host<'_>> {
    let mut frames = Frames::new(page_size);
    frames.add_span(Frame(FIRST), count, memory).unwrap();
    frames.add_range(Frame(FIRST), count).unwrap();
    let store = Host {
        frames,
        records: HashMap::new(),
        left: u64::MAX,
        used: BTreeSet::new(),
    };
    let mut pieces = Pieces::new(store, PageSize::K4);
    pieces.begin(page_size);
    pieces
}

/// Pieces by first unit, with their order and owners.
type Model = BTreeMap<u64, (u32, u64)>;

/// The units of all pieces of a model.
fn units(model: &Model) -> BTreeSet<u64> {
    model
        .iter()
        .flat_map(|(first, (order, _))| *first..first + (1 << order))
        .collect()
}

/// Checks the lists, the counters and the frames against the model.
fn compare(pieces: &mut Pieces<Host<'_>>, model: &Model, whole: &BTreeMap<u64, u64>) {
    let order = pieces.frame_order();
    let taken = units(model);
    let subdivided: BTreeSet<u64> = taken.iter().map(|unit| unit >> order).collect();
    let Counted { record_frames, .. } = pieces.counted;
    assert_eq!(pieces.counted.subdivided, subdivided.len() as u64);
    let units = (subdivided.len() as u64) << order;
    assert_eq!(pieces.counted.free_units, units - taken.len() as u64);
    assert!(record_frames >= (subdivided.len() as u64).div_ceil(pieces.slots()));
    assert_eq!(record_frames == 0, subdivided.is_empty());
    let frames = pieces.store.frames.allocated();
    assert_eq!(
        frames,
        (subdivided.len() + whole.len()) as u64 + record_frames
    );
    assert_eq!(pieces.store.used.len() as u64, frames);
    assert_eq!(pieces.store.frames.refused(), 0);
    let mut listed = BTreeMap::new();
    for (list, first) in pieces.lists.into_iter().enumerate() {
        let (mut at, mut prev) = (first, NONE);
        while at != NONE {
            let record = *pieces.store.record(RecordAt(at));
            assert_eq!(record.prev, prev);
            assert_eq!(listed.insert(record.frame, list), None);
            (prev, at) = (at, record.next);
        }
    }
    for frame in subdivided {
        let at = pieces.find(Frame(frame)).unwrap();
        let record = *pieces.store.record(at);
        assert_eq!(record.frame, frame);
        let free = (0..1 << order).filter(|unit| !taken.contains(&(frame << order | unit)));
        let free = free.fold(0, |free, unit| free | 1 << unit);
        assert_eq!(record.free, free);
        assert_eq!(listed.remove(&frame), pieces.list_of(free));
        let largest = (0..order).rev().find(|order| {
            (0..16u32 >> order).any(|index| {
                let piece = ((1 << (1 << order)) - 1) << (index << order);
                free & piece == piece
            })
        });
        assert_eq!(pieces.list_of(free), largest.map(|order| order as usize));
    }
    assert_eq!(listed, BTreeMap::new());
}

/// A number of pieces of an order, from a place on.
#[derive(Clone, Copy, Debug)]
struct Run {
    place: u64,
    count: u64,
    order: u32,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// `2^count` pieces of an order that follow each other.
    Run(u32, u32),
    /// The piece of an order at a place.
    Exactly(u64, u32),
    /// A piece of a group: log2 of the group's pieces, its index, its order.
    InGroup(u32, u64, u32),
    Share(Run),
    Release(Run),
    /// A whole frame at a place, which pieces are shared of as well.
    Frame(u64),
    /// Allows only so many allocations from here on, or all again.
    Fail(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let order = || prop_oneof![4 => Just(0u32), 3 => Just(2u32), 1 => 0u32..5];
    let count = || prop_oneof![3 => Just(1u64), 2 => 1u64..8, 1 => 1u64..70];
    let place = any::<u64>;
    let run = move || {
        (place(), count(), order()).prop_map(|(place, count, order)| Run {
            place,
            count,
            order,
        })
    };
    prop_oneof![
        5 => (prop_oneof![3 => Just(0u32), 1 => 0u32..7], order())
            .prop_map(|(count, order)| Op::Run(count, order)),
        4 => (place(), order()).prop_map(|(place, order)| Op::Exactly(place, order)),
        2 => (0u32..7, place(), order())
            .prop_map(|(count, index, order)| Op::InGroup(count, index % (1 << count), order)),
        4 => run().prop_map(Op::Share),
        7 => run().prop_map(Op::Release),
        1 => place().prop_map(Op::Frame),
        1 => prop_oneof![0u64..3, Just(u64::MAX)].prop_map(Op::Fail),
    ]
}

/// Where a share or release begins: at a piece, or now and then anywhere.
fn begin(model: &Model, place: u64, all: std::ops::Range<u64>) -> u64 {
    if place.is_multiple_of(8) || model.is_empty() {
        all.start + place / 8 % (all.end - all.start)
    } else {
        *model.keys().nth(place as usize % model.len()).unwrap()
    }
}

/// Applies `op` to both, and compares the results.
fn step(op: Op, pieces: &mut Pieces<Host<'_>>, model: &mut Model, whole: &mut BTreeMap<u64, u64>) {
    let shift = pieces.frame_order();
    let frames = pieces.store.frames.total();
    let all = FIRST << shift..(FIRST + frames) << shift;
    let address = |unit: u64| PhysicalAddress(unit << UNIT_SHIFT);
    let taken = units(model);
    let insert = |model: &mut Model, first: u64, count: u64, order: u32| {
        for piece in (first..first + (count << order)).step_by(1 << order) {
            for unit in piece..piece + (1 << order) {
                assert!(!taken.contains(&unit) && all.contains(&unit));
                assert!(!whole.contains_key(&(unit >> shift)));
            }
            assert_eq!(model.insert(piece, (order, 1)), None);
        }
    };
    match op {
        Op::Run(count, order) => {
            let got = pieces.allocate_run(count, order);
            let run = order + count;
            if let Some(first) = got {
                assert!(order < shift && first.0.is_multiple_of(1 << (UNIT_SHIFT + run)));
                insert(model, first.0 >> UNIT_SHIFT, 1 << count, order);
            } else if order < shift && run < shift {
                // Neither room in a subdivided frame, nor a frame for the piece and its record.
                let mut used: BTreeSet<u64> = taken.iter().map(|unit| unit >> shift).collect();
                used.retain(|frame| {
                    (0..1u64 << (shift - run)).any(|index| {
                        let first = (frame << shift) + (index << run);
                        (first..first + (1 << run)).all(|unit| !taken.contains(&unit))
                    })
                });
                assert!(used.is_empty());
                assert!(pieces.store.left < 2 || pieces.store.frames.free_frames() < 2);
            }
        }
        Op::Exactly(place, order) => {
            let unit = (all.start + place % (all.end - all.start)) >> order << order;
            let fits = order < shift && unit >= all.start;
            let free = fits && (unit..unit + (1 << order)).all(|unit| !taken.contains(&unit));
            let frame = unit >> shift;
            let units = frame << shift..(frame + 1) << shift;
            let subdivided = taken.range(units).next().is_some();
            let got = pieces.allocate_exactly(address(unit), order);
            if subdivided {
                assert_eq!(got, free);
            } else if free && !got {
                let used = pieces.store.used.contains(&frame);
                let none = pieces.store.left < 2 || pieces.store.frames.free_frames() < 2;
                assert!(none || used || whole.contains_key(&frame));
            }
            if got {
                insert(model, unit, 1, order);
            }
        }
        Op::InGroup(count, index, order) => {
            if let Some(first) = pieces.allocate_in_group(count, index, order) {
                let unit = first.0 >> UNIT_SHIFT;
                let start = unit - (index << order);
                assert!(start.is_multiple_of(1 << (order + count)));
                let group = start..start + (1 << (order + count));
                assert!(taken.range(group.clone()).next().is_none());
                assert!(all.contains(&start) && group.end <= all.end);
                insert(model, unit, 1, order);
            }
        }
        Op::Share(Run {
            place,
            count,
            order,
        }) => {
            let first = begin(model, place, all);
            let run = (first..first + (count << order)).step_by(1 << order);
            let sound = first.is_multiple_of(1 << order)
                && order < shift
                && run.clone().all(|unit| {
                    let piece = model.get(&unit).is_some_and(|piece| piece.0 == order);
                    piece || whole.contains_key(&(unit >> shift))
                });
            let refused = pieces.counted.refused;
            assert_eq!(pieces.share(address(first), count, order).is_ok(), sound);
            assert_eq!(pieces.counted.refused, refused + u64::from(!sound));
            if sound {
                for unit in run {
                    match whole.get_mut(&(unit >> shift)) {
                        Some(owners) => *owners += 1,
                        None => model.get_mut(&unit).unwrap().1 += 1,
                    }
                }
            }
        }
        Op::Release(Run {
            place,
            count,
            order,
        }) => {
            let first = begin(model, place, all);
            let aligned = first.is_multiple_of(1 << order) && order < shift;
            let mut bad = None;
            for unit in (first..first + (count << order)).step_by(1 << order) {
                match model.get_mut(&unit) {
                    None if aligned && whole.contains_key(&(unit >> shift)) => {
                        let owners = whole.get_mut(&(unit >> shift)).unwrap();
                        *owners -= 1;
                        if *owners == 0 {
                            whole.remove(&(unit >> shift));
                        }
                    }
                    Some(piece) if aligned && piece.0 == order && piece.1 > 1 => piece.1 -= 1,
                    Some(piece) if aligned && piece.0 == order => drop(model.remove(&unit)),
                    _ => {
                        let at = address(unit);
                        bad = Some(PieceError::NoPiece { at, order });
                        break;
                    }
                }
            }
            let refused = pieces.counted.refused;
            assert_eq!(pieces.release(address(first), count, order).err(), bad);
            assert_eq!(pieces.counted.refused, refused + u64::from(bad.is_some()));
        }
        Op::Frame(place) => {
            let frame = Frame(FIRST + place % frames);
            if whole.remove(&frame.0).is_some() {
                assert_eq!(pieces.store.frames.free(frame, 0), Ok(()));
                assert!(pieces.store.used.remove(&frame.0));
            } else if pieces.store.frames.allocate_exact(frame) {
                assert!(pieces.store.used.insert(frame.0));
                whole.insert(frame.0, 1);
            }
        }
        Op::Fail(after) => pieces.store.left = after,
    }
    let first_of = |(frame, owners): (&u64, &u64)| (frame << shift, (0, *owners));
    let in_whole = whole.iter().map(first_of).collect::<Vec<_>>();
    let pieces_of = model.iter().map(|(first, piece)| (*first, *piece));
    for (first, (order, owners)) in pieces_of.chain(in_whole) {
        let most = 5;
        let answer = |unit: u64| {
            if let Some(owners) = whole.get(&(unit >> shift)) {
                return Some(*owners > 1);
            }
            let piece = model.get(&unit).filter(|piece| piece.0 == order)?;
            Some(piece.1 > 1)
        };
        let shared = owners > 1;
        let alike = (0..most).take_while(|at| answer(first + (at << order)) == Some(shared));
        let expected = (shared, alike.count() as u64);
        assert_eq!(pieces.sharing(address(first), most, order), expected);
    }
}

proptest! {
    #![proptest_config(config(300, 1))]

    #[test]
    fn pieces_do_as_the_model(
        page_size in prop::sample::select(&[PageSize::K16, PageSize::K64][..]),
        count in prop_oneof![1u64..8, 8u64..60],
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 15 } else { 120 }),
    ) {
        let mut memory = memory(count);
        let mut pieces = pieces(page_size, count, &mut memory);
        let (mut model, mut whole) = (Model::new(), BTreeMap::new());
        for op in ops {
            step(op, &mut pieces, &mut model, &mut whole);
            compare(&mut pieces, &model, &whole);
        }
        for (first, (order, owners)) in model {
            for _ in 0..owners {
                let released = pieces.release(PhysicalAddress(first << UNIT_SHIFT), 1, order);
                prop_assert_eq!(released, Ok(()));
            }
        }
        for (number, owners) in whole {
            let first = PhysicalAddress(number << pieces.page_size.shift());
            for _ in 0..owners {
                prop_assert_eq!(pieces.release(first, 1, 0), Ok(()));
            }
        }
        prop_assert_eq!(pieces.store.frames.allocated(), 0);
        prop_assert!(pieces.store.used.is_empty() && pieces.store.records.is_empty());
    }
}

#[test]
fn a_kernel_of_the_smallest_pages_has_no_pieces() {
    let mut memory = memory(16);
    let mut pieces = pieces(PageSize::K4, 16, &mut memory);
    assert_eq!(pieces.allocate(0), None);
    assert_eq!(pieces.allocate_run(3, 0), None);
    assert_eq!(pieces.allocate_in_group(3, 1, 0), None);
    let first = Frame(FIRST).address(PageSize::K4);
    assert!(!pieces.allocate_exactly(first, 0));
    assert!(pieces.share(first, 1, 0).is_err());
    assert_eq!(pieces.store.frames.allocated(), 0);
}

#[test]
fn every_failing_allocation_changes_nothing() {
    // A run of two blocks of frames, so that a record may be missing for the last of them.
    // Miri would take minutes for so many pieces.
    for fails_at in if cfg!(miri) { 0..0 } else { 0..4 } {
        let count = 2100;
        let mut memory = memory(count);
        let mut pieces = pieces(PageSize::K64, count, &mut memory);
        pieces.store.left = fails_at;
        // 1 024 frames need two frames of records.
        let got = pieces.allocate_run(14, 0);
        pieces.store.left = u64::MAX;
        let Some(first) = got else {
            assert_eq!(pieces.store.frames.allocated(), 0, "{fails_at}");
            assert!(pieces.store.used.is_empty());
            compare(&mut pieces, &Model::new(), &BTreeMap::new());
            continue;
        };
        assert_eq!(fails_at, 3, "the run, and two frames of records");
        assert_eq!(pieces.counted.record_frames, 2);
        assert_eq!(pieces.sharing(first, 1 << 14, 0), (false, 1 << 14));
        assert_eq!(pieces.release(first, 1 << 14, 0), Ok(()));
        assert_eq!(pieces.store.frames.allocated(), 0);
        break;
    }
    for fails_at in 0..2 {
        let mut memory = memory(20);
        let mut pieces = pieces(PageSize::K16, 20, &mut memory);
        pieces.store.left = fails_at;
        assert_eq!(pieces.allocate(0), None);
        assert_eq!(pieces.allocate_in_group(4, 3, 0), None);
        let first = Frame(FIRST + 3).address(PageSize::K16);
        assert!(!pieces.allocate_exactly(first, 1));
        assert_eq!(pieces.store.frames.allocated(), 0);
        // With no memory at all, room in a subdivided frame is still found.
        pieces.store.left = 2;
        let piece = pieces.allocate(0).unwrap();
        assert_eq!(pieces.store.left, 0);
        assert!(pieces.allocate(1).is_some() && pieces.allocate(0).is_some());
        assert_eq!(pieces.allocate(0), None);
        assert_eq!(pieces.share(piece, 1, 0), Ok(()));
        assert_eq!(pieces.release(piece, 1, 0), Ok(()));
    }
}

#[test]
fn a_subdivided_frame_is_not_used_as_a_whole() {
    let mut memory = memory(8);
    let mut pieces = pieces(PageSize::K64, 8, &mut memory);
    let first = pieces.allocate(2).unwrap();
    let frame = Frame::containing(first, PageSize::K64);
    let frames = &mut pieces.store.frames;
    let refused = FrameError::Subdivided(frame);
    assert_eq!(frames.free(frame, 0), Err(refused));
    assert_eq!(frames.release(frame, 1, |_, _| ()), Err(refused));
    assert_eq!(frames.share(frame, 1), Err(refused));
    assert_eq!(frames.sharing(frame, 1), (false, 1));
    assert_eq!(frames.refused(), 3);
    assert!(frames.is_given(frame) && !frames.is_free(frame) && frames.is_subdivided(frame));
    assert!(!frames.is_subdivided(Frame(frame.0 ^ 1)));
    assert!(!frames.allocate_exact(frame));
    let allocated = true;
    let in_use = FrameError::InUse { frame, allocated };
    assert_eq!(frames.take_out(frame, 1), Err(in_use));
    let (order, most) = (64, max_order(PageSize::K64));
    let too_large = FrameError::OrderTooLarge { order, most };
    assert_eq!(frames.free(frame, order), Err(too_large));
    assert!(!refused.to_string().is_empty());
    // The pieces notice nothing of it.
    assert_eq!(pieces.release(first, 1, 2), Ok(()));
    assert_eq!(pieces.store.frames.allocated(), 0);
}

#[test]
fn a_piece_that_is_released_twice_or_as_another_is_refused() {
    let mut memory = memory(8);
    let mut pieces = pieces(PageSize::K64, 8, &mut memory);
    let (small, large) = (pieces.allocate(0).unwrap(), pieces.allocate(2).unwrap());
    let inside = PhysicalAddress(large.0 + 4096);
    for (at, order) in [(small, 1), (small, 4), (large, 0), (inside, 0), (inside, 2)] {
        let refused = PieceError::NoPiece { at, order };
        assert_eq!(pieces.release(at, 1, order), Err(refused));
        assert_eq!(pieces.share(at, 1, order), Err(refused));
        assert!(!refused.to_string().is_empty());
    }
    assert_eq!(pieces.counted.refused, 10);
    assert_eq!(pieces.release(small, 1, 0), Ok(()));
    assert!(pieces.release(small, 1, 0).is_err());
    assert_eq!(pieces.release(large, 1, 2), Ok(()));
    // No frame is subdivided any more.
    assert!(pieces.release(large, 1, 2).is_err());
    assert_eq!(pieces.store.frames.allocated(), 0);
    assert_eq!(pieces.store.frames.refused(), 0);
}

#[test]
fn small_pieces_leave_large_ones_whole() {
    let mut memory = memory(8);
    let mut pieces = pieces(PageSize::K64, 8, &mut memory);
    let first = pieces.allocate(0).unwrap();
    for _ in 0..3 {
        pieces.allocate(2).unwrap();
    }
    // The three units beside the first piece are used before another frame.
    for _ in 0..3 {
        pieces.allocate(0).unwrap();
    }
    assert_eq!(pieces.counted.subdivided, 1);
    let two = pieces.allocate_run(1, 0).unwrap();
    assert_ne!(two.0 >> 16, first.0 >> 16);
    assert_eq!(pieces.counted.subdivided, 2);
}

#[test]
fn a_piece_has_at_most_so_many_owners() {
    let mut record = PieceRecord::of(Frame(1), 0xffff);
    record.take(4, 2, 1);
    assert_eq!(record.free, 0xf00f);
    for _ in 0..3 {
        record.share(4, 12, 2).unwrap();
    }
    assert_eq!(record.further_owners(8, 2), Some(3));
    assert_eq!(record.further_owners(8, 1), None);
    record.set_most_owners(8);
    let before = record;
    let refused = record.share(4, 12, 2);
    assert_eq!(refused, Err(RefusedAt::TooManyOwners(8)));
    assert_eq!(record, before);
}
