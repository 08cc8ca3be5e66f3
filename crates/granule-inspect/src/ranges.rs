//! Ranges of addresses that are mapped alike: neighbouring leaves as one. This module does not walk.

use crate::tree::Tree;
use crate::walk::Leaves;
use granule::arch::{Descriptor, Level};

/// Neighbouring leaves of one size with the same attributes and consecutive outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub bytes: u64,
    /// The physical address of the first byte; of a guest's own tables the intermediate one.
    pub output: u64,
    /// The level of the leaves.
    pub level: Level,
    /// The bytes of one leaf; in a contiguous group those of one of its entries.
    pub leaf_bytes: u64,
    /// Whether the contiguous hint is set.
    pub contiguous: bool,
    /// The descriptor bits of the attributes, in the tree's geometry: what hardware obeys, the
    /// restrictions of tables included.
    pub attributes: u64,
}

impl Range {
    pub const fn last(&self) -> u64 {
        self.start.wrapping_add(self.bytes - 1)
    }

    /// The range of these leaves alone.
    pub const fn of(tree: &Tree, leaves: &Leaves) -> Self {
        let bits = tree
            .geometry()
            .attribute_bits(leaves.descriptor, leaves.level);
        Self {
            start: leaves.start,
            bytes: leaves.count * leaves.leaf_bytes,
            output: leaves.output,
            level: leaves.level,
            leaf_bytes: leaves.leaf_bytes,
            contiguous: leaves.descriptor.is_contiguous(),
            attributes: bits & !Descriptor::SOFTWARE,
        }
    }

    /// Whether `next` goes on where this range ends, with the same attributes and leaves of any size.
    pub const fn continues_in(&self, next: &Self) -> bool {
        self.start.wrapping_add(self.bytes) == next.start
            && self.output.wrapping_add(self.bytes) == next.output
            && self.attributes == next.attributes
    }
}

/// Makes ranges of leaves that come by ascending address. It keeps one range.
#[derive(Debug, Default)]
pub struct Merger {
    last: Option<Range>,
}

impl Merger {
    /// Takes the next leaves, and returns the range before them if they do not belong to it.
    pub fn push(&mut self, next: Range) -> Option<Range> {
        if let Some(last) = &mut self.last
            && last.level == next.level
            && last.contiguous == next.contiguous
            && last.continues_in(&next)
        {
            last.bytes += next.bytes;
            return None;
        }
        self.last.replace(next)
    }

    pub const fn end(&mut self) -> Option<Range> {
        self.last.take()
    }
}
