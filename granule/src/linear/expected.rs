//! What a published strategy takes, by arithmetic: the counts that its builder will have when it
//! is done, for any amount of RAM.
//!
//! Pure, and another way to the same numbers than the builder's: where that walks, this counts the
//! tables, spans and entries that a range touches, a level at a time. Which slots there are and how
//! much of a table `base` shows at a time it takes from there, as they are what the strategies are;
//! tests hold those spans against written-out numbers, and the counts against the builder and the
//! kernel.

use super::window::{Slot, base_span};
use super::{Barriers, Published, Strategy};
use crate::arch::page_size::{Level, PageSize};
use crate::arch::tlbi::{Invalidation, Reach, TlbCapabilities};
use crate::arch::{Geometry, VirtualAddress};
use crate::table::Piece;
use crate::table::plan::Plan;
use crate::table::{Counted, Counters, Counts, NoCpu, invalidate};

/// What a linear map takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Stores, tables, TLBIs and barriers.
    pub counts: Counts,
    /// How many of the stores make an entry of a new table invalid before it is filled.
    pub zeroed: u64,
    /// How often TLBIs are waited for: one wait may be for several.
    pub waits: u64,
}

/// How often something of a level happens for one piece.
#[derive(Clone, Copy, Default)]
struct Touched {
    /// Tables of the level that are walked.
    visits: u64,
    /// Tables of the level that are new.
    new: u64,
    /// Contiguous spans in them.
    spans: u64,
    /// Leaves in them.
    leaves: u64,
}

/// The counts of a published strategy for `pieces`, which ascend, in an empty half. A piece
/// outside `can`'s geometry is passed over.
#[must_use]
pub fn expected(
    can: &TlbCapabilities,
    pieces: &[Piece],
    strategy: Published,
    barriers: Barriers,
) -> Expected {
    let strategy = strategy.strategy();
    let geometry = &can.geometry;
    let entries = geometry.page_size().entries() as u64;
    let single = Cost::of_closing(can, 1);
    let series = Cost::of_closing(can, Slot::SERIES);
    let mut sum = Expected::default();
    // For each level the entry above whose table of it is the last there is, which the next piece
    // may share.
    let mut tabled = [u64::MAX; Level::ALL.len()];
    for piece in pieces {
        let Some(from) = geometry.offset(piece.start) else {
            continue;
        };
        if piece.bytes == 0 {
            continue;
        }
        let plan = Plan::shape(geometry, piece, from);
        let touched = touch(geometry, &plan, &mut tabled, from, from + piece.bytes);
        for (level, touched) in Level::ALL.into_iter().zip(touched) {
            let mut opened = match strategy {
                Strategy::Base => touched.spans,
                _ => touched.visits,
            };
            let lazy = strategy >= Strategy::LazyUnmap && level.is_last();
            if strategy < Strategy::NoAllocRemap {
                opened += touched.new;
            } else {
                // What makes the zeros visible before the link.
                sum.counts.dsb += touched.new;
            }
            let own_barriers = !level.is_last() || barriers == Barriers::Entry;
            let published = opened + touched.new + if own_barriers { touched.leaves } else { 0 };
            sum.counts.dsb += published;
            sum.counts.isb += published;
            sum.counts.tables += touched.new;
            sum.zeroed += touched.new * entries;
            // Zeroing, links, leaves, and two for each time a slot is opened.
            sum.counts.stores += touched.new * (entries + 1) + touched.leaves + 2 * opened;
            if lazy {
                sum.close(&series, opened / Slot::SERIES as u64);
                let rest = (opened % Slot::SERIES as u64) as usize;
                sum.close(&Cost::of_closing(can, rest), u64::from(rest > 0));
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

/// Walks one piece by arithmetic.
fn touch(
    geometry: &Geometry,
    plan: &Plan,
    tabled: &mut [u64; Level::ALL.len()],
    from: u64,
    to: u64,
) -> [Touched; Level::ALL.len()] {
    let size = geometry.page_size();
    let mut touched = [Touched::default(); Level::ALL.len()];
    // What is to be mapped in tables of the level: whole leaves above leave at most a head and a
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
        if level >= plan.top() {
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
                    // All of it goes down, on its side.
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

/// The aligned spans of `bytes` bytes that the offsets from `start` to `end` touch.
const fn spans(start: u64, end: u64, bytes: u64) -> u64 {
    let shift = bytes.trailing_zeros();
    ((end - 1) >> shift) - (start >> shift) + 1
}

/// What closing slots takes besides their stores: found by having it done to nothing.
struct Cost(Counts);

impl Cost {
    fn of_closing(can: &TlbCapabilities, slots: usize) -> Self {
        let page = can.geometry.page_size().bytes();
        let counters = Counters::new();
        if slots > 0 {
            let what = Invalidation {
                // Aligned to the largest page, as range operations may need.
                start: VirtualAddress(u64::MAX << PageSize::MAX.shift().max(20)),
                bytes: slots as u64 * page,
                stride: page,
                reach: Reach::LastLevel,
                asid: None,
                level: Some(Level::L3),
            };
            invalidate(&mut Counted::new(NoCpu(*can), &counters), &what);
        }
        Self(counters.get())
    }
}
