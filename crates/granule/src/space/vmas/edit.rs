//! The change of the tree: neighbours in one leaf are replaced by a few VMAs, with what follows from it in the nodes
//! above. Which VMAs are replaced by which does not belong here.
//!
//! Nodes that are full are split, so the caller has enough spare ones. A node that is left with few entries is
//! joined with one beside it.

use super::node::{Body, Child, FAN, LEAF, Spare, VmaNode};
use crate::arch::VirtualAddress;
use crate::space::vma::Vma;
use core::mem;

/// A change of neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edit<'a> {
    /// The first VMA that ends behind this address is the first that goes, or the one before which the new ones come.
    pub(super) from: VirtualAddress,
    /// The number of VMAs that go.
    pub(super) old: usize,
    /// The VMAs that take their place, at most half a leaf of them.
    pub(super) new: &'a [Vma],
}

/// The result of an edit for a node.
pub(super) struct Edited<'s> {
    /// The number of VMAs that went. Where the leaf ended before the last of them, nothing came for them yet.
    pub(super) removed: usize,
    /// The node became two, and this is the second.
    pub(super) behind: Option<Child<'s>>,
    /// Whether the VMAs of the node, and of the second, span another range than before or have other gaps.
    respans: bool,
}

impl<'s> VmaNode<'s> {
    /// Makes the change in the leaf where its first VMA is.
    pub(super) fn edit(&mut self, edit: Edit<'_>, spare: &mut Spare<'s>) -> Edited<'s> {
        match &mut self.body {
            Body::Leaf(vmas) => edit_leaf(vmas, &mut self.count, edit, spare),
            Body::Inner(children) => edit_inner(children, &mut self.count, edit, spare),
        }
    }
}

fn edit_leaf<'s>(
    vmas: &mut [Vma; LEAF],
    count: &mut usize,
    edit: Edit<'_>,
    spare: &mut Spare<'s>,
) -> Edited<'s> {
    let there = vmas.get(..*count).unwrap_or_default();
    let at = there.partition_point(|vma| vma.end <= edit.from);
    let rest = there.get(at..).unwrap_or_default();
    let gone = rest.get(..edit.old).unwrap_or(rest);
    let removed = gone.len();
    let new = if removed == edit.old { edit.new } else { &[] };
    let mut edited = Edited {
        removed,
        behind: None,
        respans: whole(gone).is_none_or(|range| whole(new) != Some(range)),
    };
    if *count - removed + new.len() <= LEAF {
        splice(vmas, count, at, removed, new);
        return edited;
    }
    let Some(node) = spare.leaf() else {
        debug_assert!(false, "nodes are reserved before a change");
        return edited;
    };
    if let Body::Leaf(upper) = &mut node.body {
        let split = split_at(*count, at, removed);
        let moved = vmas.get(split..*count).unwrap_or_default();
        for (to, from) in upper.iter_mut().zip(moved) {
            *to = *from;
        }
        node.count = moved.len();
        *count = split;
        if at < split {
            splice(vmas, count, at, removed, new);
        } else {
            splice(upper, &mut node.count, at - split, removed, new);
        }
    }
    edited.behind = Some(Child::of(node));
    edited
}

/// Decides where a full node becomes two: in the middle, but not among the entries that go. At either end of a node most
/// likely more follows there, so more of the other entries stay together.
fn split_at(count: usize, at: usize, removed: usize) -> usize {
    let split = if at + removed >= count {
        count - count / 4
    } else if at < 2 {
        count / 4
    } else {
        count / 2
    };
    if at < split && split < at + removed {
        at
    } else {
        split
    }
}

/// Replaces `old` of the first `count` VMAs, from index `at` on, by new ones for which there is room.
fn splice(vmas: &mut [Vma], count: &mut usize, at: usize, old: usize, new: &[Vma]) {
    if old != new.len() {
        vmas.copy_within(at + old..*count, at + new.len());
        *count = *count - old + new.len();
    }
    for (place, vma) in vmas.iter_mut().skip(at).zip(new) {
        *place = *vma;
    }
}

/// Returns the range of VMAs without gaps; `None` if there are gaps, or no VMAs.
fn whole(vmas: &[Vma]) -> Option<(VirtualAddress, VirtualAddress)> {
    let (first, last) = (vmas.first()?, vmas.last()?);
    let follows = |pair: &[Vma]| matches!(pair, [one, next] if one.end == next.start);
    vmas.windows(2)
        .all(follows)
        .then_some((first.start, last.end))
}

fn edit_inner<'s>(
    children: &mut [Child<'s>; FAN],
    count: &mut usize,
    edit: Edit<'_>,
    spare: &mut Spare<'s>,
) -> Edited<'s> {
    let there = children.get(..*count).unwrap_or_default();
    let at = there.partition_point(|child| child.span.last <= edit.from.0);
    // What comes behind all others comes into the last child.
    let at = at.min(count.saturating_sub(1));
    let child = children.get_mut(at);
    let Some((span, node)) =
        child.and_then(|child| Some((&mut child.span, child.node.as_deref_mut()?)))
    else {
        debug_assert!(false, "an inner node has a child");
        return Edited {
            removed: edit.old,
            behind: None,
            respans: false,
        };
    };
    let mut edited = node.edit(edit, spare);
    if node.count == 0 {
        remove(children, count, at, spare);
        return edited;
    }
    if edited.respans || edited.behind.is_some() {
        let before = mem::replace(span, node.span());
        // A gap that is smaller than the largest came or went, so nothing changes above.
        edited.respans &= edited.behind.is_some() || *span != before;
    }
    if let Some(behind) = edited.behind.take() {
        edited.behind = add(children, count, at + 1, behind, spare);
    } else if node.count < node.least() {
        join(children, count, at, spare);
    }
    edited
}

/// Adds a child. Returns the second node if the node becomes two.
fn add<'s>(
    children: &mut [Child<'s>; FAN],
    count: &mut usize,
    at: usize,
    child: Child<'s>,
    spare: &mut Spare<'s>,
) -> Option<Child<'s>> {
    if *count < FAN {
        insert(children, count, at, child);
        return None;
    }
    let node = spare.inner();
    debug_assert!(node.is_some(), "nodes are reserved before a change");
    let node = node?;
    if let Body::Inner(upper) = &mut node.body {
        let split = split_at(FAN, at, 0);
        for (to, from) in upper.iter_mut().zip(children.iter_mut().skip(split)) {
            mem::swap(to, from);
        }
        node.count = FAN - split;
        *count = split;
        if at <= split {
            insert(children, count, at, child);
        } else {
            insert(upper, &mut node.count, at - split, child);
        }
    }
    Some(Child::of(node))
}

/// Adds a child where there is room.
fn insert<'s>(children: &mut [Child<'s>; FAN], count: &mut usize, at: usize, child: Child<'s>) {
    if let Some(behind) = children.get_mut(at..=*count) {
        behind.rotate_right(1);
        if let Some(place) = behind.first_mut() {
            *place = child;
        }
        *count += 1;
    }
}

/// Removes a child that has no entries any more.
fn remove<'s>(
    children: &mut [Child<'s>; FAN],
    count: &mut usize,
    at: usize,
    spare: &mut Spare<'s>,
) {
    if let Some(behind) = children.get_mut(at..*count) {
        behind.rotate_left(1);
        *count -= 1;
        if let Some(node) = behind.last_mut().and_then(|child| child.node.take()) {
            spare.add(node);
        }
    }
}

/// Joins a child that has few entries with the one behind it, or the last with the one before: they become one, or
/// have half of all entries each.
fn join<'s>(children: &mut [Child<'s>; FAN], count: &mut usize, at: usize, spare: &mut Spare<'s>) {
    if *count < 2 {
        return;
    }
    let at = at.min(*count - 2);
    let Some([low, high]) = children.get_mut(at..at + 2) else {
        return;
    };
    let (Some(left), Some(right)) = (low.node.as_deref_mut(), high.node.as_deref_mut()) else {
        return;
    };
    let counts = (&mut left.count, &mut right.count);
    match (&mut left.body, &mut right.body) {
        (Body::Leaf(left), Body::Leaf(right)) => even_out(left, right, counts),
        (Body::Inner(left), Body::Inner(right)) => even_out(left, right, counts),
        _ => debug_assert!(false, "all children have the same height"),
    }
    low.span = left.span();
    if right.count > 0 {
        high.span = right.span();
    } else {
        remove(children, count, at + 1, spare);
    }
}

/// Moves entries between neighbours, of which they have `counts`: all to the first where three quarters of it are
/// enough, else until both have as many.
fn even_out<T>(left: &mut [T], right: &mut [T], counts: (&mut usize, &mut usize)) {
    let (low, high) = counts;
    let all = *low + *high;
    let most = left.len() - left.len() / 4;
    let wanted = if all <= most { all } else { all / 2 };
    if wanted > *low {
        let moved = wanted - *low;
        if let (Some(to), Some(from)) = (left.get_mut(*low..wanted), right.get_mut(..moved)) {
            to.swap_with_slice(from);
        }
        if let Some(from) = right.get_mut(..*high) {
            from.rotate_left(moved);
        }
    } else {
        let moved = *low - wanted;
        if let Some(to) = right.get_mut(..*high + moved) {
            to.rotate_right(moved);
        }
        if let (Some(from), Some(to)) = (left.get_mut(wanted..*low), right.get_mut(..moved)) {
            to.swap_with_slice(from);
        }
    }
    *low = wanted;
    *high = all - wanted;
}
