//! The nodes of the tree of VMAs, and those that are not in use.
//!
//! A node owns its children by references to memory that the caller lent, so the tree needs no numbers of nodes,
//! no table of its memory, and no unsafe code. Changes of the tree do not belong here.

use super::gap::{Request, Span};
use crate::arch::VirtualAddress;
use crate::space::vma::Vma;
use core::fmt;
use core::ops::ControlFlow;

/// The most VMAs of a leaf. With [`FAN`] a node has less than 1000 bytes, so that four of them and a few words of
/// the caller's fit into 4 KiB.
pub(super) const LEAF: usize = 40;
/// The most children of an inner node.
pub(super) const FAN: usize = 24;

/// Memory for a node of the tree in which a space has its [VMAs](Vma). A leaf has up to 40 of them.
pub struct VmaNode<'s> {
    /// The next node that is not in use.
    next: Option<&'s mut VmaNode<'s>>,
    /// The number of VMAs or children.
    pub(super) count: usize,
    pub(super) body: Body<'s>,
}

pub(super) enum Body<'s> {
    /// VMAs in ascending order.
    Leaf([Vma; LEAF]),
    /// Subtrees in ascending order; none behind the first [`count`](VmaNode::count).
    Inner([Child<'s>; FAN]),
}

/// A subtree. All of one node have the same height.
pub(super) struct Child<'s> {
    pub(super) span: Span,
    /// `None` where there is no child.
    pub(super) node: Option<&'s mut VmaNode<'s>>,
}

impl<'s> Child<'s> {
    pub(super) const NONE: Self = Self {
        span: Span::NONE,
        node: None,
    };

    /// Makes a child of a node.
    pub(super) fn of(node: &'s mut VmaNode<'s>) -> Self {
        Self {
            span: node.span(),
            node: Some(node),
        }
    }
}

impl<'s> VmaNode<'s> {
    /// A node, to initialise memory that is lent.
    pub const EMPTY: Self = Self {
        next: None,
        count: 0,
        body: Body::Leaf([Vma::EMPTY; LEAF]),
    };

    /// Returns the VMAs of a leaf; none of an inner node.
    pub(super) fn vmas(&self) -> &[Vma] {
        match &self.body {
            Body::Leaf(vmas) => vmas.get(..self.count).unwrap_or_default(),
            Body::Inner(_) => &[],
        }
    }

    /// Returns the children of an inner node; none of a leaf.
    pub(super) fn children(&self) -> &[Child<'s>] {
        match &self.body {
            Body::Leaf(_) => &[],
            Body::Inner(children) => children.get(..self.count).unwrap_or_default(),
        }
    }

    /// Computes the node's span.
    pub(super) fn span(&self) -> Span {
        match &self.body {
            Body::Leaf(_) => {
                let vmas = self.vmas().iter();
                Span::of(vmas.map(|vma| Span::of_range(vma.start.0, vma.end.0)))
            }
            Body::Inner(_) => Span::of(self.children().iter().map(|child| child.span)),
        }
    }

    /// Returns the number of entries below which a node is joined with one beside it. A quarter is far from the half that
    /// a split leaves, so a program that changes one page back and forth does not join and split nodes each time.
    pub(super) const fn least(&self) -> usize {
        match &self.body {
            Body::Leaf(_) => LEAF / 4,
            Body::Inner(_) => FAN / 4,
        }
    }

    /// Finds the last VMA that starts before an address.
    pub(super) fn last_before(&self, address: VirtualAddress) -> Option<&Vma> {
        let mut node = self;
        loop {
            if let Body::Leaf(_) = node.body {
                let vmas = node.vmas();
                let at = vmas.partition_point(|vma| vma.start < address);
                return vmas.get(at.checked_sub(1)?);
            }
            let children = node.children();
            let at = children.partition_point(|child| child.span.first < address.0);
            node = children.get(at.checked_sub(1)?)?.node.as_deref()?;
        }
    }

    /// Looks for the highest place of a request below `end`, which is the start of the VMA behind this node or the
    /// end of the request. Continues with the start of the first VMA in `end`, and breaks without a place where
    /// no lower VMA matters.
    pub(super) fn highest(&self, request: &Request, end: &mut u64) -> ControlFlow<Option<u64>> {
        #[cfg(test)]
        super::tests::VISITS.set(super::tests::VISITS.get() + 1);
        let mut behind = |span: &Span, node: Option<&Self>| {
            if span.first >= request.high {
                return ControlFlow::Continue(());
            }
            if let Some(start) = request.fit(span.last, *end) {
                return ControlFlow::Break(Some(start));
            }
            if let Some(node) = node.filter(|_| request.may_fit(span)) {
                node.highest(request, end)?;
            }
            *end = span.first;
            if span.first <= request.low {
                return ControlFlow::Break(None);
            }
            ControlFlow::Continue(())
        };
        for vma in self.vmas().iter().rev() {
            behind(&Span::of_range(vma.start.0, vma.end.0), None)?;
        }
        for child in self.children().iter().rev() {
            behind(&child.span, child.node.as_deref())?;
        }
        ControlFlow::Continue(())
    }

    /// Changes the VMAs that lie between two addresses, whose starts and ends stay.
    pub(super) fn update(
        &mut self,
        start: VirtualAddress,
        end: VirtualAddress,
        change: &impl Fn(&mut Vma),
    ) {
        match &mut self.body {
            Body::Leaf(vmas) => {
                let vmas = vmas.iter_mut().take(self.count);
                for vma in vmas.filter(|vma| vma.start >= start && vma.end <= end) {
                    change(vma);
                }
            }
            Body::Inner(children) => {
                for child in children.iter_mut().take(self.count) {
                    let span = child.span;
                    let node = child.node.as_deref_mut();
                    if let Some(node) = node.filter(|_| span.last > start.0 && span.first < end.0) {
                        node.update(start, end, change);
                    }
                }
            }
        }
    }

    /// Copies the tree below a node of another into nodes of `spare`, which has enough.
    pub(super) fn copy<'t>(&self, spare: &mut Spare<'t>) -> Option<&'t mut VmaNode<'t>> {
        let copy = match &self.body {
            Body::Leaf(_) => spare.leaf()?,
            Body::Inner(_) => spare.inner()?,
        };
        match &mut copy.body {
            Body::Leaf(vmas) => {
                let own = self.vmas();
                vmas.get_mut(..own.len())?.copy_from_slice(own);
            }
            Body::Inner(children) => {
                for (to, from) in children.iter_mut().zip(self.children()) {
                    to.span = from.span;
                    to.node = from.node.as_deref().and_then(|node| node.copy(spare));
                }
            }
        }
        copy.count = self.count;
        Some(copy)
    }
}

impl fmt::Debug for VmaNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.vmas()).finish()
    }
}

/// The nodes that are not in use.
#[derive(Debug)]
pub(super) struct Spare<'s> {
    first: Option<&'s mut VmaNode<'s>>,
    pub(super) count: usize,
}

impl<'s> Spare<'s> {
    pub(super) const NONE: Self = Self {
        first: None,
        count: 0,
    };

    /// Adds a node that has no children any more.
    // `inline(never)`: LLVM 22.1 ends with SIGSEGV where it vectorises a loop over this for at least one node.
    #[inline(never)]
    pub(super) fn add(&mut self, node: &'s mut VmaNode<'s>) {
        node.count = 0;
        node.next = self.first.take();
        self.first = Some(node);
        self.count += 1;
    }

    /// Adds a node and all below it.
    pub(super) fn add_all(&mut self, node: &'s mut VmaNode<'s>) {
        if let Body::Inner(children) = &mut node.body {
            for child in children {
                let child = core::mem::replace(child, Child::NONE);
                if let Some(node) = child.node {
                    self.add_all(node);
                }
            }
        }
        self.add(node);
    }

    fn take(&mut self) -> Option<&'s mut VmaNode<'s>> {
        let node = self.first.take()?;
        self.first = node.next.take();
        self.count -= 1;
        Some(node)
    }

    /// Takes a leaf without VMAs.
    pub(super) fn leaf(&mut self) -> Option<&'s mut VmaNode<'s>> {
        let node = self.take()?;
        if let Body::Inner(_) = node.body {
            node.body = Body::Leaf([Vma::EMPTY; LEAF]);
        }
        Some(node)
    }

    /// Takes an inner node without children.
    pub(super) fn inner(&mut self) -> Option<&'s mut VmaNode<'s>> {
        let node = self.take()?;
        if let Body::Leaf(_) = node.body {
            node.body = Body::Inner([const { Child::NONE }; FAN]);
        }
        Some(node)
    }
}
