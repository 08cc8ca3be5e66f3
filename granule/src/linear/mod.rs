//! The linear map: all of RAM at one distance from its physical address.
//!
//! [`placement`] chooses the distance, [`census`] counts leaves and tables by arithmetic before
//! anything is touched, and there is a file for each way of making the map: [`direct`], which
//! takes its tables from memory that the map already covers, and [`window`], which reaches every
//! table through a fixmap slot as the published strategies do. Which regions there are and what
//! may be done with each is the kernel's to say.

pub mod census;
pub mod direct;
pub mod placement;
pub mod window;

pub use census::Census;
pub use direct::Arena;
pub use placement::Placement;

use crate::arch::{Attributes, PhysicalAddress};
use crate::table::Leaves;

/// A piece of RAM that is mapped alike. Regions are given in ascending order and do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first byte, a multiple of the page size.
    pub start: PhysicalAddress,
    /// The bytes, a multiple of the page size.
    pub bytes: u64,
    /// How it is mapped.
    pub attributes: Attributes,
    /// How large its leaves may be.
    pub leaves: Leaves,
}

impl Region {
    /// The first byte behind the region.
    #[must_use]
    pub const fn end(&self) -> PhysicalAddress {
        PhysicalAddress(self.start.0 + self.bytes)
    }
}
