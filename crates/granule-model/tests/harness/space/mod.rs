//! Address spaces of user programs on the model: several CPUs, some of them in one space, few
//! numbers, and hardware that updates entries in the middle of whatever the library does.
//!
//! [`processes`] is the kernel of it, as small as it can be: on its [`cpus`], with [`accesses`] to
//! what it has made, and what hardware does [`meanwhile`]. [`random`] plays sequences. [`races`]
//! has hardware at every single moment of an operation, [`late`] faults that wait while other CPUs
//! change the space, [`exhaustion`] every allocation fail. [`sizes`] has programs of three page sizes
//! at once.

mod accesses;
mod cpus;
mod exhaustion;
mod frames;
mod late;
mod meanwhile;
pub(crate) mod processes;
mod races;
mod random;
pub(crate) mod sizes;
