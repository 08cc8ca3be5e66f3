//! Trees that the library makes in memory, some broken by hand afterwards, seen through this crate.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

mod aliases;
mod diff;
mod explain;
mod hostile;
mod lint;
mod map;
mod reserved;
mod walk;
mod world;
