//! The VMAs of a space: a tree in memory that the caller lends node by node.
//!
//! A B+ tree: [leaves](node) have VMAs, inner nodes have subtrees of one height with the range that each spans and its
//! largest gaps, so every search and change visits as many nodes as the tree is high, whatever the number of VMAs.
//! An operation makes a [plan], which finds out all that could fail; carrying it out is an [edit] of one leaf, or one for
//! each leaf whose VMAs go. Tables and frames do not belong here. Addresses are plain numbers: the space checks that
//! they are page-aligned.
//!
//! # Why not otherwise
//!
//! A sorted array moves all VMAs behind the one that changes, and is enlarged by a copy to contiguous memory. A binary
//! tree has one VMA in each node, so a search visits thrice as many, and a space with few VMAs takes more memory.

mod edit;
mod gap;
mod node;
#[cfg(test)]
mod operations;
pub(super) mod plan;
#[cfg(test)]
mod tests;

pub use node::VmaNode;

use super::error::SpaceError;
use super::vma::{Advice, Vma};
use crate::arch::VirtualAddress;
use core::fmt;
use core::ops::ControlFlow;
use edit::Edit;
use gap::Request;
use node::{Body, Child, FAN, Spare};
use plan::Change;

/// VMAs in ascending order that do not overlap. Neighbours that could be merged are one VMA.
///
/// Nodes that were lent stay lent until the end of `'s`, also those that are not in use any more.
pub struct Vmas<'s> {
    root: Option<&'s mut VmaNode<'s>>,
    /// The number of nodes on each path from the root to a VMA.
    height: usize,
    count: usize,
    /// The most VMAs.
    most: usize,
    /// The number of nodes that were lent.
    nodes: usize,
    spare: Spare<'s>,
    /// The VMA that was looked for last, unless VMAs changed since then.
    recent: Vma,
}

/// A place in a leaf.
#[derive(Clone, Copy)]
struct Position<'a> {
    /// All VMAs of the leaf.
    vmas: &'a [Vma],
    at: usize,
    /// The number of nodes above the leaf that are full, each but the last below another one of them.
    full: usize,
}

impl<'a> Position<'a> {
    fn vma(&self) -> Option<&'a Vma> {
        self.vmas.get(self.at)
    }

    /// The VMAs from here to the end of the leaf.
    fn rest(&self) -> &'a [Vma] {
        self.vmas.get(self.at..).unwrap_or_default()
    }
}

impl<'s> Vmas<'s> {
    /// Begins without VMAs. There may be at most `most` later.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            root: None,
            height: 0,
            count: 0,
            most,
            nodes: 0,
            spare: Spare::NONE,
            recent: Vma::EMPTY,
        }
    }

    /// Adds nodes to those for VMAs to come.
    pub(in crate::space) fn lend(&mut self, nodes: &'s mut [VmaNode<'s>]) {
        self.nodes += nodes.len();
        for node in nodes {
            self.spare.add(node);
        }
    }

    /// Returns the number of nodes in use: a copy takes as many.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.nodes - self.spare.count
    }

    /// Returns the number of nodes that are not in use.
    #[must_use]
    pub const fn spare_nodes(&self) -> usize {
        self.spare.count
    }

    /// Returns the number of VMAs.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there is no VMA.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Visits all VMAs, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Vma> {
        self.walk(self.place(VirtualAddress(0)), VirtualAddress(u64::MAX))
    }

    /// Finds the place of the first VMA that ends behind `address`, or the one behind all in the last leaf.
    fn place(&self, address: VirtualAddress) -> Position<'_> {
        let mut place = Position {
            vmas: &[],
            at: 0,
            full: 0,
        };
        let mut node = self.root.as_deref();
        while let Some(here) = node {
            if let Body::Leaf(_) = here.body {
                place.vmas = here.vmas();
                place.at = place.vmas.partition_point(|vma| vma.end <= address);
                break;
            }
            let children = here.children();
            let at = children.partition_point(|child| child.span.last <= address.0);
            place.full = if children.len() == FAN {
                place.full + 1
            } else {
                0
            };
            node = children
                .get(at)
                .or(children.last())
                .and_then(|child| child.node.as_deref());
        }
        place
    }

    /// Finds the VMA before a place, which starts before `address`.
    fn before<'v>(&'v self, place: &Position<'v>, address: VirtualAddress) -> Option<&'v Vma> {
        match place.at.checked_sub(1) {
            Some(at) => place.vmas.get(at),
            None => self.root.as_deref()?.last_before(address),
        }
    }

    /// Visits the VMAs from a place on that start before `end`.
    fn walk<'v>(
        &'v self,
        place: Position<'v>,
        end: VirtualAddress,
    ) -> impl Iterator<Item = &'v Vma> {
        let mut leaf = place.rest().iter();
        let mut last = None;
        core::iter::from_fn(move || {
            let vma = match (leaf.next(), last) {
                (None, Some(last)) => {
                    leaf = self.place(last).rest().iter();
                    leaf.next()?
                }
                (vma, _) => vma?,
            };
            last = Some(vma.end);
            (vma.start < end).then_some(vma)
        })
    }

    /// Counts the VMAs from a place on that start before `end`, at least one, and returns the last of them too.
    fn count_to<'v>(&'v self, mut place: Position<'v>, end: VirtualAddress) -> (usize, Vma) {
        let (mut count, mut last) = (0, Vma::EMPTY);
        loop {
            let rest = place.rest();
            let here = rest.partition_point(|vma| vma.start < end);
            count += here;
            if let Some(vma) = here.checked_sub(1).and_then(|at| rest.get(at)) {
                last = *vma;
            }
            if here == 0 || here < rest.len() || last.end >= end {
                return (count, last);
            }
            place = self.place(last.end);
        }
    }

    /// Finds the VMA that contains `address`.
    #[must_use]
    pub fn find(&self, address: VirtualAddress) -> Option<&Vma> {
        let vma = self.place(address).vma()?;
        vma.contains(address).then_some(vma)
    }

    /// Does as [`find`](Self::find), first where the last call found one: a program that touches one page of a VMA
    /// goes on with others.
    #[inline(always)]
    pub(super) fn find_near(&mut self, address: VirtualAddress) -> Option<Vma> {
        if self.recent.contains(address) {
            return Some(self.recent);
        }
        self.find_elsewhere(address)
    }

    #[inline(never)]
    fn find_elsewhere(&mut self, address: VirtualAddress) -> Option<Vma> {
        let vma = *self.find(address)?;
        self.recent = vma;
        Some(vma)
    }

    /// Visits the VMAs that overlap the range from `start` to `end`.
    pub fn overlapping(
        &self,
        start: VirtualAddress,
        end: VirtualAddress,
    ) -> impl Iterator<Item = &Vma> {
        self.walk(self.place(start), end)
    }

    /// Finds the end of the VMA before `address` and the start of the one behind it, which no VMA contains.
    pub(super) fn hole_around(
        &self,
        address: VirtualAddress,
    ) -> (Option<VirtualAddress>, Option<VirtualAddress>) {
        let place = self.place(address);
        let before = self.before(&place, address).map(|vma| vma.end);
        (before, place.vma().map(|vma| vma.start))
    }

    /// Finds the highest address, a multiple of `align`, at which `bytes` bytes are free between `low`
    /// and `high`. `align` is a power of two.
    #[must_use]
    pub fn find_gap(
        &self,
        bytes: u64,
        align: u64,
        low: VirtualAddress,
        high: VirtualAddress,
    ) -> Option<VirtualAddress> {
        let request = Request {
            bytes,
            align,
            low: low.0,
            high: high.0,
        };
        let mut end = high.0;
        let found = match self.root.as_deref() {
            Some(root) => root.highest(&request, &mut end),
            None => ControlFlow::Continue(()),
        };
        let found = found.break_value().flatten();
        found.or_else(|| request.fit(0, end)).map(VirtualAddress)
    }

    /// Adds a VMA and merges it with like neighbours. An empty VMA adds nothing.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Occupied`], [`SpaceError::TooManyVmas`], [`SpaceError::OutOfVmaNodes`].
    pub(in crate::space) fn insert(&mut self, vma: Vma) -> Result<(), SpaceError> {
        if vma.start >= vma.end {
            return Ok(());
        }
        let plan = self.plan_insertion(vma)?;
        self.carry_out(&plan);
        Ok(())
    }

    /// Removes all VMAs, and parts of VMAs, from `start` to `end`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::TooManyVmas`] and [`SpaceError::OutOfVmaNodes`] where one VMA becomes two. Nothing
    /// has changed then.
    #[cfg(test)]
    fn remove(&mut self, start: VirtualAddress, end: VirtualAddress) -> Result<(), SpaceError> {
        let plan = self.plan_replacement(start, end, None)?;
        self.carry_out(&plan);
        Ok(())
    }

    /// Changes the rights of all VMAs from `start` to `end`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotMapped`] where there is a hole, [`SpaceError::TooManyVmas`],
    /// [`SpaceError::OutOfVmaNodes`]. Nothing has changed then.
    #[cfg(test)]
    fn protect(
        &mut self,
        start: VirtualAddress,
        end: VirtualAddress,
        rights: super::Rights,
    ) -> Result<(), SpaceError> {
        let plan = self.plan_change(start, end, Change::Rights(rights))?;
        self.carry_out(&plan);
        Ok(())
    }

    /// Changes the advice of all VMAs from `start` to `end`.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect).
    pub(in crate::space) fn advise(
        &mut self,
        start: VirtualAddress,
        end: VirtualAddress,
        advice: Advice,
    ) -> Result<(), SpaceError> {
        let plan = self.plan_change(start, end, Change::Advice(advice))?;
        self.carry_out(&plan);
        Ok(())
    }

    /// Replaces `old` neighbours, the first of which starts at `from`, by new VMAs. There are enough nodes.
    fn replace(&mut self, from: VirtualAddress, mut old: usize, new: &[Vma]) {
        self.count = self.count - old + new.len();
        loop {
            if self.root.is_none() {
                self.root = self.spare.leaf();
                self.height = 1;
            }
            let Some(root) = self.root.as_deref_mut() else {
                debug_assert!(false, "nodes are reserved before a change");
                return;
            };
            let edited = root.edit(Edit { from, old, new }, &mut self.spare);
            if let Some(behind) = edited.behind {
                self.grow(behind);
            } else {
                self.shrink();
            }
            if edited.removed == old || edited.removed == 0 {
                return;
            }
            old -= edited.removed;
        }
    }

    /// Puts a root above the root and a second node.
    fn grow(&mut self, behind: Child<'s>) {
        let (Some(root), Some(below)) = (self.spare.inner(), self.root.take()) else {
            debug_assert!(false, "nodes are reserved before a change");
            return;
        };
        if let Body::Inner([first, second, ..]) = &mut root.body {
            (*first, *second) = (Child::of(below), behind);
            root.count = 2;
        }
        self.root = Some(root);
        self.height += 1;
    }

    /// Removes roots that have one child or nothing.
    fn shrink(&mut self) {
        while let Some(root) = self.root.as_deref_mut() {
            let below = match &mut root.body {
                Body::Inner([only, ..]) if root.count == 1 => only.node.take(),
                _ if root.count == 0 => None,
                _ => return,
            };
            if let Some(root) = core::mem::replace(&mut self.root, below) {
                self.spare.add(root);
                self.height -= 1;
            }
        }
        self.height = 0;
    }

    /// Replaces the VMAs by those of `other`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::TooManyVmas`], [`SpaceError::OutOfVmaNodes`]. Nothing has changed then.
    pub(in crate::space) fn copy_from(&mut self, other: &Vmas<'_>) -> Result<(), SpaceError> {
        if other.count > self.most {
            return Err(SpaceError::TooManyVmas { most: self.most });
        }
        if other.nodes() > self.nodes {
            let missing = other.nodes() - self.nodes;
            return Err(SpaceError::OutOfVmaNodes { missing });
        }
        self.clear();
        let root = other.root.as_deref();
        self.root = root.and_then(|root| root.copy(&mut self.spare));
        (self.height, self.count) = (other.height, other.count);
        Ok(())
    }

    /// Removes all VMAs.
    pub(in crate::space) fn clear(&mut self) {
        if let Some(root) = self.root.take() {
            self.spare.add_all(root);
        }
        (self.height, self.count, self.recent) = (0, 0, Vma::EMPTY);
    }
}

impl fmt::Debug for Vmas<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
