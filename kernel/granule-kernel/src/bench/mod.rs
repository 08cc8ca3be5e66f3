//! Benchmarks that the kernel runs on itself before user space: `granule.bench=`.
//!
//! [`support`] is what they share with the self-tests.

mod copy;
mod permissions;
pub(crate) mod support;

pub(crate) use permissions::run;
