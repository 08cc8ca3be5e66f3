//! Address spaces of user programs on the model: several CPUs, some of them in one space, few
//! numbers, and hardware that updates entries in the middle of whatever the library does.
//!
//! [`processes`] is the kernel of it, as small as it can be; [`random`] plays sequences.

mod frames;
pub(crate) mod processes;
mod random;
