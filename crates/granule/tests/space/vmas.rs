//! VMAs against a plain list of pages, and the storage that they have room in.

use granule::arch::VirtualAddress;
use granule::space::{Advice, Rights, SpaceError, Vma, Vmas};
use granule_testing::cases::config;
use proptest::prelude::*;

const PAGES: u64 = 40;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64, u64, u8),
    Remove(u64, u64),
    Protect(u64, u64, u8),
    Advise(u64, u64, u8),
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
        (range.clone(), 0..6u8).prop_map(|((a, b), r)| Step::Protect(a, b, r)),
        (range, 0..3u8).prop_map(|((a, b), v)| Step::Advise(a, b, v)),
        (any_range, 1..8u64, 0..3u32).prop_map(|((a, b), n, align)| Step::Gap(a, b, n, align)),
    ]
}

fn advice(number: u8) -> Advice {
    [Advice::None, Advice::Large, Advice::Pages][number as usize % 3]
}

type Pages = [Option<(Rights, u8, Advice)>; PAGES as usize];

/// The VMAs that pages make.
fn areas_of(pages: &Pages) -> Vec<Vma> {
    let mut vmas: Vec<Vma> = Vec::new();
    for (number, page) in pages.iter().enumerate() {
        let Some((rights, label, advice)) = *page else {
            continue;
        };
        let (start, end) = (
            VirtualAddress(number as u64),
            VirtualAddress(number as u64 + 1),
        );
        match vmas.last_mut() {
            Some(last)
                if (last.end, last.rights, last.label, last.advice)
                    == (start, rights, label, advice) =>
            {
                last.end = end;
            }
            _ => vmas.push(Vma {
                start,
                end,
                rights,
                label,
                advice,
            }),
        }
    }
    vmas
}

proptest! {
    #![proptest_config(config(2000, 5))]

    #[test]
    fn areas_are_as_their_pages(
        steps in proptest::collection::vec(step(), 1..60),
        capacity in 0..12usize,
    ) {
        let mut storage = vec![Vma::EMPTY; capacity];
        let mut vmas = Vmas::new(&mut storage);
        let mut pages: Pages = [None; PAGES as usize];
        for step in steps {
            let before = vmas.all().to_vec();
            let mut new = pages;
            let at = VirtualAddress;
            let (done, slack) = match step {
                Step::Insert(from, to, number) => {
                    let page = (rights(number), number / 3, advice(number / 2));
                    let there = (from..to).find(|&page| pages[page as usize].is_some());
                    new[from as usize..to as usize].fill(Some(page));
                    let done = vmas.insert(Vma {
                        start: at(from), end: at(to), rights: page.0, label: page.1, advice: page.2,
                    });
                    if let Some(there) = there {
                        prop_assert_eq!(done, Err(SpaceError::Occupied { address: at(there) }));
                        continue;
                    }
                    (done, 0)
                }
                Step::Remove(from, to) => {
                    new[from as usize..to as usize].fill(None);
                    (vmas.remove(at(from), at(to)), 0)
                }
                Step::Protect(from, to, number) => {
                    let hole = (from..to).find(|&page| pages[page as usize].is_none());
                    for page in new[from as usize..to as usize].iter_mut().flatten() {
                        page.0 = rights(number);
                    }
                    let done = vmas.protect(at(from), at(to), rights(number));
                    if let Some(hole) = hole {
                        prop_assert_eq!(done, Err(SpaceError::NotMapped { address: at(hole) }));
                        continue;
                    }
                    // For a moment both ends are VMAs of their own.
                    (done, 2)
                }
                Step::Advise(from, to, number) => {
                    let hole = (from..to).find(|&page| pages[page as usize].is_none());
                    for page in new[from as usize..to as usize].iter_mut().flatten() {
                        page.2 = advice(number);
                    }
                    let done = vmas.advise(at(from), at(to), advice(number));
                    if let Some(hole) = hole {
                        prop_assert_eq!(done, Err(SpaceError::NotMapped { address: at(hole) }));
                        continue;
                    }
                    (done, 2)
                }
                Step::Gap(low, high, bytes, align) => {
                    let align = 1 << align;
                    let fits = |start: u64| {
                        start % align == 0
                            && start + bytes <= high
                            && (start..start + bytes).all(|page| pages[page as usize].is_none())
                    };
                    let best = (low..PAGES).rev().find(|&start| fits(start));
                    let found = vmas.find_gap(bytes, align, at(low), at(high));
                    prop_assert_eq!(found, best.map(VirtualAddress));
                    continue;
                }
            };
            let expected = areas_of(&new);
            if let Err(error) = done {
                prop_assert_eq!(error, SpaceError::VmasFull { capacity });
                let most = if slack > 0 { before.len() + slack } else { expected.len() };
                prop_assert!(most > capacity, "there was room: {:?}", step);
                prop_assert_eq!(vmas.all(), &before[..], "{:?}", step);
            } else {
                pages = new;
            }
            let expected = areas_of(&pages);
            prop_assert_eq!(vmas.all(), &expected[..], "after {:?}", step);
            for page in 0..PAGES {
                let found = vmas.find(at(page)).map(|vma| (vma.rights, vma.label, vma.advice));
                prop_assert_eq!(found, pages[page as usize]);
            }
        }
    }
}

#[test]
fn storage_is_enlarged_and_the_old_one_comes_back() {
    let (mut small, mut large) = ([Vma::EMPTY; 1], [Vma::EMPTY; 3]);
    let mut none = [Vma::EMPTY; 0];
    let mut vmas = Vmas::new(&mut small);
    let vma = |start, end| Vma {
        start: VirtualAddress(start),
        end: VirtualAddress(end),
        rights: Rights::READ,
        label: 0,
        advice: Advice::None,
    };
    vmas.insert(vma(0x1000, 0x3000)).unwrap();
    let full = Err(SpaceError::VmasFull { capacity: 1 });
    assert_eq!(vmas.insert(vma(0x8000, 0x9000)), full);
    assert_eq!(
        vmas.remove(VirtualAddress(0x1800), VirtualAddress(0x2000)),
        full
    );
    let refused = vmas.enlarge(&mut none).map(|old| old.len());
    assert_eq!(refused, Err(SpaceError::VmasFull { capacity: 0 }));
    assert_eq!(vmas.enlarge(&mut large).unwrap().len(), 1);
    vmas.insert(vma(0x8000, 0x9000)).unwrap();
    vmas.remove(VirtualAddress(0x1800), VirtualAddress(0x2000))
        .unwrap();
    let ends: Vec<_> = vmas.all().iter().map(|vma| vma.end.0).collect();
    assert_eq!(ends, [0x1800, 0x3000, 0x9000]);
    assert_eq!(vmas.capacity(), 3);
}
