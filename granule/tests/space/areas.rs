//! Areas against a plain list of pages, and the storage that they have room in.

use granule::arch::VirtualAddress;
use granule::space::{Area, Areas, Rights, SpaceError};
use granule_testing::cases::config;
use proptest::prelude::*;

const PAGES: u64 = 40;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64, u64, u8),
    Remove(u64, u64),
    Protect(u64, u64, u8),
    Gap(u64, u64, u64, u32),
}

fn rights(number: u8) -> Rights {
    [Rights::READ, Rights::READ_WRITE, Rights::NONE][number as usize % 3]
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..PAGES, 0..12u64).prop_map(|(a, n)| (a, (a + n).min(PAGES)));
    let any_range = (0..=PAGES, 0..=PAGES).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        (range.clone(), 0..6u8).prop_map(|((a, b), r)| Step::Insert(a, b, r)),
        range.clone().prop_map(|(a, b)| Step::Remove(a, b)),
        (range, 0..6u8).prop_map(|((a, b), r)| Step::Protect(a, b, r)),
        (any_range, 1..8u64, 0..3u32).prop_map(|((a, b), n, align)| Step::Gap(a, b, n, align)),
    ]
}

type Pages = [Option<(Rights, u8)>; PAGES as usize];

/// The areas that pages make.
fn areas_of(pages: &Pages) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for (number, page) in pages.iter().enumerate() {
        let Some((rights, label)) = *page else {
            continue;
        };
        let (start, end) = (
            VirtualAddress(number as u64),
            VirtualAddress(number as u64 + 1),
        );
        match areas.last_mut() {
            Some(last) if (last.end, last.rights, last.label) == (start, rights, label) => {
                last.end = end;
            }
            _ => areas.push(Area {
                start,
                end,
                rights,
                label,
            }),
        }
    }
    areas
}

proptest! {
    #![proptest_config(config(2000, 5))]

    #[test]
    fn areas_are_as_their_pages(
        steps in proptest::collection::vec(step(), 1..60),
        capacity in 0..12usize,
    ) {
        let mut storage = vec![Area::EMPTY; capacity];
        let mut areas = Areas::new(&mut storage);
        let mut pages: Pages = [None; PAGES as usize];
        for step in steps {
            let before = areas.all().to_vec();
            let mut new = pages;
            let at = VirtualAddress;
            let (done, slack) = match step {
                Step::Insert(from, to, number) => {
                    let page = (rights(number), number / 3);
                    let there = (from..to).find(|&page| pages[page as usize].is_some());
                    new[from as usize..to as usize].fill(Some(page));
                    let done = areas.insert(Area {
                        start: at(from), end: at(to), rights: page.0, label: page.1,
                    });
                    if let Some(there) = there {
                        prop_assert_eq!(done, Err(SpaceError::Occupied { address: at(there) }));
                        continue;
                    }
                    (done, 0)
                }
                Step::Remove(from, to) => {
                    new[from as usize..to as usize].fill(None);
                    (areas.remove(at(from), at(to)), 0)
                }
                Step::Protect(from, to, number) => {
                    let hole = (from..to).find(|&page| pages[page as usize].is_none());
                    for page in new[from as usize..to as usize].iter_mut().flatten() {
                        page.0 = rights(number);
                    }
                    let done = areas.protect(at(from), at(to), rights(number));
                    if let Some(hole) = hole {
                        prop_assert_eq!(done, Err(SpaceError::NotMapped { address: at(hole) }));
                        continue;
                    }
                    // For a moment both ends are areas of their own.
                    (done, 2)
                }
                Step::Gap(low, high, bytes, align) => {
                    let align = 1 << align;
                    let fits = |start: u64| {
                        start.is_multiple_of(align)
                            && start + bytes <= high
                            && (start..start + bytes).all(|page| pages[page as usize].is_none())
                    };
                    let best = (low..PAGES).rev().find(|&start| fits(start));
                    let found = areas.find_gap(bytes, align, at(low), at(high));
                    prop_assert_eq!(found, best.map(VirtualAddress));
                    continue;
                }
            };
            let expected = areas_of(&new);
            if let Err(error) = done {
                prop_assert_eq!(error, SpaceError::AreasFull { capacity });
                let most = if slack > 0 { before.len() + slack } else { expected.len() };
                prop_assert!(most > capacity, "there was room: {:?}", step);
                prop_assert_eq!(areas.all(), &before[..], "{:?}", step);
            } else {
                pages = new;
            }
            let expected = areas_of(&pages);
            prop_assert_eq!(areas.all(), &expected[..], "after {:?}", step);
            for page in 0..PAGES {
                let found = areas.find(at(page)).map(|area| (area.rights, area.label));
                prop_assert_eq!(found, pages[page as usize]);
            }
        }
    }
}

#[test]
fn storage_is_enlarged_and_the_old_one_comes_back() {
    let (mut small, mut large) = ([Area::EMPTY; 1], [Area::EMPTY; 3]);
    let mut none = [Area::EMPTY; 0];
    let mut areas = Areas::new(&mut small);
    let area = |start, end| Area {
        start: VirtualAddress(start),
        end: VirtualAddress(end),
        rights: Rights::READ,
        label: 0,
    };
    areas.insert(area(0x1000, 0x3000)).unwrap();
    let full = Err(SpaceError::AreasFull { capacity: 1 });
    assert_eq!(areas.insert(area(0x8000, 0x9000)), full);
    assert_eq!(
        areas.remove(VirtualAddress(0x1800), VirtualAddress(0x2000)),
        full
    );
    let refused = areas.enlarge(&mut none).map(|old| old.len());
    assert_eq!(refused, Err(SpaceError::AreasFull { capacity: 0 }));
    assert_eq!(areas.enlarge(&mut large).unwrap().len(), 1);
    areas.insert(area(0x8000, 0x9000)).unwrap();
    areas
        .remove(VirtualAddress(0x1800), VirtualAddress(0x2000))
        .unwrap();
    let ends: Vec<_> = areas.all().iter().map(|area| area.end.0).collect();
    assert_eq!(ends, [0x1800, 0x3000, 0x9000]);
    assert_eq!(areas.capacity(), 3);
}
