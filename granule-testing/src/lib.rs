//! What the tests of several crates share. Nothing in here is a test, and no crate depends on it but for
//! its tests.
//!
//! - [`host`]: the three traits of `granule::table` over ordinary memory. It notes every event and
//!   refuses what a kernel's memory would not survive.
//! - [`walk`]: reads tables as the architecture says that an MMU does. It shares no code with the
//!   library, so that the library cannot agree with its own mistakes.
//! - [`order`]: judges the noted events one by one.
//! - [`replay`]: judges what the events amount to for a CPU that walks the tables meanwhile.
//! - [`shape`]: address spaces to test, and the ID registers that allow them.
//! - [`cases`]: how many cases a property has.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_debug_implementations,
    reason = "a test that goes on after a failure would hide it, and fixtures print what they need to"
)]

pub mod cases;
pub mod host;
pub mod order;
pub mod replay;
pub mod shape;
pub mod walk;
