//! The state of the modelled machine: memory, tables, TLBs, caches and CPUs.
//!
//! Nothing here reports a violation: what the state must not be is for the [`rules`](crate::rules).

pub(crate) mod cpu;
pub(crate) mod extents;
pub(crate) mod memory;
pub(crate) mod stale_range;
pub(crate) mod stale_tlb;
pub(crate) mod tables;
pub(crate) mod walk;
