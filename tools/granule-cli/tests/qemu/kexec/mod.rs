//! One kernel leaving for the next on a real QEMU, with the MMU on: loading and refusals, the way
//! out of the old kernel and into the next, from every page size into every other, and the report
//! of `granule boot --kexec` and `--crash`.
//!
//! Image and programs are built before by `cargo xtask image`, `cargo xtask user` and `cargo xtask
//! probe` (`cargo xtask test` does). No test measures time.

mod arrive;
mod boots;
mod chain;
mod crash;
mod leave;
mod load;
pub(crate) mod machine;
mod probe;
mod program;
mod refuse;
mod saved_core;
mod segments;
mod trace;
