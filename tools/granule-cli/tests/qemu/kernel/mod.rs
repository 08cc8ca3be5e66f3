//! The real kernel under a real QEMU: one image, every page size, every CPU, odd memory, bad input.
//!
//! The image is built before by `cargo xtask image` (`cargo xtask test` does); without it every
//! test here fails with the same line. Exact counts and states are compared, never times: each room
//! works out its expected values from the architecture's tables and the request, in [`reference`].
//!
//! Not shown here: RAM above 2^48 (QEMU's `virt` has none), caches, and a TLB that keeps stale
//! entries.

mod banks;
mod bbm_policy;
mod big;
mod counts;
mod drivers;
mod errata;
mod failures;
mod fixed;
mod kaslr;
mod left_on;
mod left_out;
mod levels;
pub(crate) mod machine;
mod page_size;
mod persist;
mod places;
pub(crate) mod reference;
mod refusals;
mod rodata;
mod self_check;
mod tolerance;
pub(crate) mod trees;
