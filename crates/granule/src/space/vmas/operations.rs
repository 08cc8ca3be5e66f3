//! VMAs against a plain list of pages, with every lack of memory on the way, and the limit of their number.

#![allow(unsafe_code, reason = "nodes that outlive their tree")]

extern crate std;

use super::{VmaNode, Vmas};
use crate::arch::VirtualAddress;
use crate::space::{Advice, Rights, SpaceError, Vma};
use granule_testing::cases::config;
use proptest::prelude::*;
use std::boxed::Box;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

/// Pages of a few VMAs, which one node has, and of many.
const FEW: u64 = 40;
const MANY: u64 = if cfg!(miri) { 400 } else { 3000 };

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

fn step(pages: u64) -> impl Strategy<Value = Step> {
    let any_range = (0..=pages, 0..=pages).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let short = (0..pages, 0..12u64).prop_map(move |(a, n)| (a, (a + n).min(pages)));
    let range = prop_oneof![9 => short, 1 => any_range.clone()];
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

type Pages = Vec<Option<(Rights, u8, Advice)>>;

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

/// A list of VMAs that gets one node at a time, when it lacks some.
struct Tested {
    vmas: Vmas<'static>,
    /// The nodes, to be freed at the end.
    nodes: Vec<*mut VmaNode<'static>>,
}

impl Tested {
    fn new(most: usize) -> Self {
        Self {
            vmas: Vmas::new(most),
            nodes: Vec::new(),
        }
    }

    fn lend_one(&mut self) {
        let node = Box::into_raw(Box::new(VmaNode::EMPTY));
        self.nodes.push(node);
        // SAFETY: the box is freed with `self`, when nothing uses the tree any more.
        self.vmas.lend(std::slice::from_mut(unsafe { &mut *node }));
    }

    fn all(&self) -> Vec<Vma> {
        self.vmas.iter().copied().collect()
    }

    /// Does it with one node more each time, until there are enough. Before that nothing changes.
    fn until_done(
        &mut self,
        mut what: impl FnMut(&mut Vmas<'static>) -> Result<(), SpaceError>,
    ) -> Result<(), SpaceError> {
        let (mut before, mut last) = (None, usize::MAX);
        loop {
            match what(&mut self.vmas) {
                Err(SpaceError::OutOfVmaNodes { missing }) => {
                    let before = before.get_or_insert_with(|| self.all());
                    assert_eq!(*before, self.all(), "changed without a node");
                    assert!((1..last).contains(&missing), "{missing}, then {last}");
                    last = missing;
                    self.lend_one();
                }
                done => return done,
            }
        }
    }
}

impl Drop for Tested {
    fn drop(&mut self) {
        self.vmas = Vmas::new(0);
        for node in self.nodes.drain(..) {
            // SAFETY: `lend_one` made the box, and its tree is gone.
            drop(unsafe { Box::from_raw(node) });
        }
    }
}

/// Does steps, from pages of which every other one is a VMA if there are `many`.
fn play(steps: &[Step], most: usize, page_count: u64, many: bool) -> Result<(), TestCaseError> {
    let mut tested = Tested::new(most);
    let mut pages: Pages = vec![None; page_count as usize];
    let at = VirtualAddress;
    if many {
        for page in (0..page_count).step_by(2) {
            let number = (page / 2 % 3) as u8;
            let kind = (rights(number), 0, Advice::None);
            pages[page as usize] = Some(kind);
            let vma = vma(page, page + 1, kind);
            prop_assert_eq!(tested.until_done(|vmas| vmas.insert(vma)), Ok(()));
        }
    }
    for &step in steps {
        let mut new = pages.clone();
        let done = match step {
            Step::Insert(from, to, number) => {
                let kind = (rights(number), number / 3, advice(number / 2));
                let there = (from..to).find(|&page| pages[page as usize].is_some());
                new[from as usize..to as usize].fill(Some(kind));
                let done = tested.until_done(|vmas| vmas.insert(vma(from, to, kind)));
                if let Some(there) = there {
                    prop_assert_eq!(done, Err(SpaceError::Occupied { address: at(there) }));
                    continue;
                }
                done
            }
            Step::Remove(from, to) => {
                new[from as usize..to as usize].fill(None);
                tested.until_done(|vmas| vmas.remove(at(from), at(to)))
            }
            Step::Protect(from, to, number) => {
                let hole = (from..to).find(|&page| pages[page as usize].is_none());
                for page in new[from as usize..to as usize].iter_mut().flatten() {
                    page.0 = rights(number);
                }
                let done = tested.until_done(|vmas| vmas.protect(at(from), at(to), rights(number)));
                if let Some(hole) = hole {
                    prop_assert_eq!(done, Err(SpaceError::NotMapped { address: at(hole) }));
                    continue;
                }
                done
            }
            Step::Advise(from, to, number) => {
                let hole = (from..to).find(|&page| pages[page as usize].is_none());
                for page in new[from as usize..to as usize].iter_mut().flatten() {
                    page.2 = advice(number);
                }
                let done = tested.until_done(|vmas| vmas.advise(at(from), at(to), advice(number)));
                if let Some(hole) = hole {
                    prop_assert_eq!(done, Err(SpaceError::NotMapped { address: at(hole) }));
                    continue;
                }
                done
            }
            Step::Gap(low, high, bytes, align) => {
                let align = 1 << align;
                let fits = |start: u64| {
                    start % align == 0
                        && start + bytes <= high
                        && (start..start + bytes).all(|page| pages[page as usize].is_none())
                };
                let best = (low..page_count).rev().find(|&start| fits(start));
                let found = tested.vmas.find_gap(bytes, align, at(low), at(high));
                prop_assert_eq!(found, best.map(VirtualAddress));
                continue;
            }
        };
        let expected = areas_of(&new);
        if let Err(error) = done {
            prop_assert_eq!(error, SpaceError::TooManyVmas { most });
            prop_assert!(expected.len() > most, "it may have so many: {:?}", step);
        } else {
            // What makes fewer VMAs is allowed where there are too many.
            let more = expected.len() > areas_of(&pages).len();
            prop_assert!(!more || expected.len() <= most, "too many: {:?}", step);
            pages = new;
        }
        let expected = areas_of(&pages);
        prop_assert_eq!(&tested.all(), &expected, "after {:?}", step);
        prop_assert_eq!(tested.vmas.len(), expected.len());
        for page in 0..page_count {
            let found = tested.vmas.find(at(page));
            let found = found.map(|vma| (vma.rights, vma.label, vma.advice));
            prop_assert_eq!(found, pages[page as usize]);
        }
    }
    Ok(())
}

fn vma(from: u64, to: u64, (rights, label, advice): (Rights, u8, Advice)) -> Vma {
    Vma {
        start: VirtualAddress(from),
        end: VirtualAddress(to),
        rights,
        label,
        advice,
    }
}

proptest! {
    #![proptest_config(config(2000, 3))]

    #[test]
    fn few_areas_are_as_their_pages(
        steps in proptest::collection::vec(step(FEW), 1..60),
        most in 0..24usize,
    ) {
        play(&steps, most, FEW, false)?;
    }
}

proptest! {
    #![proptest_config(config(60, 2))]

    #[test]
    fn many_areas_are_as_their_pages(
        steps in proptest::collection::vec(step(MANY), 1..if cfg!(miri) { 6 } else { 60 }),
    ) {
        play(&steps, usize::MAX, MANY, true)?;
    }
}

#[test]
fn the_limit_is_named_and_checked_before_anything_changes() {
    let mut nodes = [VmaNode::EMPTY; 2];
    let mut vmas = Vmas::new(3);
    vmas.lend(&mut nodes);
    let kind = (Rights::READ, 0, Advice::None);
    vmas.insert(vma(0x1000, 0x5000, kind)).unwrap();
    vmas.insert(vma(0x8000, 0x9000, kind)).unwrap();
    let at = VirtualAddress;
    let ends = |vmas: &Vmas<'_>| vmas.iter().map(|vma| vma.end.0).collect::<Vec<_>>();
    let full = SpaceError::TooManyVmas { most: 3 };
    // A third and a fourth.
    let refused = vmas.protect(at(0x2000), at(0x3000), Rights::NONE);
    assert_eq!((refused, ends(&vmas)), (Err(full), vec![0x5000, 0x9000]));
    vmas.remove(at(0x2000), at(0x3000)).unwrap();
    let refused = vmas.insert(vma(0x2000, 0x2800, (Rights::NONE, 0, Advice::None)));
    assert_eq!(refused, Err(full));
    // What merges with its neighbours is not one more.
    vmas.insert(vma(0x2000, 0x2800, kind)).unwrap();
    assert_eq!(ends(&vmas), [0x2800, 0x5000, 0x9000]);
    assert_eq!(
        full.to_string(),
        "a space may have 3 VMAs and no more: allow more by `most_vmas`, or use larger ranges"
    );
    assert_eq!(
        SpaceError::OutOfVmaNodes { missing: 2 }.to_string(),
        "2 nodes for VMAs are missing: lend them and try again"
    );
}
