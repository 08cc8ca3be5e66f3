//! Memory that must not be mapped: the children of `/reserved-memory` with `no-map`.
//!
//! The boot tables map whole pages of up to 64 KiB, so the pages around the image and the tree may
//! reach into memory whose owner forbids any mapping, even an unused one: the CPU may read
//! cacheable memory speculatively. These ranges must be known before the tables are built.

use super::super::tree::{Range, Tree};

impl<'a> Tree<'a> {
    /// The ranges in children of `/reserved-memory` that have `no-map` and are not disabled, in the order of
    /// the tree.
    ///
    /// A damaged tree ends the search early; [`Tree::peek`] reports the damage. Entries whose
    /// numbers do not fit 64 bits are left out. Addresses are the CPU's, because the node's binding
    /// demands an empty `ranges`.
    pub fn no_map(&self) -> impl Iterator<Item = Range> + Clone + use<'a> {
        let children = self.reserved_memory().into_iter().flatten();
        children
            .filter(|child| child.property(b"no-map").is_some() && child.is_usable())
            .filter_map(|child| child.reg())
            .flatten()
            .flatten()
    }
}
