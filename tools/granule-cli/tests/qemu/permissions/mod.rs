//! The real kernel's linear map while it changes, under a real QEMU: permissions, invalid pages,
//! merging, memory that comes and goes, guard pages, `debug_pagealloc=on`.
//!
//! The kernel tests itself (`memory/selftest` there) with its own walker's answers, on all its
//! CPUs, and records the cost of changes; here the cost is worked out again from the geometry. The
//! image is built before by `cargo xtask image` (`cargo xtask test` does). No test measures time.

mod changes;
mod counts;
mod faults;
mod machine;
mod plug;
mod sized;
mod stress;
