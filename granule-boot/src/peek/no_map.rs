//! Memory that must not be mapped: the children of `/reserved-memory` with `no-map`.
//!
//! The boot tables map in whole pages, and a page is up to 64 KiB: what they map around image and
//! tree may reach into memory whose owner allows no mapping, not even one that is never used
//! (a cacheable mapping may be read on speculation). That is to be known before they are built.

use super::super::bytes::same;
use super::console::{Bus, bytes_of, number};
use super::tree::{Token, Tree, Walk};

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Range {
    /// Whether a byte is in both.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        // Distances instead of ends: a range may end where the addresses do.
        let after = self.start.wrapping_sub(other.start);
        let before = other.start.wrapping_sub(self.start);
        if self.bytes == 0 || other.bytes == 0 {
            return false;
        }
        (self.start >= other.start && after < other.bytes)
            || (other.start >= self.start && before < self.bytes)
    }

    /// The range outward to multiples of `page`, a power of two.
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

/// The ranges that must not be mapped, in the order of the tree; see [`Tree::no_map`].
#[derive(Clone, Debug)]
pub struct NoMap<'a> {
    walk: Walk<'a>,
    /// Whether the walk is in `/reserved-memory`, and what that says of its children.
    inside: bool,
    bus: Bus<'a>,
    /// What the child that the walk is in has said so far.
    child: Child<'a>,
    /// Entries of a child's `reg` that are to be handed out.
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
    /// A damaged tree ends the search early: [`Tree::peek`] says what is wrong with it. Of `reg`
    /// nothing is read if its numbers have more than two cells, or none; addresses are the CPU's,
    /// as the node's binding asks (an empty `ranges`).
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
    /// The next entry of the `reg` at hand.
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
                // The walk is one level up from the node that ended: properties may come in any
                // order, so only its end says what the node is.
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
