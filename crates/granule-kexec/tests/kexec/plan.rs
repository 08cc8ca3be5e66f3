//! The plan in random memories: what executing its records leaves is what was wanted, and nothing
//! else is touched.

use granule::arch::PageSize;
use granule_kexec::{Clean, ListRecord, MemoryMap, PhysRange, Segment, Totals, plan, reached};
use granule_testing::cases::config;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// One segment as it is drawn: pages behind the one before, pages of bytes, pages behind its bytes,
/// bytes less in the last page, what is cleaned, and how its pages are placed.
#[derive(Clone, Debug)]
struct Drawn {
    gap: u64,
    pages: u64,
    behind: u64,
    less: u64,
    clean: Clean,
    /// For each page: in place, right behind the page before, or anywhere.
    at: Vec<u8>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    (
        0u64..4,
        1u64..12,
        0u64..4,
        0u64..4096,
        prop_oneof![
            Just(Clean::Nothing),
            Just(Clean::All),
            Just(Clean::Moved),
            Just(Clean::MovedAlone)
        ],
        prop::collection::vec(0u8..6, 12),
    )
        .prop_map(|(gap, pages, behind, less, clean, at)| Drawn {
            gap,
            pages,
            behind,
            less,
            clean,
            at,
        })
}

/// Segments with the runs that their pages are in.
struct Laid {
    segments: Vec<(u64, u64, u64, Clean, Vec<PhysRange>)>,
    ram: Vec<PhysRange>,
}

/// Destinations from `base` up, sources behind all of them, some of them runs, some in between.
fn lay(drawn: &[Drawn], page: PageSize, base: u64, shuffle: u64) -> Laid {
    let bytes = page.bytes();
    let mut at = base;
    let mut segments = Vec::new();
    for one in drawn {
        at += one.gap * bytes;
        segments.push((at, one));
        at += (one.pages + one.behind) * bytes;
    }
    let end = at;
    // Free pages, in a random order, each with a neighbour now and then.
    let count: u64 = drawn.iter().map(|one| one.pages).sum();
    let pool = 3 * count + 2;
    let mut next = shuffle;
    let mut used = BTreeSet::new();
    let mut last = None;
    let mut random = move |below: u64| {
        next = next
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (next >> 33) % below
    };
    let mut take = |behind_last: bool| {
        let wish = match last {
            Some(last) if behind_last && last + 1 < pool => last + 1,
            _ => random(pool),
        };
        let free = (0..pool).map(|step| (wish + step) % pool);
        let found = free
            .into_iter()
            .find(|index| !used.contains(index))
            .unwrap();
        used.insert(found);
        last = Some(found);
        end + found * bytes
    };
    let segments = segments
        .into_iter()
        .map(|(destination, one)| {
            let mut runs: Vec<PhysRange> = Vec::new();
            for index in 0..one.pages {
                let place = destination + index * bytes;
                let start = match one.at[index as usize] {
                    0 | 1 => place,
                    how => take(how > 3),
                };
                // Sometimes a caller joins what follows each other, sometimes not.
                match runs.last_mut() {
                    Some(run)
                        if run.start + run.bytes == start
                            && (start == place) == (run.start == place - run.bytes)
                            && one.at[index as usize] % 2 == 1 =>
                    {
                        run.bytes += bytes;
                    }
                    _ => runs.push(PhysRange::new(start, bytes)),
                }
            }
            let length = one.pages * bytes - one.less.min(bytes - 1);
            let memory = (one.pages + one.behind) * bytes;
            (destination, length, memory, one.clean, runs)
        })
        .collect();
    let ram = vec![PhysRange::new(base, end + pool * bytes - base)];
    Laid { segments, ram }
}

/// Memory in pages of the smallest size: what each holds is the address it began at.
fn execute(records: &[ListRecord]) -> BTreeMap<u64, u64> {
    let mut memory = BTreeMap::new();
    for record in records {
        if record.copies() {
            for at in (0..record.bytes).step_by(4096) {
                let from = record.source + at;
                let value = memory.get(&from).copied().unwrap_or(from);
                memory.insert(record.destination + at, value);
            }
        }
    }
    memory
}

proptest! {
    #![proptest_config(config(500, 6))]

    #[test]
    fn executing_it_gives_the_wanted_bytes_and_touches_nothing_else(
        drawn in prop::collection::vec(drawn(), 1..5),
        size in 0usize..3,
        shuffle: u64,
    ) {
        let page = PageSize::ALL[size];
        let laid = lay(&drawn, page, 0x8000_0000, shuffle);
        let segments: Vec<Segment<'_>> = laid.segments.iter().map(|(destination, bytes, memory, clean, pages)| Segment {
            name: "segment", destination: *destination, bytes: *bytes, memory: *memory, pages, clean: *clean,
        }).collect();
        let memory_map = MemoryMap { page, ram: &laid.ram, reserved: &[], kept: &[] };
        let mut records = Vec::new();
        let totals = plan(&segments, &memory_map, |record| records.push(record));
        let totals = totals.unwrap();

        // Wanted: each page of a segment where it is to be.
        let after = execute(&records);
        let mut wanted = BTreeMap::new();
        let (mut in_place, mut runs) = (0, 0);
        let (mut cleaned, mut may_be_cleaned) = (BTreeSet::new(), BTreeSet::new());
        for segment in &segments {
            let mut at = segment.destination;
            for run in segment.pages {
                runs += 1;
                for offset in (0..run.bytes).step_by(4096) {
                    let moved = run.start != at;
                    if moved {
                        wanted.insert(at + offset, run.start + offset);
                    } else {
                        in_place += 4096;
                    }
                    let moves = matches!(segment.clean, Clean::Moved | Clean::MovedAlone);
                    if segment.clean == Clean::All || moves && moved {
                        cleaned.insert(at + offset);
                    }
                }
                at += run.bytes;
            }
            if matches!(segment.clean, Clean::All | Clean::Moved) {
                cleaned.extend((at..segment.destination + segment.memory).step_by(4096));
            }
            may_be_cleaned.extend((segment.destination..segment.destination + segment.memory).step_by(4096));
        }
        // Nothing but what is wanted, so nothing outside of the destinations either, and what is in
        // place is not in a copy.
        prop_assert_eq!(&after, &wanted);

        let lines: Vec<u64> = records.iter().filter(|it| it.cleans())
            .flat_map(|it| (it.destination..it.destination + it.bytes).step_by(4096)).collect();
        let found: BTreeSet<u64> = lines.iter().copied().collect();
        prop_assert_eq!(lines.len(), found.len(), "cleaned twice");
        prop_assert_eq!(&found, &cleaned);
        prop_assert!(found.is_subset(&may_be_cleaned));

        // Merged: no two neighbours could be one, and there are no more copies than runs.
        for two in records.windows(2) {
            let (a, b) = (two[0], two[1]);
            prop_assert!(a.kind != b.kind || a.destination + a.bytes != b.destination || a.source + a.bytes != b.source);
        }
        prop_assert!(totals.copies <= runs);
        let copied: u64 = records.iter().filter(|it| it.copies()).map(|it| it.bytes).sum();
        prop_assert_eq!(totals, Totals {
            records: records.len() as u64,
            copies: records.iter().filter(|it| it.copies()).count() as u64,
            bytes_copied: copied,
            bytes_in_place: in_place,
            bytes_cleaned: 4096 * cleaned.len() as u64,
        });
        prop_assert_eq!(copied, 4096 * wanted.len() as u64);
        for record in &records {
            prop_assert!(record.bytes > 0 && record.bytes % page.bytes() == 0);
            prop_assert!(record.kind != 0 && record.kind < 4);
        }

        // `reached` reports all memory that the records name.
        let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
        reached(&segments, |extent, writes| {
            let pages = (extent.start..extent.start + extent.bytes).step_by(4096);
            if writes { written.extend(pages) } else { read.extend(pages) }
        });
        prop_assert!(wanted.keys().all(|at| written.contains(at)));
        prop_assert!(cleaned.iter().all(|at| written.contains(at)));
        prop_assert_eq!(read, wanted.values().copied().collect::<BTreeSet<u64>>());
    }

    /// Nothing anybody writes makes it panic, and what it accepts is inside RAM.
    #[test]
    fn wild_segments_are_refused(
        wild in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..4),
        mask in prop_oneof![Just(u64::MAX), Just(!0xfff), Just(0xf000)],
    ) {
        let runs: Vec<[PhysRange; 1]> = wild.iter().map(|it| [PhysRange::new(it.3 & mask, it.4 & mask)]).collect();
        let segments: Vec<Segment<'_>> = wild.iter().zip(&runs).map(|(it, pages)| Segment {
            name: "wild", destination: it.0 & mask, bytes: it.1 & mask, memory: it.2 & mask, pages, clean: Clean::All,
        }).collect();
        let ram = [PhysRange::new(0, 0x1_0000)];
        let memory_map = MemoryMap { page: PageSize::K4, ram: &ram, reserved: &[], kept: &[] };
        let mut records = Vec::new();
        if plan(&segments, &memory_map, |record| records.push(record)).is_err() {
            prop_assert!(records.is_empty());
        }
        for record in records {
            prop_assert!(record.destination + record.bytes <= 0x1_0000);
            prop_assert!(record.source + record.bytes <= 0x1_0000);
        }
    }
}

#[test]
fn a_whole_image_in_one_run_is_one_copy() {
    let pages = [
        PhysRange::new(0x900_0000, 8 << 20),
        PhysRange::new(0x980_0000, 8 << 20),
    ];
    let image = Segment {
        name: "image",
        destination: 0x20_0000,
        bytes: 16 << 20,
        memory: 17 << 20,
        pages: &pages,
        clean: Clean::All,
    };
    let ram = [PhysRange::new(0, 1 << 30)];
    let memory_map = MemoryMap {
        page: PageSize::K4,
        ram: &ram,
        reserved: &[],
        kept: &[],
    };
    let mut records = Vec::new();
    plan(&[image], &memory_map, |record| records.push(record)).unwrap();
    let record = |destination, source, bytes, kind| ListRecord {
        destination,
        source,
        bytes,
        kind,
    };
    assert_eq!(
        records,
        [
            record(0x20_0000, 0x900_0000, 16 << 20, 3),
            record(0x120_0000, 0x120_0000, 1 << 20, 2),
        ]
    );
    // In place there is nothing to do but to clean, in one piece.
    let there = [PhysRange::new(0x20_0000, 16 << 20)];
    records.clear();
    let image = Segment {
        pages: &there,
        ..image
    };
    let totals = plan(&[image], &memory_map, |record| records.push(record)).unwrap();
    assert_eq!(records, [record(0x20_0000, 0x20_0000, 17 << 20, 2)]);
    assert_eq!((totals.copies, totals.bytes_in_place), (0, 16 << 20));
    let initramfs = Segment {
        clean: Clean::Nothing,
        ..image
    };
    let totals = plan(&[initramfs], &memory_map, |record| panic!("{record:?}")).unwrap();
    assert_eq!(totals.records, 0);
}
