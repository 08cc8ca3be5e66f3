//! A request to map: a range with its output and attributes ([`Piece`]), and the allowed sizes of
//! its leaves ([`Leaves`]).

use crate::arch::page_size::Level;
use crate::arch::{Attributes, PhysicalAddress, VirtualAddress};

/// The allowed sizes of leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// The highest level of leaves, where geometry and alignment allow it.
    pub top: Level,
    /// Whether whole, naturally aligned groups get the contiguous hint.
    pub contiguous: bool,
}

impl Leaves {
    /// The largest leaves that the geometry and the alignment allow.
    pub const LARGEST: Self = Self {
        top: Level::Minus1,
        contiguous: true,
    };
    /// Single pages, so that the permissions of each can change without a split.
    pub const PAGES: Self = Self {
        top: Level::L3,
        contiguous: false,
    };
}

/// A range to map with one output and one set of attributes; the types of addresses and attributes
/// are those of stage 1 unless others are named ([`Stage`](super::Stage)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<I = VirtualAddress, A = Attributes> {
    /// The first address, a multiple of the page size.
    pub start: I,
    /// The first physical address, a multiple of the page size.
    pub output: PhysicalAddress,
    /// The bytes, a multiple of the page size.
    pub bytes: u64,
    /// The memory type and permissions.
    pub attributes: A,
    /// The allowed sizes of its leaves.
    pub leaves: Leaves,
}

impl<I, A> Piece<I, A> {
    /// The first physical address after the output, saturated.
    #[must_use]
    pub const fn output_end(&self) -> PhysicalAddress {
        PhysicalAddress(self.output.0.saturating_add(self.bytes))
    }
}
