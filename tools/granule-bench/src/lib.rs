//! The jobs and subjects of the benchmark: the library and other crates, which map, protect and unmap the
//! same ranges. The program of this package measures their time on the host. `examples/instruction-counts`
//! counts their instructions on arm64, so nothing here needs an operating system.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod arena;
pub mod goals;
pub mod job;
pub mod subjects;
pub mod turn;
