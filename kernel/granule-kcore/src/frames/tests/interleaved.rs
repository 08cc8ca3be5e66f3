//! Several CPUs allocate and free table pages at once, over interleavings that the test's scheduler
//! makes: a reservation holds whatever other CPUs do in between, no page is allocated twice, none is
//! lost.

#![allow(unsafe_code, reason = "tables that nothing writes")]

use super::super::tables::{Source, Tables};
use super::super::{Frame, Frames, metadata::metadata_words};
use core::mem::MaybeUninit;
use granule::arch::PageSize;
use granule::table::FreedTable;
use granule_testing::cases::times;
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Mutex};
use shuttle::{Config, Runner};

const FRAMES: u64 = 24;
const CPUS: usize = 3;
const SCHEDULES: usize = 2_000;

struct Shared {
    frames: Mutex<Frames<'static>>,
    /// The owner of each frame.
    owners: Mutex<[Option<usize>; FRAMES as usize]>,
}

#[derive(Clone)]
struct Locked(Arc<Shared>);

impl Source for Locked {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        what(&mut self.0.frames.lock().unwrap())
    }
}

fn cpu(number: usize, shared: &Arc<Shared>) {
    // SAFETY: the frames are only numbers here; no code touches their memory.
    let mut tables = unsafe { Tables::new(Locked(shared.clone())) };
    for wanted in [3, 5] {
        if !tables.reserve(wanted) {
            continue;
        }
        let mut taken = Vec::new();
        let mut left = wanted;
        while left > 0 {
            shuttle::thread::yield_now();
            let run = tables.allocate_run(left).expect("reserved pages are there");
            left -= run.count;
            for page in 0..run.count as u64 {
                let table = granule::arch::PhysicalAddress(run.first.0 + page * 4096);
                let slot = (table.0 / 4096) as usize;
                let before = shared.owners.lock().unwrap()[slot].replace(number);
                assert_eq!(before, None, "a page is with two CPUs");
                taken.push((table, slot));
            }
        }
        for (table, slot) in taken {
            shared.owners.lock().unwrap()[slot] = None;
            // SAFETY: no tables are made in this test.
            tables.free(unsafe { FreedTable::unreachable(table) });
        }
    }
}

#[test]
fn reservations_hold_and_nothing_is_lost_under_interleavings() {
    let mut config = Config::new();
    // Debug builds hold several copies of `Frames` on the stack.
    config.stack_size = 1 << 20;
    let scheduler = RandomScheduler::new(SCHEDULES * times());
    Runner::new(scheduler, config).run(|| {
        let mut frames = Frames::new(PageSize::K4);
        let words = metadata_words(FRAMES) as usize;
        let memory = Vec::leak(vec![MaybeUninit::uninit(); words]);
        frames.add_span(Frame(0), FRAMES, memory).unwrap();
        frames.add_range(Frame(0), FRAMES).unwrap();
        let owners = Mutex::new([None; FRAMES as usize]);
        let shared = Arc::new(Shared {
            frames: Mutex::new(frames),
            owners,
        });
        let cpus: Vec<_> = (0..CPUS)
            .map(|number| {
                let shared = shared.clone();
                shuttle::thread::spawn(move || cpu(number, &shared))
            })
            .collect();
        for cpu in cpus {
            cpu.join().unwrap();
        }
        let frames = shared.frames.lock().unwrap();
        assert_eq!(frames.free_frames(), FRAMES);
        assert_eq!(
            (frames.allocated(), frames.reserved(), frames.refused()),
            (0, 0, 0)
        );
    });
}
