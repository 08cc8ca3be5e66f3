//! What the architecture says about registers, instructions and descriptors, as pure functions of
//! their bits.
//!
//! Nothing here knows what any CPU did: that is [`state`](crate::state).

pub(crate) mod barrier;
pub(crate) mod context;
pub(crate) mod descriptor;
pub(crate) mod format;
pub(crate) mod regime;
pub(crate) mod tlbi;
