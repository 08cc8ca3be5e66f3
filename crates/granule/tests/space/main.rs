//! Address spaces against a plain reference: a program's memory as a map of pages to values.
//!
//! Nothing relies on the library's account of what it did. A CPU in [`cpu`] walks the tables as the
//! architecture requires, with hardware updates of the access flag and the dirty state that do no
//! more than they must, and faults where it must; what it reads is compared with the reference.
//! After each operation all tables are read, every frame's owners are counted, and nothing may be
//! lost.

#![allow(unsafe_code, reason = "the tests call unsafe operations")]
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]
#![allow(missing_debug_implementations, reason = "fixtures of tests")]

mod asids;
mod blocks;
mod copies;
mod cpu;
mod executing;
mod exhaustion;
mod frames;
mod groups;
mod random;
mod reference;
mod rewriting;
mod shared;
mod switch;
mod world;
