//! A contiguous group loses its hint while CPUs with TCR.HD write its pages. As long as a CPU holds the group, it may
//! mark any member dirty (RXDPXQ), so what it marked is looked for only after the invalidation.
//!
//! No rule of the model can report what is done too early: the page that was written is clean in the end.

use super::leaves::{Plain, managed};
use super::scenes::OUTPUT;
use super::taps::is_tlbi;
use crate::bench::Bench;
use crate::hardware::Notes;
use crate::machine::Tap;
use crate::operation::{Does, Operation};
use crate::random::Random;
use crate::reference::Reference;
use crate::shape::Shape;
use granule::arch::{Level, Page, Page4K, Page16K, Page64K, PhysicalAddress};
use granule::table::{EmptyTables, Leaves, Piece, Stage1, Stage2};
use granule_model::Event;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A clean group loses a page, and CPUs write pages of it meanwhile. The pages that were written and are clean, in
/// words.
fn unmap_of_written<P: Page, S: Plain>(seed: u64, planted: Option<Tap>) -> Option<String> {
    let shape = Shape::kernel(42).hardware(true).bbm_level(2);
    let mut bench = Bench::<P, S>::of(shape, seed);
    let page = P::SIZE.bytes();
    let pages = P::SIZE.contiguous_entries(Level::L3) as u64;
    let reference = Reference::new(true);
    let group = Operation::<S>::Map(Piece {
        start: S::at(bench.geometry.base().0),
        output: PhysicalAddress(OUTPUT),
        bytes: pages * page,
        attributes: managed::<S>(false),
        leaves: Leaves::LARGEST,
    });
    assert_eq!(group.perform(&mut bench, &reference), Ok(()));
    bench.settle();
    let mut notes = Notes::default();
    let offsets = (0..pages).map(|number| number * page).collect();
    let meanwhile = notes.meanwhile(&bench, offsets, Random::new(seed));
    {
        let mut world = bench.world.borrow_mut();
        world.tap = planted;
        world.meanwhile = Some(meanwhile);
    }
    let unmap = Operation::<S>::on((3 * page, page), Does::Unmap(EmptyTables::Free));
    let done = unmap.perform(&mut bench, &reference);
    bench.world.borrow_mut().meanwhile = None;
    let check = || notes.check(&bench, &unmap, done.is_ok());
    let lost = catch_unwind(AssertUnwindSafe(check)).err();
    bench.settle();
    assert_eq!(bench.violations(), Vec::<String>::new(), "seed {seed}");
    lost.map(|what| what.downcast_ref::<String>().cloned().unwrap_or_default())
}

fn written_pages_stay_dirty<P: Page, S: Plain>() {
    let seeds = || 1..100_u64;
    for seed in seeds() {
        let lost = unmap_of_written::<P, S>(seed, None);
        assert_eq!(lost, None, "{}, seed {seed}", P::SIZE);
    }
    let late = |seed| unmap_of_written::<P, S>(seed, Some(late_after_hint()));
    let found = seeds().find_map(late);
    assert!(
        found.as_ref().is_some_and(|text| text.contains("is lost")),
        "{}: a late invalidation loses no page: {found:?}",
        P::SIZE
    );
}

#[test]
fn what_a_cpu_marks_by_a_group_that_loses_its_hint_is_lost_only_if_the_invalidation_is_late() {
    written_pages_stay_dirty::<Page4K, Stage1>();
    written_pages_stay_dirty::<Page16K, Stage1>();
    written_pages_stay_dirty::<Page64K, Stage1>();
    written_pages_stay_dirty::<Page4K, Stage2>();
    written_pages_stay_dirty::<Page16K, Stage2>();
    written_pages_stay_dirty::<Page64K, Stage2>();
}

/// The invalidation of contiguous groups whose hint was cleared comes as late as that of what is changed then.
fn late_after_hint() -> Tap {
    let mut held = None;
    let mut changed = false;
    Box::new(move |_, kind| {
        let Some(late) = &mut held else {
            if is_hint_cleared(&kind) {
                (held, changed) = (Some(Vec::new()), false);
            }
            return vec![kind];
        };
        let invalidates = is_tlbi(&kind) || matches!(kind, Event::Barrier(_));
        let ends = matches!(kind, Event::Freed { .. } | Event::Settled);
        if ends || invalidates && changed {
            let mut now = core::mem::take(late);
            held = None;
            now.push(kind);
            return now;
        }
        if invalidates {
            late.push(kind);
            return Vec::new();
        }
        changed |= !is_hint_cleared(&kind);
        vec![kind]
    })
}

/// An update that clears the contiguous hint and nothing else.
const fn is_hint_cleared(kind: &Event) -> bool {
    matches!(kind, Event::Update { change, .. } if change.clear == 1 << 52 && change.set == 0)
}
