//! Subdivided frames: calls drawn from the bytes beside a map of the pieces. Pieces never overlap, every number is
//! exact after each call, and with the last piece every frame is free again.

use crate::bytes::Bytes;
use granule::arch::{PageSize, PhysicalAddress};
use granule_kcore::frames::metadata::metadata_bytes;
use granule_kcore::frames::subdivide::{PieceRecord, Pieces, RecordAt, Store, UNIT_SHIFT};
use granule_kcore::frames::tables::Source;
use granule_kcore::frames::{Frame, Frames};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

const FRAMES: u64 = 24;
const FIRST: u64 = 0x1003;

/// The frames, and the memory of records.
struct Host<'a, 'm> {
    frames: &'a RefCell<Frames<'m>>,
    records: HashMap<u64, PieceRecord>,
}

impl Source for Host<'_, '_> {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        what(&mut self.frames.borrow_mut())
    }
}

impl Store for Host<'_, '_> {
    fn record(&mut self, at: RecordAt) -> &mut PieceRecord {
        self.records.entry(at.address().0).or_default()
    }
}

/// Pieces by their first unit: units and owners.
type Model = BTreeMap<u64, (u64, u64)>;

/// Adds a piece that was just allocated.
fn insert(model: &mut Model, frame_units: u64, first: u64, units: u64) {
    let all = FIRST * frame_units..(FIRST + FRAMES) * frame_units;
    assert!(first >= all.start && first + units <= all.end);
    assert_eq!(first % units, 0, "a piece is aligned");
    let before = model.range(..first + units).next_back();
    assert!(
        before.is_none_or(|(other, (units, _))| other + units <= first),
        "pieces overlap"
    );
    model.insert(first, (units, 1));
}

/// Applies calls to subdivided frames.
pub(crate) fn pieces(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let size = [PageSize::K16, PageSize::K64][bytes.below(2)];
    let frame_units = 1 << (size.shift() - UNIT_SHIFT);
    let mut memory = Box::<[u32]>::new_uninit_slice((metadata_bytes(FRAMES) / 4) as usize);
    let mut frames = Frames::new(size);
    let given = frames
        .add_span(Frame(FIRST), FRAMES, &mut memory)
        .and_then(|()| frames.add_range(Frame(FIRST), FRAMES));
    assert_eq!(given, Ok(()));
    let frames = RefCell::new(frames);
    let host = Host {
        frames: &frames,
        records: HashMap::new(),
    };
    let mut pieces = Pieces::new(host, size);
    let mut model = Model::new();
    let at = |unit: u64| PhysicalAddress(unit << UNIT_SHIFT);
    while !bytes.is_empty() {
        let (kind, order) = (bytes.below(6), bytes.below(5) as u32);
        let units = 1_u64 << order;
        let place = u64::from(bytes.byte()) << 8 | u64::from(bytes.byte());
        // A piece that there is, or any place.
        let known = model
            .keys()
            .nth(place as usize % model.len().max(1))
            .copied();
        let anywhere = FIRST * frame_units + place % (FRAMES * frame_units);
        match kind {
            0 | 1 => {
                let count = bytes.below(7) as u32;
                if let Some(first) = pieces.allocate_run(count, order) {
                    let first = first.0 >> UNIT_SHIFT;
                    assert_eq!(first % (units << count), 0, "a run is aligned");
                    for index in 0..1 << count {
                        insert(&mut model, frame_units, first + index * units, units);
                    }
                }
            }
            2 => {
                if pieces.allocate_exactly(at(anywhere), order) {
                    insert(&mut model, frame_units, anywhere, units);
                }
            }
            3 => {
                let index = place % 8;
                if let Some(first) = pieces.allocate_in_group(3, index, order) {
                    let first = first.0 >> UNIT_SHIFT;
                    assert_eq!(
                        (first - index * units) % (8 * units),
                        0,
                        "its group is aligned"
                    );
                    insert(&mut model, frame_units, first, units);
                }
            }
            _ => {
                let first = known.filter(|_| place % 8 != 0).unwrap_or(anywhere);
                let owned = model.get_mut(&first).filter(|piece| piece.0 == units);
                let refused = pieces.counted().refused;
                let done = if kind == 4 {
                    pieces.share(at(first), 1, order)
                } else {
                    pieces.release(at(first), 1, order)
                };
                assert_eq!(
                    done.is_ok(),
                    owned.is_some(),
                    "{kind} of {units} at {first:#x}"
                );
                assert_eq!(pieces.counted().refused - refused, u64::from(done.is_err()));
                match owned {
                    Some(piece) if kind == 4 => piece.1 += 1,
                    Some(piece) if piece.1 > 1 => piece.1 -= 1,
                    Some(_) => drop(model.remove(&first)),
                    None => {}
                }
            }
        }
        compare(&mut pieces, &frames, &model, frame_units);
    }
    for (first, (units, owners)) in model {
        for _ in 0..owners {
            let order = units.trailing_zeros();
            assert_eq!(pieces.release(at(first), 1, order), Ok(()));
        }
    }
    compare(&mut pieces, &frames, &Model::new(), frame_units);
}

/// The numbers are those of the model, and no frame is subdivided without need.
fn compare(
    pieces: &mut Pieces<Host<'_, '_>>,
    frames: &RefCell<Frames<'_>>,
    model: &Model,
    frame_units: u64,
) {
    let mut subdivided: Vec<u64> = model.keys().map(|first| first / frame_units).collect();
    subdivided.dedup();
    let subdivided = subdivided.len() as u64;
    let taken: u64 = model.values().map(|(units, _)| units).sum();
    let counted = pieces.counted();
    assert_eq!(counted.subdivided, subdivided);
    assert_eq!(counted.free_units, subdivided * frame_units - taken);
    assert_eq!(counted.record_frames == 0, subdivided == 0);
    let allocated = frames.borrow().allocated();
    assert_eq!(allocated, subdivided + counted.record_frames);
    assert_eq!(frames.borrow().refused(), 0);
    for (first, (units, owners)) in model {
        let at = PhysicalAddress(first << UNIT_SHIFT);
        let shared = pieces.sharing(at, 1, units.trailing_zeros()).0;
        assert_eq!(shared, *owners > 1);
    }
}
