//! The architecture's rules for registers, instructions and descriptors, as pure functions of their
//! bits.
//!
//! Nothing here depends on what a CPU did before: that is [`state`](crate::state).

pub(crate) mod barrier;
pub(crate) mod context;
pub(crate) mod descriptor;
pub(crate) mod format;
pub(crate) mod regime;
pub(crate) mod tlbi;
