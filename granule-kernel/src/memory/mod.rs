//! Memory once the MMU is on: how tables are reached, the linear map, and what is given out.
//!
//! [`reach`] is where a table's physical address becomes a pointer; [`window`] reaches tables
//! through the fixmap; [`map`] makes the linear map and counts what it took;
//! [`pages`] is the page allocator that takes over from early memory;
//! [`rewrite`] splits all of the linear map's blocks for a CPU that does not allow live splits;
//! [`release`] drops what only the boot needed.

pub(crate) mod map;
pub(crate) mod pages;
pub(crate) mod reach;
pub(crate) mod release;
pub(crate) mod rewrite;
pub(crate) mod window;
