//! User space on the real kernel under a real QEMU: what programs do, on one CPU and on several, with
//! every page size, at EL1 and at EL2; what becomes of those that do what they must not; and that
//! no frame is lost over any of it, which the kernel counts itself.
//!
//! Image and program are built before by `cargo xtask image` and `cargo xtask user` (`cargo xtask
//! test` does). No test measures time. In [`live`] the CPUs run beside each other.

mod disk;
mod ends;
mod files;
mod hostile;
mod live;
pub(crate) mod machine;
mod modules;
mod programs;
mod sizes;
mod with_std;
