//! Trees that the library makes in memory, some broken by hand afterwards, seen through this crate.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

mod aliases;
mod diff;
mod explain;
mod hostile;
mod lint;
mod lint_memory;
mod map;
mod nested;
mod reserved;
mod walk;
mod world;
