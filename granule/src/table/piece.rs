//! A request to map: a range, its output and attributes ([`Piece`]), and the sizes of leaves that may
//! map it ([`Leaves`]).

use crate::arch::page_size::Level;
use crate::arch::{Attributes, PhysicalAddress, VirtualAddress};

/// How large leaves may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// The first level at which leaves are made where everything else allows it.
    pub top: Level,
    /// Whether the contiguous hint is set on whole, naturally aligned groups.
    pub contiguous: bool,
}

impl Leaves {
    /// The largest that the geometry and the alignment allow.
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

/// A range to be mapped alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first address, a multiple of the page size.
    pub start: VirtualAddress,
    /// What it translates to, a multiple of the page size.
    pub output: PhysicalAddress,
    /// The bytes, a multiple of the page size.
    pub bytes: u64,
    /// The memory type and permissions.
    pub attributes: Attributes,
    /// How large its leaves may be.
    pub leaves: Leaves,
}

impl Piece {
    /// The first physical address behind its output.
    #[must_use]
    pub const fn output_end(&self) -> PhysicalAddress {
        PhysicalAddress(self.output.0.saturating_add(self.bytes))
    }
}
