//! Traces of the real kernel's boot: recorded under QEMU, checked by the model, and checked again
//! after lines were taken out or changed.
//!
//! The image is built before by `cargo xtask image` (`cargo xtask test` does); without it every
//! test here fails with the same line. Machines are small, because a trace grows with RAM.

mod boots;
mod live;
mod programs;
mod refusals;
mod sensitivity;
mod several_cpus;
mod tampered;
pub(crate) mod traces;
