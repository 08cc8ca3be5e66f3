//! Leaving one kernel for another, on the host: header, segments, plan, list, tables, and the
//! relocation code, whose assembly is executed here one instruction at a time.
//!
//! Caches and TLBs are not looked at here: that is what the model's tests do with the same steps.

#![allow(unsafe_code, reason = "the tests call unsafe operations")]
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]
#![allow(missing_debug_implementations, reason = "fixtures of tests")]

mod digest;
mod image;
mod list;
mod plan;
mod ranges;
mod scene;
mod segments;
mod tables;

// Instructions and pages word by word take Miri minutes, and nothing unsafe is in them.
#[cfg(not(miri))]
mod assembly;
#[cfg(not(miri))]
mod count;
#[cfg(not(miri))]
mod machine;
#[cfg(not(miri))]
mod routine;
