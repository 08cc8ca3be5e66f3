//! The expected cost of each published strategy: an oracle that walks no table.
//!
//! It computes per level how many tables, spans and entries a range touches.

use granule::arch::tlbi::{Invalidation, TlbCapabilities, TlbiScope};
use granule::arch::{Geometry, Level, PageSize, VirtualAddress};
use granule::linear::fixmap::Slot;
use granule::linear::{Barriers, Strategy};
use granule::table::{Maintenance, Piece, invalidate};
use granule_trace::recorder::Counts;

/// The cost of a linear map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Stores, tables, TLBIs and barriers.
    pub(crate) counts: Counts,
    /// The number of stores that make an entry of a new table invalid before the table is filled.
    pub(crate) zeroed: u64,
    /// The number of waits for TLBIs; one wait may cover several TLBIs.
    pub(crate) waits: u64,
}

/// Counts of one level for one piece.
#[derive(Clone, Copy, Default)]
struct Touched {
    /// Tables that are walked.
    visits: u64,
    /// Tables that are new.
    new: u64,
    /// Contiguous spans touched.
    spans: u64,
    /// Leaves written.
    leaves: u64,
}

/// The cost of a published strategy for `pieces`, which ascend, in an empty half. A piece outside
/// `geometry` is skipped.
pub(crate) fn expected(
    geometry: &Geometry,
    can: &TlbCapabilities,
    pieces: &[Piece],
    strategy: Strategy,
    barriers: Barriers,
) -> Expected {
    let entries = geometry.page_size().entries() as u64;
    let single = Cost::of_closing(geometry, can, 1);
    let series = Cost::of_closing(geometry, can, Slot::SERIES);
    let mut sum = Expected::default();
    // Per level, the parent entry that links the last table: the next piece may share that table.
    let mut tabled = [u64::MAX; Level::ALL.len()];
    for piece in pieces {
        let Some(from) = geometry.offset(piece.start) else {
            continue;
        };
        if piece.bytes == 0 {
            continue;
        }
        let top = top(geometry, piece, from);
        let touched = touch(geometry, top, &mut tabled, from, from + piece.bytes);
        for (level, touched) in Level::ALL.into_iter().zip(touched) {
            let mut opened = match strategy {
                Strategy::Base => touched.spans,
                _ => touched.visits,
            };
            let lazy = strategy >= Strategy::LazyUnmap && level == Level::L3;
            if strategy < Strategy::NoAllocRemap {
                opened += touched.new;
            } else {
                // This DSB makes the zeros visible before the link.
                sum.counts.dsb += touched.new;
            }
            let own_barriers = level != Level::L3 || barriers == Barriers::Entry;
            let published = opened + touched.new + if own_barriers { touched.leaves } else { 0 };
            sum.counts.dsb += published;
            sum.counts.isb += published;
            sum.counts.tables += touched.new;
            sum.zeroed += touched.new * entries;
            // Stores: zeroing and one link per new table, the leaves, and two for each opened slot.
            sum.counts.stores += touched.new * (entries + 1) + touched.leaves + 2 * opened;
            if lazy {
                sum.close(&series, opened / Slot::SERIES as u64);
                let rest = (opened % Slot::SERIES as u64) as usize;
                sum.close(&Cost::of_closing(geometry, can, rest), u64::from(rest > 0));
            } else {
                sum.close(&single, opened);
            }
        }
    }
    sum
}

impl Expected {
    fn close(&mut self, cost: &Cost, times: u64) {
        self.counts.tlbi += cost.0.tlbi * times;
        self.counts.dsb += cost.0.dsb * times;
        self.counts.isb += cost.0.isb * times;
        self.waits += times;
    }
}

/// Computes the counts of one piece.
fn touch(
    geometry: &Geometry,
    top: Level,
    tabled: &mut [u64; Level::ALL.len()],
    from: u64,
    to: u64,
) -> [Touched; Level::ALL.len()] {
    let size = geometry.page_size();
    let mut touched = [Touched::default(); Level::ALL.len()];
    // The ranges left for this level: whole leaves of the level above leave at most a head and a
    // tail.
    let mut ranges = [(from, to), (to, to)];
    let mut parent: Option<Level> = None;
    for ((level, touched), tabled) in Level::ALL.into_iter().zip(&mut touched).zip(tabled) {
        if level < geometry.start_level() {
            continue;
        }
        for (start, end) in ranges.into_iter().filter(|(start, end)| start < end) {
            touched.spans += spans(start, end, base_span(size, level));
            let Some(parent) = parent else {
                touched.visits = 1;
                continue;
            };
            let shift = size.level_shift(parent);
            let (first, last) = (start >> shift, (end - 1) >> shift);
            touched.visits += last - first + 1;
            touched.new += last - first + 1 - u64::from(*tabled == first);
            *tabled = last;
        }
        if level >= top {
            let entry = size.entry_bytes(level);
            let whole = |(start, end): (u64, u64)| {
                let inner = (start.next_multiple_of(entry), end & !(entry - 1));
                (inner.0 < inner.1).then_some(inner)
            };
            let mut rest = [(from, from), (to, to)];
            for (rest_of, range) in ranges.into_iter().enumerate() {
                if range.0 >= range.1 {
                    continue;
                }
                let Some(inner) = whole(range) else {
                    // No whole entry: the range goes down unchanged, on its side.
                    rest[rest_of] = range;
                    continue;
                };
                touched.leaves += (inner.1 - inner.0) >> size.level_shift(level);
                if range.0 < inner.0 {
                    rest[0] = (range.0, inner.0);
                }
                if inner.1 < range.1 {
                    rest[1] = (inner.1, range.1);
                }
            }
            ranges = rest;
        }
        parent = Some(level);
    }
    touched
}

/// The number of aligned spans of `bytes` bytes that the offsets from `start` to `end` touch.
const fn spans(start: u64, end: u64, bytes: u64) -> u64 {
    let shift = bytes.trailing_zeros();
    ((end - 1) >> shift) - (start >> shift) + 1
}

/// The cost of closing slots besides their stores, counted without a CPU.
struct Cost(Counts);

impl Cost {
    fn of_closing(geometry: &Geometry, can: &TlbCapabilities, slots: usize) -> Self {
        let page = geometry.page_size().bytes();
        let mut counts = Counts::default();
        if slots > 0 {
            let what = Invalidation {
                // Range operations may need alignment to the largest page.
                start: VirtualAddress(u64::MAX << PageSize::MAX.shift().max(20)),
                bytes: slots as u64 * page,
                stride: page,
                scope: TlbiScope::LastLevel,
                asid: None,
                level: Some(Level::L3),
            };
            invalidate(&what, geometry, *can, |instruction| match instruction {
                Maintenance::DsbIshst | Maintenance::DsbIsh => counts.dsb += 1,
                Maintenance::Isb => counts.isb += 1,
                Maintenance::Tlbi(..) => counts.tlbi += 1,
            });
        }
        Self(counts)
    }
}

/// The highest level of the leaves of a piece that begins at an offset.
fn top(geometry: &Geometry, piece: &Piece, from: u64) -> Level {
    let distance = piece.output.0.wrapping_sub(from);
    let fits = |level: &Level| {
        let aligned = distance & (geometry.page_size().entry_bytes(*level) - 1) == 0;
        let mut sizes = geometry.leaf_sizes();
        aligned && *level >= piece.leaves.top && sizes.any(|size| size.level == *level)
    };
    let levels = [Level::L2, Level::L1, Level::L0].into_iter();
    let levels = levels.filter(|level| *level >= geometry.start_level());
    levels.take_while(fits).last().unwrap_or(Level::L3)
}

/// The bytes of a table of `level` that `base` maps at a time, as published: 16, 128 and 32 entries of level 3, and
/// 16, 32 and 32 of level 2; all of a table above.
fn base_span(size: PageSize, level: Level) -> u64 {
    let entries = match (level, size) {
        (Level::L3, PageSize::K16) => 128,
        (Level::L2 | Level::L3, PageSize::K4) => 16,
        (Level::L2 | Level::L3, _) => 32,
        _ => size.entries() as u64,
    };
    size.entry_bytes(level) * entries
}
