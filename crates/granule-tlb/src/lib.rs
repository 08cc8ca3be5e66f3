//! Models of the TLBs of published CPUs, through which the accesses of a workload are replayed.
//!
//! [`cpus`] lists the TLBs with their sources, [`maps`] selects the leaf that translates a page,
//! [`model`] models the TLBs of one CPU, and [`replay`] runs all models at once. The accesses come
//! from `granule-plugin`. Nothing here runs a guest or prints.

#![deny(missing_docs)]

pub mod cpus;
pub mod maps;
pub mod model;
pub mod replay;
