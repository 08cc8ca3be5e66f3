//! Models of the TLBs of published CPUs, through which the accesses of a workload are replayed.
//!
//! [`cpus`] has the TLBs with their sources, [`maps`] the leaves that translate a page, [`model`] one
//! CPU's TLBs, [`replay`] all of them at once. The accesses are those that `granule-plugin` tells.
//! Nothing here runs a guest or prints.

#![deny(missing_docs)]

pub mod cpus;
pub mod maps;
pub mod model;
pub mod replay;
