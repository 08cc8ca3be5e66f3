//! Random sequences of what programs and their kernel do.

use crate::world::{World, ran_out};
use granule::arch::bbm::BbmLevel;
use granule::arch::{AnyPage, Dispatch, Geometry, Page, PageChoice, PageSize, VaRange};
use granule::space::{Access, Advice, LargeLeaves, Rights, Settings, SpaceError};
use granule_testing::cases::config;
use granule_testing::shape::{LARGE, PLAIN};
use proptest::prelude::*;

/// One step; pages count from the beginning of a window.
#[derive(Clone, Copy, Debug)]
enum Step {
    Map(u64, u64, Rights, u8),
    /// As `Map`, whatever is there.
    MapOver(u64, u64, Rights, u8),
    Unmap(u64, u64),
    Discard(u64, u64),
    Protect(u64, u64, Rights),
    Advise(u64, u64, Advice),
    Touch(u64, Access),
    /// Some pages in a row, upward or downward.
    TouchAll(u64, u64, Access, bool),
    ByKernel(u64, Access),
    Fork,
    Exit,
    /// Frames do not come as they are wished for.
    Oblige(bool),
    /// There are no runs of frames for whole leaves.
    Runs(bool),
    /// An allocation without a wish gets the frame that was given back last.
    Reuse(bool),
    /// The next step finds only so many tables and frames.
    Scarce(usize, usize),
}

/// Pages of a window; it lies across the end of a last-level table where there is more than one.
const WINDOW: u64 = if cfg!(miri) { 60 } else { 300 };
/// Pages of a window with at least one block of 4K pages.
const BLOCKS_WINDOW: u64 = 1200;
const STEPS: usize = if cfg!(miri) { 20 } else { 120 };
const MOST_PROCESSES: usize = 4;

fn rights() -> impl Strategy<Value = Rights> {
    prop_oneof![
        6 => Just(Rights::READ_WRITE),
        2 => Just(Rights::READ),
        1 => Just(Rights::NONE),
        1 => Just(Rights::READ_EXECUTE),
        1 => Just(Rights { execute: true, ..Rights::READ_WRITE }),
    ]
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![
        3 => Just(Access::Write),
        2 => Just(Access::Read),
        1 => Just(Access::Execute),
    ]
}

fn advice() -> impl Strategy<Value = Advice> {
    proptest::sample::select(vec![Advice::None, Advice::Large, Advice::Pages])
}

/// Where a range begins, and how long it is: mostly short, now and then all there is.
fn range() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        4 => (0..WINDOW, 1..20u64),
        2 => (0..WINDOW, 1..WINDOW),
        1 => Just((0, WINDOW)),
    ]
    .prop_map(|(from, count)| (from, count.min(WINDOW - from)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (range(), rights(), 0..2u8).prop_map(|((a, n), r, l)| Step::Map(a, n, r, l)),
        1 => (range(), rights(), 0..2u8).prop_map(|((a, n), r, l)| Step::MapOver(a, n, r, l)),
        3 => range().prop_map(|(a, n)| Step::Unmap(a, n)),
        1 => range().prop_map(|(a, n)| Step::Discard(a, n)),
        3 => (range(), rights()).prop_map(|((a, n), r)| Step::Protect(a, n, r)),
        1 => (range(), advice()).prop_map(|((a, n), v)| Step::Advise(a, n, v)),
        5 => (0..WINDOW, access()).prop_map(|(a, k)| Step::Touch(a, k)),
        6 => (range(), access(), any::<bool>())
            .prop_map(|((a, n), k, d)| Step::TouchAll(a, n, k, d)),
        2 => (0..WINDOW, access()).prop_map(|(a, k)| Step::ByKernel(a, k)),
        3 => Just(Step::Fork),
        2 => Just(Step::Exit),
        1 => any::<bool>().prop_map(Step::Oblige),
        1 => any::<bool>().prop_map(Step::Runs),
        1 => any::<bool>().prop_map(Step::Reuse),
        2 => (0..4usize, 0..30usize).prop_map(|(t, f)| Step::Scarce(t, f)),
    ]
}

impl Step {
    /// The step in a larger window: what is long there is longer.
    fn spread(self, window: u64) -> Self {
        let at = |page: u64| page * window / WINDOW;
        let of = |page: u64, count: u64| {
            let count = if count > 20 { at(count) } else { count };
            (at(page), count.min(window - at(page)))
        };
        match self {
            Self::Map(page, count, rights, label) => {
                let (page, count) = of(page, count);
                Self::Map(page, count, rights, label)
            }
            Self::MapOver(page, count, rights, label) => {
                let (page, count) = of(page, count);
                Self::MapOver(page, count, rights, label)
            }
            Self::Unmap(page, count) => {
                let (page, count) = of(page, count);
                Self::Unmap(page, count)
            }
            Self::Discard(page, count) => {
                let (page, count) = of(page, count);
                Self::Discard(page, count)
            }
            Self::Protect(page, count, rights) => {
                let (page, count) = of(page, count);
                Self::Protect(page, count, rights)
            }
            Self::Advise(page, count, advice) => {
                let (page, count) = of(page, count);
                Self::Advise(page, count, advice)
            }
            Self::Touch(page, access) => Self::Touch(at(page), access),
            Self::TouchAll(page, count, access, down) => {
                let (page, count) = of(page, count);
                Self::TouchAll(page, count, access, down)
            }
            Self::ByKernel(page, access) => Self::ByKernel(at(page), access),
            other => other,
        }
    }
}

struct Play<'a> {
    geometry: Geometry,
    settings: Settings,
    /// Whether table pages can be reserved.
    reserves: bool,
    steps: &'a [(u8, Step)],
}

/// Does one step for a process. What runs out is an error, and then nothing may be amiss.
fn play<P: PageChoice>(
    world: &mut World<P>,
    process: usize,
    base: u64,
    step: Step,
    value: u64,
) -> Result<(), SpaceError> {
    match step {
        Step::Map(page, count, rights, label) => {
            let (from, to) = (base + page, base + page + count);
            if world.processes[process].reference.none_there(from, to) {
                world.map(process, from, count, rights, label)?;
            } else {
                let (start, bytes) = (world.address(from), count * world.page());
                let space = &mut world.processes[process].space;
                let refused = space.map(start, bytes, rights, label);
                assert!(matches!(refused, Err(SpaceError::Occupied { .. })));
            }
        }
        Step::MapOver(page, count, rights, label) => {
            world.map_over(process, base + page, count, rights, label)?;
        }
        Step::Unmap(page, count) => world.unmap(process, base + page, count)?,
        Step::Discard(page, count) => world.discard(process, base + page, count)?,
        Step::Protect(page, count, rights) => {
            world.protect(process, base + page, count, rights)?;
        }
        Step::Advise(page, count, advice) => world.advise(process, base + page, count, advice)?,
        Step::Touch(page, access) => {
            world.touch(process, base + page, access, value)?;
        }
        Step::TouchAll(page, count, access, down) => {
            for number in 0..count {
                let at = if down { count - 1 - number } else { number };
                world.touch(process, base + page + at, access, value + number)?;
            }
        }
        Step::ByKernel(page, access) => world.by_kernel(process, base + page, access, value)?,
        Step::Fork if world.processes.len() < MOST_PROCESSES => {
            world.fork(process)?;
        }
        Step::Exit if world.processes.len() > 1 => world.exit(process),
        Step::Fork | Step::Exit | Step::Scarce(..) => {}
        Step::Oblige(obliging) => world.frames.obliging = obliging,
        Step::Runs(runs) => world.frames.runs = runs,
        Step::Reuse(reusing) => world.frames.reusing = reusing,
    }
    Ok(())
}

impl Dispatch for Play<'_> {
    type Output = usize;

    fn run<P: Page>(self) -> usize {
        // Both are one code, but the kernel's programs of other sizes than its own have the second.
        if self.steps.len() % 2 == 0 {
            self.played::<P>()
        } else {
            self.played::<AnyPage>()
        }
    }
}

impl Play<'_> {
    fn played<P: PageChoice>(self) -> usize {
        let size = self.geometry.page_size();
        // With blocks of few pages the window has some of them.
        let window = if size == PageSize::K4 && self.geometry.va_bits() == 39 && !cfg!(miri) {
            BLOCKS_WINDOW
        } else {
            WINDOW
        };
        let mut world = if window == WINDOW {
            World::<P>::new(self.geometry, self.settings)
        } else {
            let pages = window as usize * MOST_PROCESSES;
            World::<P>::with_frames(self.geometry, self.settings, 400, pages, 5 * 512)
        };
        if !self.reserves {
            world.host.without_reservations();
        }
        world.start();
        // Across the end of a table, but inside the space.
        let table = size.entries() as u64;
        let pages = self.geometry.span() / size.bytes();
        let base = if pages > 2 * table {
            pages - table - WINDOW / 2
        } else {
            pages - WINDOW
        };
        let base = base - base.min(window - WINDOW);
        let mut refused = 0;
        let mut scarce = None;
        for (number, &(process, step)) in self.steps.iter().enumerate() {
            let process = process as usize % world.processes.len();
            let value = 1 + number as u64 * 1000;
            if let Step::Scarce(tables, frames) = step {
                scarce = Some((tables, frames));
                continue;
            }
            if let Some((tables, frames)) = scarce.take() {
                world.host.set_budget(tables);
                world.frames.budget = frames;
            }
            if let Err(error) = play(&mut world, process, base, step.spread(window), value) {
                assert!(ran_out(&error), "{step:?}: {error}");
                refused += 1;
                world.check();
                // With enough of everything the same step is done.
                world.host.set_budget(usize::MAX);
                world.frames.budget = usize::MAX;
                if let Err(error) = play(&mut world, process, base, step.spread(window), value) {
                    assert!(matches!(error, SpaceError::TooManyVmas { .. }), "{error}");
                }
            }
            world.host.set_budget(usize::MAX);
            world.frames.budget = usize::MAX;
            world.check();
        }
        world.end();
        refused
    }
}

fn geometries() -> Vec<Geometry> {
    use PageSize::{K4, K16, K64};
    let mut all = vec![PLAIN.geometry(K4, 39, VaRange::Lower)];
    if !cfg!(miri) {
        all.extend([
            PLAIN.geometry(K4, 48, VaRange::Lower),
            LARGE.geometry(K4, 52, VaRange::Lower),
            LARGE.geometry(K16, 47, VaRange::Lower),
            LARGE.geometry(K16, 36, VaRange::Lower),
            LARGE.geometry(K16, 52, VaRange::Lower),
            LARGE.geometry(K64, 42, VaRange::Lower),
            LARGE.geometry(K64, 52, VaRange::Lower),
            // One level, and a last-level table that is the root.
            LARGE.geometry(K64, 25, VaRange::Lower),
        ]);
    }
    all
}

fn settings() -> impl Strategy<Value = Settings> {
    (any::<[bool; 3]>(), proptest::bool::weighted(0.9), 0..4u32).prop_map(
        |([hardware_access, hardware_dirty, break_execute], large, bbm)| Settings {
            hardware_access,
            hardware_dirty: hardware_access && hardware_dirty,
            large_leaves: if large {
                LargeLeaves::BLOCKS
            } else {
                LargeLeaves::OFF
            },
            bbm: BbmLevel::from_number(bbm),
            break_execute,
            most_vmas: 40,
        },
    )
}

proptest! {
    #![proptest_config(config(150, 2))]

    #[test]
    fn programs_find_what_they_wrote(
        geometry in proptest::sample::select(geometries()),
        settings in settings(),
        reserves in any::<bool>(),
        steps in proptest::collection::vec((any::<u8>(), step()), 1..STEPS),
    ) {
        let play = Play { geometry, settings, reserves, steps: &steps };
        geometry.page_size().dispatch(play);
    }
}
