//! The real kernel on several CPUs under a real QEMU: all of them come up, calls between them and
//! parking work, and a CPU that cannot come along is reported.
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
