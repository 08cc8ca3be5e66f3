//! Code that the tests of several crates share. It contains no tests, and only tests depend on it.
//!
//! - [`host`]: the environment of `granule::table` over ordinary memory. It records every event
//!   and panics on any access that a kernel's memory would not survive.
//! - [`held`]: tables that are private or live, by the test's case.
//! - [`walk`]: reads tables as the architecture defines it for an MMU. It shares no code with the
//!   library, so that the two cannot share mistakes.
//! - [`performed`]: one operation with its events, and the checks of these one by one.
//! - [`tlbi`]: decodes the operands of TLBIs.
//! - [`shape`]: address spaces to test, and the ID registers that allow them.
//! - [`stage`]: the attributes and permission changes of both stages, as descriptor bits and drawn
//!   at random.
//! - [`dumps`]: memory dumps as files.
//! - [`firmware`]: EFI's and ACPI's tables in memory.
//! - [`linux`]: the memory of a Linux kernel with processes.
//! - [`mattering`]: whether an event that is left out of a trace matters, without code of the
//!   model.
//! - [`text`]: checks of printed text.
//! - [`schema`]: whether JSON is as its schema describes it.
//! - [`cases`]: the number of cases of a property.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_debug_implementations,
    reason = "a test that goes on after a failure would hide it, and fixtures print what they need to"
)]

pub mod cases;
pub mod dumps;
pub mod firmware;
pub mod held;
pub mod host;
pub mod linux;
pub mod mattering;
pub mod performed;
pub mod schema;
pub mod shape;
pub mod stage;
pub mod text;
pub mod tlbi;
pub mod walk;
