//! Tests of the tree itself: what its nodes have to be, how high it grows, and how many nodes a search visits.

use super::node::LEAF;
use super::*;
use crate::space::Rights;
use core::cell::Cell;
use std::boxed::Box;
use std::vec::Vec;

extern crate std;

std::thread_local! {
    /// Nodes that searches for a gap visited.
    pub(super) static VISITS: Cell<usize> = const { Cell::new(0) };
}

const UNLIMITED: usize = usize::MAX;
const PAGE: u64 = 0x1000;

fn at(page: u64) -> VirtualAddress {
    VirtualAddress(page * PAGE)
}

fn vma(from: u64, to: u64, label: u8) -> Vma {
    Vma {
        start: at(from),
        end: at(to),
        rights: Rights::READ,
        label,
        advice: Advice::None,
    }
}

/// Memory for so many nodes, until the test ends.
struct Lent(Vec<*mut VmaNode<'static>>);

impl Lent {
    const fn new() -> Self {
        Self(Vec::new())
    }

    #[allow(unsafe_code, reason = "memory that outlives the tree that has it")]
    fn lend(&mut self, vmas: &mut Vmas<'static>, count: usize) {
        for _ in 0..count {
            let node = Box::into_raw(Box::new(VmaNode::EMPTY));
            self.0.push(node);
            // SAFETY: the node is freed with `self`, after the last use of the tree.
            vmas.lend(core::slice::from_mut(unsafe { &mut *node }));
        }
    }
}

#[allow(unsafe_code, reason = "as above")]
impl Drop for Lent {
    fn drop(&mut self) {
        for node in self.0.drain(..) {
            // SAFETY: `lend` made the box, and nothing uses its tree any more.
            drop(unsafe { Box::from_raw(node) });
        }
    }
}

/// Does it with exactly the nodes that it asks for, and with one fewer first.
fn with_nodes(
    vmas: &mut Vmas<'static>,
    lent: &mut Lent,
    mut what: impl FnMut(&mut Vmas<'static>) -> Result<(), SpaceError>,
) {
    while let Err(error) = what(vmas) {
        let SpaceError::OutOfVmaNodes { missing } = error else {
            panic!("{error}");
        };
        lent.lend(vmas, (missing - 1).max(1));
    }
}

/// The number of nodes below a node, with it, and the number of VMAs.
fn check_node(node: &VmaNode<'_>, height: usize, is_root: bool) -> (usize, usize) {
    assert!(node.count > 0, "an empty node");
    assert!(is_root || node.count >= node.least(), "{}", node.count);
    if let Body::Leaf(_) = node.body {
        assert_eq!(height, 1, "leaves have one height");
        let in_order = |pair: &[Vma]| pair[0].end <= pair[1].start;
        assert!(node.vmas().windows(2).all(in_order));
        return (1, node.vmas().len());
    }
    assert!(!is_root || node.count > 1, "a root with one child");
    let (mut nodes, mut count) = (1, 0);
    for child in node.children() {
        let below = child.node.as_deref().expect("a child");
        assert_eq!(child.span, below.span());
        let (more_nodes, more) = check_node(below, height - 1, false);
        nodes += more_nodes;
        count += more;
    }
    if let Body::Inner(children) = &node.body {
        let rest = children.iter().skip(node.count);
        assert!(rest.into_iter().all(|child| child.node.is_none()));
    }
    (nodes, count)
}

fn check(vmas: &Vmas<'_>) {
    let found = match vmas.root.as_deref() {
        Some(root) => check_node(root, vmas.height, true),
        None => (0, 0),
    };
    assert_eq!(found, (vmas.nodes(), vmas.len()));
    assert_eq!(vmas.iter().count(), vmas.len());
    assert!(vmas.root.is_some() || vmas.height == 0);
    let like = |pair: &[Vma]| pair[0].continues_in(&pair[1]);
    let all: Vec<Vma> = vmas.iter().copied().collect();
    assert!(!all.windows(2).any(like), "like neighbours");
}

/// Numbers without order, always the same.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

#[test]
fn nodes_are_filled_ordered_and_spanned_whatever_is_done() {
    let (steps, pages) = if cfg!(miri) {
        (300, 900)
    } else {
        (20_000, 9000)
    };
    let mut numbers = Numbers(1);
    let mut vmas = Vmas::new(UNLIMITED);
    let mut lent = Lent::new();
    let mut highest = 0;
    for page in 0..pages / 2 {
        let new = vma(2 * page, 2 * page + 1, (page % 3) as u8);
        with_nodes(&mut vmas, &mut lent, |vmas| vmas.insert(new));
    }
    check(&vmas);
    for step in 0..steps {
        // For a while more goes than comes, and then more comes.
        let shrinks = step / (steps / 6) % 2 == 1;
        let from = numbers.below(pages);
        let long = if numbers.below(50) == 0 { 600 } else { 6 };
        let to = (from + 1 + numbers.below(long)).min(pages);
        let label = numbers.below(3) as u8;
        let kind = numbers.below(if shrinks { 9 } else { 6 });
        with_nodes(&mut vmas, &mut lent, |vmas| match kind {
            0 | 1 => match vmas.insert(vma(from, to, label)) {
                Err(SpaceError::Occupied { .. }) => Ok(()),
                done => done,
            },
            2 | 6..=8 => vmas.remove(at(from), at(to)),
            3 => {
                let plan = vmas.plan_replacement(at(from), at(to), Some(vma(from, to, label)))?;
                vmas.carry_out(&plan);
                Ok(())
            }
            _ => match vmas.protect(
                at(from),
                at(to),
                Rights {
                    write: label == 0,
                    ..Rights::READ
                },
            ) {
                Err(SpaceError::NotMapped { .. }) => Ok(()),
                done => done,
            },
        });
        highest = highest.max(vmas.height);
        if step % 50 == 0 {
            check(&vmas);
        }
    }
    assert!(cfg!(miri) || highest == 3, "{highest}");
    while !vmas.is_empty() {
        let first = vmas.iter().next().copied().unwrap();
        with_nodes(&mut vmas, &mut lent, |vmas| {
            vmas.remove(first.start, first.end)
        });
    }
    check(&vmas);
    assert_eq!(vmas.spare_nodes(), lent.0.len());
}

/// The VMAs of the largest space by default, made in an order, with a page between two of them.
fn full(order: impl Iterator<Item = u64>) -> (Vmas<'static>, Lent) {
    let mut vmas = Vmas::new(UNLIMITED);
    let mut lent = Lent::new();
    for page in order {
        let new = vma(2 * page, 2 * page + 1, 0);
        with_nodes(&mut vmas, &mut lent, |vmas| vmas.insert(new));
    }
    check(&vmas);
    (vmas, lent)
}

const MOST: u64 = crate::space::Settings::MOST_VMAS as u64;

#[test]
#[cfg_attr(miri, ignore = "hundreds of thousands of VMAs take Miri minutes")]
fn sixty_five_thousand_vmas_are_four_nodes_high() {
    for (name, order) in [
        ("upward", Box::new(0..MOST) as Box<dyn Iterator<Item = u64>>),
        ("downward", Box::new((0..MOST).rev())),
        (
            "without order",
            Box::new((0..MOST).map(|at| at * 40_503 % MOST)),
        ),
    ] {
        let (vmas, _lent) = full(order);
        assert_eq!((vmas.len() as u64, vmas.height), (MOST, 4), "{name}");
        // Some 60 bytes for a VMA.
        let most = MOST as usize * 5 / (LEAF * 2);
        assert!(vmas.nodes() < most, "{name}: {} of {most}", vmas.nodes());
    }
}

#[test]
#[cfg_attr(miri, ignore = "as above")]
fn a_search_for_a_gap_visits_few_nodes() {
    let (mut vmas, mut lent) = full(0..MOST);
    // The only gap of two pages is at the bottom, and everywhere else one page is free.
    vmas.remove(at(2), at(3)).unwrap();
    let end = 2 * MOST - 1;
    let visits = |vmas: &Vmas<'_>, bytes, align, low| {
        VISITS.take();
        let found = vmas.find_gap(bytes, align, at(low), at(end));
        (found, VISITS.take())
    };
    assert_eq!(visits(&vmas, 2 * PAGE, PAGE, 0), (Some(at(2)), 4));
    assert_eq!(visits(&vmas, 3 * PAGE, PAGE, 0), (Some(at(1)), 4));
    assert_eq!(visits(&vmas, 4 * PAGE, PAGE, 0), (None, 1));
    // Below an edge no subtree is entered but the one that the edge cuts.
    let (found, visited) = visits(&vmas, 2 * PAGE, PAGE, 3);
    assert!(found.is_none() && visited <= 4, "{visited}");

    // Gaps of almost 4 MiB that lie so that no aligned 2 MiB are free, and one that has them.
    vmas = Vmas::new(UNLIMITED);
    for number in 0..5000 {
        let page = number * 1024;
        let new = vma(page, page + if number == 7 { 1 } else { 513 }, 0);
        with_nodes(&mut vmas, &mut lent, |vmas| vmas.insert(new));
    }
    let found = visits(&vmas, 2 << 20, 2 << 20, 0);
    let end = 5000 * 1024;
    assert_eq!(vmas.iter().last().map(|vma| vma.end), Some(at(end - 511)));
    assert!(found.1 <= 4, "{found:?}");
    assert_eq!(found.0, Some(at(7 * 1024 + 512)));
}

#[test]
fn a_copy_is_a_tree_of_its_own() {
    let mut lent = Lent::new();
    let mut vmas = Vmas::new(UNLIMITED);
    for page in 0..if cfg!(miri) { 100 } else { 3000 } {
        let new = vma(3 * page, 3 * page + 1 + page % 2, 0);
        with_nodes(&mut vmas, &mut lent, |vmas| vmas.insert(new));
    }
    let mut copy = Vmas::new(UNLIMITED);
    let mut of_copy = Lent::new();
    of_copy.lend(&mut copy, vmas.nodes() - 1);
    copy.remove(at(0), at(1)).unwrap();
    let missing = Err(SpaceError::OutOfVmaNodes { missing: 1 });
    assert_eq!((copy.copy_from(&vmas), copy.len()), (missing, 0));
    of_copy.lend(&mut copy, 1);
    for _ in 0..2 {
        copy.copy_from(&vmas).unwrap();
        check(&copy);
        assert!(copy.iter().eq(vmas.iter()));
        copy.remove(at(0), at(30)).unwrap();
        check(&copy);
    }
    check(&vmas);
    let mut small = Vmas::new(3);
    assert_eq!(
        small.copy_from(&vmas),
        Err(SpaceError::TooManyVmas { most: 3 })
    );
}
