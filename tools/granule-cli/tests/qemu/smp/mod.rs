//! The real kernel on several CPUs under a real QEMU: that all of them come up, that calls between
//! them and parking do what they say, and what is told of a CPU that cannot come along.
//!
//! The image is built before by `cargo xtask image` (`cargo xtask test` does). Counts are exact; no
//! test measures time. In [`live`] the CPUs run beside each other.

mod calls;
mod conflicts;
mod failures;
mod live;
mod machine;
mod mismatch;
mod spin_table;
mod trees;
mod up;
