//! The harness: the library's operations in random sequences on the modelled machine, running
//! out of table pages at each allocation, and faults planted in what the library does, each of
//! which the model must report.
//!
//! A run is repeated with `GRANULE_HARNESS_SEED`, and is longer with
//! `GRANULE_HARNESS_OPERATIONS`; both may be decimal or, with `0x`, hexadecimal. Whoever adds an
//! operation to the library adds it to [`operation`] and [`draw`], and what can go wrong in it to
//! [`planted`].

#![allow(unsafe_code, reason = "the tests call unsafe operations")]

mod bench;
mod cursor;
mod draw;
mod environment;
mod every_shape;
mod exhaustion;
mod hardware;
mod interleaved;
mod kexec;
mod leaves;
mod linear;
mod machine;
mod operation;
mod planted;
mod random;
mod reference;
mod refused;
mod registers;
mod sequence;
mod shape;
mod space;
mod stage;
mod watch;
