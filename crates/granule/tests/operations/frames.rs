//! Mapping scattered frames in one call: against the reference, which maps each run by itself, and
//! exact counts.

use crate::bench::{Bench, Setting};
use granule::arch::{
    Attributes, Dispatch, Geometry, Page, Page4K, Page64K, PageSize, Permissions, PhysicalAddress,
    VaRange,
};
use granule::table::{FrameRun, Frames, Leaves, TableError};
use granule_testing::cases::config;
use granule_testing::host::{Event, Runs};
use granule_testing::shape::{self, PLAIN};
use granule_testing::walk::Arch;
use proptest::prelude::*;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

fn run(first: u64, count: u64) -> FrameRun {
    FrameRun {
        first: PhysicalAddress(first),
        count,
    }
}

/// Every frame by itself.
fn single(runs: &[FrameRun], page: u64) -> Vec<PhysicalAddress> {
    let frames = |run: &FrameRun| {
        let first = run.first.0;
        (0..run.count).map(move |number| PhysicalAddress(first + number * page))
    };
    runs.iter().flat_map(frames).collect()
}

fn maintenance(events: &[Event]) -> Vec<Event> {
    let barrier = |event: &&Event| matches!(event, Event::DsbIshst | Event::DsbIsh | Event::Isb);
    events.iter().filter(barrier).copied().collect()
}

fn stores(events: &[Event]) -> usize {
    let count = |event: &Event| match event {
        Event::Store { count, .. } => *count,
        _ => 0,
    };
    events.iter().map(count).sum()
}

#[test]
fn scattered_pages_take_one_table_and_one_pair_of_barriers() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    // 64 frames, every other one, backwards.
    let frames: Vec<_> = (0..64)
        .map(|n| PhysicalAddress(0x9000_0000 - n * 0x2000))
        .collect();
    let start = bench.reference.address(0x20_0000);
    let all = Frames::Single(&frames);
    bench
        .tables
        .map_frames(start, all, RW, Leaves::LARGEST)
        .unwrap();
    let events = bench.host.take_events();
    // Levels 2 and 3, each entry written once, and one entry of the root.
    assert_eq!(stores(&events), 2 * 512 + 1);
    assert_eq!(maintenance(&events), [Event::DsbIshst, Event::Isb]);
    // The tables are there: 32 more frames are 32 stores.
    let start = bench.reference.address(0x24_0000);
    let all = Frames::Single(&frames[..32]);
    bench
        .tables
        .map_frames(start, all, RW, Leaves::LARGEST)
        .unwrap();
    let events = bench.host.take_events();
    assert_eq!(stores(&events), 32);
    assert_eq!(maintenance(&events), [Event::DsbIshst, Event::Isb]);
}

#[test]
#[cfg_attr(miri, ignore = "a thousand pages in the reference take Miri minutes")]
fn consecutive_frames_get_blocks_and_groups() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let block = 2 << 20;
    // A page, a block that two runs and a single frame make up, a group, another page.
    let runs = [
        run(0x8000_1000, 1),
        run(0x4020_0000, 100),
        run(0x4026_4000, 1),
        run(0x4026_5000, 411),
        run(0x7001_0000, 16),
        run(0x8000_3000, 1),
    ];
    let frames = single(&runs, 0x1000);
    for all in [Frames::Runs(&runs), Frames::Single(&frames)] {
        let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
        bench
            .map_frames(block - 0x1000, all, RW, Leaves::LARGEST)
            .unwrap();
        let leaves = &bench.tree.leaves;
        let sizes: Vec<u64> = leaves.iter().map(|leaf| leaf.bytes).collect();
        let expected = [&[0x1000, block][..], &[0x1000; 17]].concat();
        assert_eq!(sizes, expected);
        let grouped = leaves.iter().filter(|leaf| leaf.word >> 52 & 1 == 1);
        assert_eq!(grouped.count(), 16);
        bench.unmap(0, bench.arch.span()).unwrap();
        let single_pages = Leaves::PAGES;
        bench
            .map_frames(block - 0x1000, all, RW, single_pages)
            .unwrap();
        assert_eq!(bench.tree.leaves.len(), frames.len());
    }
}

#[test]
fn frames_that_cannot_be_mapped() {
    let geometry = PLAIN.geometry(PageSize::K64, 42, VaRange::Lower);
    let mut bench = Bench::<Page64K>::new(&geometry, Setting::LIVE);
    bench.lay(0x4_0000, 0, 0x1_0000, RW, Leaves::PAGES);
    let dump = bench.dump();
    let start = bench.reference.address(0);
    let page_size = PageSize::K64;
    let good = run(0x9000_0000, 3);
    let misaligned = |value| TableError::Misaligned { value, page_size };
    let outside = |bytes| TableError::OutsideSpace {
        start,
        bytes,
        va_bits: 42,
    };
    let too_large = |first, bytes| TableError::OutputTooLarge {
        start: PhysicalAddress(first),
        bytes,
        pa_bits: 48,
    };
    let all_pages = 1 << 26;
    for (runs, error) in [
        (&[good, run(0x9000_1000, 1)][..], misaligned(0x9000_1000)),
        // A run of no frames is checked too.
        (&[good, run(0x1000, 0)], misaligned(0x1000)),
        (
            &[good, run((1 << 48) - 0x1_0000, 2)],
            too_large((1 << 48) - 0x1_0000, 0x2_0000),
        ),
        (&[good, run(0, u64::MAX)], too_large(0, u64::MAX)),
        (
            &[run(0, all_pages), run(0, 1)],
            outside((all_pages + 1) << 16),
        ),
        (
            &[good, good],
            TableError::AlreadyMapped {
                address: bench.reference.address(0x4_0000),
            },
        ),
    ] {
        let found = bench
            .tables
            .map_frames(start, Frames::Runs(runs), RW, Leaves::PAGES);
        assert_eq!(found, Err(error));
        assert_eq!(bench.host.take_events(), []);
        assert_eq!(bench.dump(), dump);
    }
    // Nothing at all is fine, anywhere in the space.
    bench
        .map_frames(0, Frames::Runs(&[]), RW, Leaves::PAGES)
        .unwrap();
    bench
        .map_frames(0, Frames::Runs(&[run(0x1_0000, 0)]), RW, Leaves::PAGES)
        .unwrap();
}

#[test]
fn running_out_at_every_table() {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    bench.host.set_runs(Runs::Scattered);
    bench.lay(0x1000, 0, 0x1000, RW, Leaves::PAGES);
    // Pages at the end of the first gigabyte, a block, and pages after it: level 3, then levels 2
    // and 3, in tables that are partly there.
    let gib = 1 << 30;
    let runs = [
        run(0x8000_0000, 3),
        run(0x4020_0000, 512),
        run(0x8000_8000, 2),
    ];
    let offset = gib - 3 * 0x1000;
    let needed = 1 + 2;
    let dump = bench.dump();
    let start = bench.reference.address(offset);
    for budget in 0..needed {
        bench.host.set_budget(budget);
        let frames = Frames::Runs(&runs);
        let found = bench.tables.map_frames(start, frames, RW, Leaves::LARGEST);
        assert_eq!(found, Err(TableError::OutOfTables { needed }), "{budget}");
        assert_eq!(bench.host.take_events(), [Event::Reserve(needed)]);
        assert_eq!(bench.dump(), dump);
    }
    bench.host.set_budget(needed);
    bench
        .map_frames(offset, Frames::Runs(&runs), RW, Leaves::LARGEST)
        .unwrap();
}

/// A random list of frames at a random place that is partly mapped.
#[derive(Clone, Debug)]
struct FramesCase {
    geometry: Geometry,
    live: bool,
    /// Where in the first or last table's worth of pages.
    from_end: bool,
    at: u64,
    /// For each run: pages from the end of the one before it, or anywhere, and its pages.
    runs: Vec<(Option<u64>, u64)>,
    mapped: Option<u64>,
    leaves: Leaves,
    alone: bool,
}

impl Dispatch for FramesCase {
    type Output = ();

    fn run<P: Page>(self) {
        let setting = if self.live {
            Setting::LIVE
        } else {
            Setting::PRIVATE
        };
        let mut bench = Bench::<P>::new(&self.geometry, setting);
        bench.host.set_runs(Runs::Short);
        let arch = Arch::of(&self.geometry);
        let page = arch.page();
        let frames_below = 1 << (arch.pa_bits - arch.g);
        let (mut next, mut runs) = (3, Vec::new());
        for &(place, count) in &self.runs {
            let place = place.map_or(next, |place| place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let first = place % (frames_below - count);
            runs.push(run(first * page, count));
            next = first + count;
        }
        let mut offset = self.at * page % arch.span();
        if self.from_end {
            offset = arch.span() - page - offset;
        }
        if let Some(mapped) = self.mapped {
            let at = (offset + mapped * page) % arch.span();
            bench.lay(at, 0, page, RW, Leaves::PAGES);
        }
        let frames = single(&runs, page);
        let frames = if self.alone {
            Frames::Single(&frames)
        } else {
            Frames::Runs(&runs)
        };
        let _ = bench.map_frames(offset, frames, RW, self.leaves);
        bench.unmap(0, arch.span()).unwrap();
        assert_eq!(bench.host.given_out(), 1);
    }
}

fn case() -> impl Strategy<Value = FramesCase> {
    let place = prop_oneof![3 => Just(None), 1 => (0..1000_u64).prop_map(Some)];
    let count = prop_oneof![4 => 0..4_u64, 2 => Just(16), 2 => 100..700_u64, 1 => Just(2048)];
    let leaves = prop_oneof![Just(Leaves::LARGEST), Just(Leaves::PAGES)];
    (
        proptest::sample::select(shape::all()),
        (any::<bool>(), any::<bool>(), any::<bool>()),
        prop_oneof![0..40_u64, Just(512), 0..9000_u64],
        proptest::collection::vec((place, count), 0..12),
        proptest::option::of(0..4000_u64),
        leaves,
    )
        .prop_map(
            |(geometry, (live, from_end, alone), at, runs, mapped, leaves)| FramesCase {
                geometry,
                live,
                from_end,
                at,
                runs,
                mapped,
                leaves,
                alone,
            },
        )
}

proptest! {
    #![proptest_config(config(200, 1))]

    #[test]
    #[cfg_attr(miri, ignore = "tables of all page sizes take Miri minutes")]
    fn scattered_frames_on_every_shape(case in case()) {
        case.geometry.page_size().dispatch(case);
    }
}
