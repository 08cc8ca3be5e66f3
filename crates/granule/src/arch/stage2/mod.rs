//! Stage 2 as values: the translation of a virtual machine's addresses by its hypervisor.
//!
//! A guest's own tables (stage 1) give intermediate physical addresses (IPA), and stage 2 gives the
//! physical address of each. The descriptors look like those of stage 1, but most attribute bits
//! mean something else, and the root may be several concatenated tables. This module holds the
//! shape, the descriptor bits and the registers of stage 2. Like the rest of `arch` it touches no
//! memory and issues no instruction.

mod attributes;
mod geometry;
mod registers;

pub use attributes::{Execute, Stage2Attributes, Stage2Memory, Stage2Permissions};
pub use geometry::Stage2Geometry;
pub use registers::{Vtcr, Vttbr};
