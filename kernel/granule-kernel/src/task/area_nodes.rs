//! Memory for the areas of a space: nodes of the library's tree, in frames or pieces of frames that are freed together
//! after the space.

#![allow(unsafe_code, reason = "memory that a space has until it ends")]

use super::owned::{self, Chain};
use granule::arch::PageChoice;
use granule::space::{Space, UserFrames, VmaNode};
use granule::table::TableEnvironment;

/// Nodes that are made at least where one is missing, so that not each that is needed repeats a call.
const AT_ONCE: usize = 4;

/// The nodes of one space. Whatever happens to the areas, they are there until this is dropped.
pub(super) struct AreaNodes(Chain<VmaNode<'static>>);

impl AreaNodes {
    /// Begins without a node.
    ///
    /// # Safety
    ///
    /// Whatever gets nodes from this is dropped before.
    pub(super) const unsafe fn new() -> Self {
        Self(Chain::new())
    }

    /// Makes the node that a space begins with; most programs never need more. `None` if memory is exhausted.
    pub(super) fn first(&mut self) -> Option<&'static mut [VmaNode<'static>]> {
        self.make(1)
    }

    /// Lends nodes to a space. False if memory is exhausted; some may have come then.
    // `inline(never)`: each operation on each kind of space has a call.
    #[cold]
    #[inline(never)]
    pub(super) fn lend<P: PageChoice, E: TableEnvironment, F: UserFrames>(
        &mut self,
        space: &mut Space<'static, P, E, F>,
        mut missing: usize,
    ) -> bool {
        while missing > 0 {
            let Some(nodes) = self.make(missing.max(AT_ONCE)) else {
                return false;
            };
            missing = missing.saturating_sub(nodes.len());
            space.lend_vma_nodes(nodes);
        }
        true
    }

    #[inline(never)]
    fn make(&mut self, most: usize) -> Option<&'static mut [VmaNode<'static>]> {
        let made = self
            .0
            .add(most, owned::smallest_block(), || VmaNode::EMPTY)?;
        // SAFETY: nothing else uses the nodes. They are there until the chain is dropped, which is after their users,
        // as the caller of `new` vouches.
        Some(unsafe { &mut *made.as_ptr() })
    }
}
