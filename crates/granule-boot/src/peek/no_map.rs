//! Memory that must not be mapped: the children of `/reserved-memory` with `no-map`.
//!
//! The boot tables map whole pages of up to 64 KiB, so the pages around the image and the tree may
//! reach into memory whose owner forbids any mapping, even an unused one: the CPU may read
//! cacheable memory speculatively. These ranges must be known before the tables are built.

use super::super::tree::{Children, Range, Reg, Tree};

/// The ranges that must not be mapped, in the order of the tree. See [`Tree::no_map`].
#[derive(Clone, Debug)]
pub struct NoMap<'a> {
    children: Option<Children<'a>>,
    /// Entries of a child's `reg` that are still to be returned.
    reg: Option<Reg<'a>>,
}

impl<'a> Tree<'a> {
    /// The ranges in children of `/reserved-memory` that have `no-map` and are not disabled.
    ///
    /// A damaged tree ends the search early; [`Tree::peek`] reports the damage. Entries whose
    /// numbers do not fit 64 bits are left out. Addresses are the CPU's, because the node's binding
    /// demands an empty `ranges`.
    #[must_use]
    pub fn no_map(&self) -> NoMap<'a> {
        NoMap {
            children: self.reserved_memory(),
            reg: None,
        }
    }
}

impl Iterator for NoMap<'_> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        loop {
            for entry in self.reg.as_mut().into_iter().flatten() {
                if entry.is_some() {
                    return entry;
                }
            }
            let child = self.children.as_mut()?.next()?;
            let forbids = child.property(b"no-map").is_some() && child.is_usable();
            self.reg = if forbids { child.reg() } else { None };
        }
    }
}
