//! Whether a removal from a trace *matters*: whether some access, walk or reuse of memory in the rest of it
//! may use a translation that the whole trace forbids.
//!
//! This judge has a machine of its own and no code of the model that `granule check` uses, so that
//! the two cannot share mistakes. It models EL1&0 without page-table isolation, and no caches.
//! Reading traces and choosing what to remove belong to the tests that use it.

mod entry;
mod hazards;
mod machine;
mod tlb;

pub use hazards::matters;
pub use machine::Machine;
