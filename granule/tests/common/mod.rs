//! A host for the walker: what a kernel gives it, out of ordinary memory, and suspicious.
//!
//! [`host`] implements the library's three traits over one allocation and notes every event;
//! [`walk`] reads the tables as the architecture's text says an MMU does, and shares no code with
//! the library; [`order`] judges the noted events one by one, [`replay`] what they amount to for a
//! CPU that walks the tables meanwhile; [`cases`] says how many cases a property has. Nothing in here is
//! a test.

#![allow(dead_code, reason = "each test binary uses its share of this")]

pub mod cases;
pub mod host;
pub mod order;
pub mod replay;
pub mod shape;
pub mod walk;
