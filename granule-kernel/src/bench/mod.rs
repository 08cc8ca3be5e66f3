//! Benchmarks that the kernel runs on itself before its programs: `granule.bench=`.
//!
//! [`support`] is what they and the self-tests work with.

mod copy;
mod permissions;
pub(crate) mod support;

pub(crate) use permissions::run;
