//! The architecture as values, against the architecture's own tables.
//!
//! Every expectation in here is data copied out of the tables of the Arm Architecture Reference
//! Manual (chapter D8 and the register descriptions): bit positions as numbers, levels and sizes
//! as rows. None is computed by the library or written from its code.

#![allow(unsafe_code, reason = "the tests call unsafe operations")]
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]
#![allow(missing_debug_implementations, reason = "fixtures of tests")]

mod address;
mod bbm_policy;
mod descriptors;
mod errata;
mod fault_status;
mod features;
mod geometry;
mod registers;
mod stage2;
mod tlbi;
mod translation;
