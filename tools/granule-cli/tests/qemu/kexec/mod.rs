//! One kernel leaving for the next on a real QEMU, with the MMU on: what is loaded and what is refused,
//! how the old kernel leaves and the next arrives, from every page size into every other, and what
//! `granule boot --kexec` says of it.
//!
//! Image and programs are built before by `cargo xtask image`, `cargo xtask user` and `cargo xtask
//! probe` (`cargo xtask test` does). No test measures time.

mod arrive;
mod boots;
mod chain;
mod leave;
mod load;
pub(crate) mod machine;
mod probe;
mod program;
mod refuse;
mod trace;
