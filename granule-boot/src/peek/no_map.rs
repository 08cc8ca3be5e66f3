//! Memory that must not be mapped: the children of `/reserved-memory` with `no-map`.
//!
//! The boot tables map whole pages of up to 64 KiB, so the pages around the image and the tree may
//! reach into memory whose owner forbids any mapping, even an unused one: the CPU may read
//! cacheable memory speculatively. These ranges must be known before the tables are built.

use super::super::bytes::same;
use super::console::{Bus, bytes_of, number};
use super::tree::{Token, Tree, Walk};

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl Range {
    /// Whether both ranges have a byte in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        // Distances instead of ends, because a range may end at the end of the address space.
        let after = self.start.wrapping_sub(other.start);
        let before = other.start.wrapping_sub(self.start);
        if self.bytes == 0 || other.bytes == 0 {
            return false;
        }
        (self.start >= other.start && after < other.bytes)
            || (other.start >= self.start && before < self.bytes)
    }

    /// The range rounded outward to multiples of `page`, a power of two.
    #[must_use]
    pub const fn outward(self, page: u64) -> Self {
        let mask = page.wrapping_sub(1);
        let start = self.start & !mask;
        let bytes = self
            .bytes
            .saturating_add(self.start & mask)
            .saturating_add(mask)
            & !mask;
        Self { start, bytes }
    }
}

/// The ranges that must not be mapped, in the order of the tree. See [`Tree::no_map`].
#[derive(Clone, Debug)]
pub struct NoMap<'a> {
    walk: Walk<'a>,
    /// Whether the walk is in `/reserved-memory`; `bus` has the cells that this node states.
    inside: bool,
    bus: Bus<'a>,
    /// The properties so far of the child that the walk is in.
    child: Child<'a>,
    /// Entries of a child's `reg` that are still to be returned.
    ready: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
struct Child<'a> {
    no_map: bool,
    usable: bool,
    reg: &'a [u8],
}

impl Child<'_> {
    const SILENT: Self = Self {
        no_map: false,
        usable: true,
        reg: &[],
    };
}

impl<'a> Tree<'a> {
    /// The ranges in children of `/reserved-memory` that have `no-map` and are not disabled.
    ///
    /// A damaged tree ends the search early; [`Tree::peek`] reports the damage. `reg` is ignored if
    /// its numbers have no cells or more than two. Addresses are the CPU's, because the node's
    /// binding demands an empty `ranges`.
    #[must_use]
    pub fn no_map(&self) -> NoMap<'a> {
        NoMap {
            walk: Walk::new(*self),
            inside: false,
            bus: Bus::SILENT,
            child: Child::SILENT,
            ready: &[],
        }
    }
}

impl NoMap<'_> {
    /// The next entry of the current `reg`.
    fn entry(&mut self) -> Option<Range> {
        let size_at = bytes_of(self.bus.address_cells)?;
        let bytes = size_at.checked_add(bytes_of(self.bus.size_cells)?)?;
        let (entry, rest) = self.ready.split_at_checked(bytes)?;
        self.ready = rest;
        Some(Range {
            start: number(entry, 0, self.bus.address_cells)?,
            bytes: number(entry, size_at, self.bus.size_cells)?,
        })
    }
}

impl Iterator for NoMap<'_> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        loop {
            if let Some(range) = self.entry() {
                return Some(range);
            }
            self.ready = &[];
            let Ok(Some(token)) = self.walk.next() else {
                return None;
            };
            let depth = self.walk.depth();
            match token {
                Token::Begin { name } if depth == 2 => {
                    self.inside = same(name, b"reserved-memory");
                    self.bus = Bus::SILENT;
                }
                Token::Begin { .. } if depth == 3 => self.child = Child::SILENT,
                // The walk is one level above the node that ended. Properties come in any order, so
                // the node is known only at its end.
                Token::End
                    if depth == 2 && self.inside && self.child.no_map && self.child.usable =>
                {
                    self.ready = self.child.reg;
                }
                Token::Property { name, value } if self.inside && depth == 2 => {
                    self.bus.read(name, value);
                }
                Token::Property { name, value } if self.inside && depth == 3 => {
                    if name.is(b"no-map") {
                        self.child.no_map = true;
                    } else if name.is(b"reg") {
                        self.child.reg = value;
                    } else if name.is(b"status") {
                        self.child.usable = same(value, b"okay\0") || same(value, b"ok\0");
                    }
                }
                _ => {}
            }
        }
    }
}
