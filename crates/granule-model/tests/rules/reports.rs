//! Mistakes that others made with page tables and TLBs, from their bug reports, each as a scene. `docs/rules.md` lists
//! all of them, with those that no rule is about.

use crate::kernels::{ASID, OTHER, program};
use crate::reuse::reused;
use crate::rig::*;
use granule_model::{Barrier, Event, Policies, Rule};

/// The numbers of the reports in `docs/rules.md`, the scene without the mistake and with it, and the rule that it breaks.
type Report = (&'static [u32], fn(&mut Rig, bool), Rule);

const PAGES: u64 = RAM | PAGE | RW;

/// A page of a program that CPU 0 unmaps, with the invalidation that `flush` does; then its memory is reused.
fn unmapped(rig: &mut Rig, flush: impl FnOnce(&mut Rig)) {
    *rig = program(2, Policies::all());
    rig.cpu = 1;
    rig.event(Event::User);
    rig.cpu = 0;
    rig.store(OTHER + 0x3000, 0);
    rig.barrier(Barrier::DSB_ISHST);
    flush(rig);
    rig.event(reused(RAM));
}

const REPORTS: &[Report] = &[
    // Members of a contiguous group are cleared one by one, each with its TLBI.
    (
        &[1],
        |rig, wrong| {
            rig.fill(L3, 16, PAGES | CONT, 0x1000);
            rig.publish();
            for index in 0..16 {
                rig.store(L3 + index * 8, 0);
                if wrong {
                    rig.invalidate("vaale1is", at(VA + index * 0x1000));
                }
            }
            if !wrong {
                rig.invalidate("vmalle1is", 0);
            }
            rig.sync();
        },
        Rule::StaleTranslation,
    ),
    // A table is unlinked with a TLBI of the last level alone.
    (
        &[2],
        |rig, wrong| {
            rig.store(L2, 0);
            rig.invalidate(if wrong { "vaale1is" } else { "vaae1is" }, at(VA));
            rig.event(Event::freed(L3, 0x1000));
        },
        Rule::FreedInUse,
    ),
    // The frame is used again while the flush of a batch is still to come; a TLBI that reaches one CPU only.
    (
        &[3],
        |rig, wrong| {
            unmapped(rig, |rig| {
                if !wrong {
                    rig.invalidate("vale1is", ASID << 48);
                }
            });
        },
        Rule::StaleReuse,
    ),
    (
        &[12],
        |rig, wrong| {
            unmapped(rig, |rig| {
                rig.invalidate(if wrong { "vale1" } else { "vale1is" }, ASID << 48)
            })
        },
        Rule::StaleReuse,
    ),
    // The level hint of a TLBI names another level; its operand is not shifted, or has other bits than the address.
    (
        &[4],
        |rig, wrong| {
            narrowed(
                rig,
                if wrong {
                    0b0110 << 44 | at(VA)
                } else {
                    0b0111 << 44 | at(VA)
                },
            )
        },
        Rule::StaleTranslation,
    ),
    (
        &[12],
        |rig, wrong| narrowed(rig, if wrong { VA } else { at(VA) }),
        Rule::StaleTranslation,
    ),
    (
        &[12],
        |rig, wrong| narrowed(rig, if wrong { VA >> 12 } else { at(VA) }),
        Rule::StaleTranslation,
    ),
    // A table is linked before it is zeroed, with contents that lead back to it or that nobody stored.
    (
        &[13, 18],
        |rig, wrong| {
            rig.event(Event::obtained(SPARE, 0x1000));
            if !wrong {
                rig.fill(SPARE, 512, 0, 0);
            }
            rig.release(L2 + 8, SPARE | TABLE);
        },
        Rule::UninitialisedTable,
    ),
    (
        &[13],
        |rig, wrong| {
            rig.fill(SPARE, 512, if wrong { SPARE | TABLE } else { 0 }, 0);
            rig.release(L0 + 8, SPARE | TABLE);
            rig.publish();
            rig.sync();
        },
        Rule::UninitialisedTable,
    ),
    // A mapping of the kernel is replaced without a TLBI; a writable copy is stored over a valid page.
    (
        &[13],
        |rig, wrong| {
            rig.make(L3, PAGES);
            rig.make(L3, 0);
            if !wrong {
                rig.invalidate("vaale1is", at(VA));
            }
            rig.make(L3, PAGES + 0x1000);
        },
        Rule::BreakBeforeMake,
    ),
    (
        &[19],
        |rig, wrong| {
            rig.make(L3, PAGES | RO);
            if !wrong {
                rig.store(L3, 0);
                rig.invalidate("vaale1is", at(VA));
            }
            rig.make(L3, PAGES + 0x1000);
        },
        Rule::BreakBeforeMake,
    ),
    // No ISB after an entry was made.
    (
        &[14],
        |rig, wrong| {
            rig.store(L3, PAGES);
            rig.barrier(Barrier::DSB_ISHST);
            if !wrong {
                rig.isb();
            }
            rig.sync();
        },
        Rule::MissingIsb,
    ),
    // Contiguous hints on outputs that are not aligned.
    (
        &[18],
        |rig, wrong| {
            rig.fill(
                L3,
                16,
                (PAGES | CONT) + if wrong { 0x1000 } else { 0 },
                0x1000,
            )
        },
        Rule::UnequalContiguous,
    ),
    // The stack lies in a live table: its words become entries.
    (
        &[18],
        |rig, wrong| {
            rig.make(L3, PAGES);
            rig.store(if wrong { L3 } else { RAM }, 0x8000_7f23 | RO);
        },
        Rule::BreakBeforeMake,
    ),
];

/// A page becomes read-only, and its invalidation has this operand.
fn narrowed(rig: &mut Rig, operand: u64) {
    rig.make(L3, PAGES);
    rig.store(L3, PAGES | RO);
    rig.invalidate("vaale1is", operand);
    rig.sync();
}

#[test]
fn mistakes_of_others_are_found() {
    for (numbers, scene, rule) in REPORTS {
        let mut rig = Rig::new(0);
        scene(&mut rig, false);
        assert_eq!(rig.rules(), [], "{numbers:?}: {:?}", rig.model.violations());
        let mut rig = Rig::new(0);
        scene(&mut rig, true);
        assert!(rig.rules().contains(rule), "{numbers:?}: {:?}", rig.rules());
    }
}

#[test]
fn each_report_has_its_scene_or_its_limit() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md");
    let text = std::fs::read_to_string(document).unwrap();
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.parse::<u32>().ok()?, cells.last()?))
    });
    let mut seen = 0;
    for (number, said) in rows {
        seen += 1;
        assert_eq!(number, seen);
        // Those of stage 2 are in guests.rs, and the erratum in policies.rs.
        let has_scene = REPORTS
            .iter()
            .any(|(numbers, ..)| numbers.contains(&number))
            || [5, 7, 15, 16, 17].contains(&number);
        assert_eq!(has_scene, said.starts_with('`'), "{number}: {said}");
    }
    assert_eq!(seen, 19);
}
