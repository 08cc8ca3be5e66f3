//! The state of the modelled machine: memory, tables, TLBs, caches and CPUs.
//!
//! Nothing here reports a violation: the [`rules`](crate::rules) check the state.

pub(crate) mod caches;
pub(crate) mod cpu;
pub(crate) mod extents;
mod garbage;
pub(crate) mod ids;
pub(crate) mod invalidation;
pub(crate) mod leaf;
pub(crate) mod lookup;
pub(crate) mod memory;
pub(crate) mod relied;
pub(crate) mod reshape;
pub(crate) mod sharing;
pub(crate) mod snapshot;
pub(crate) mod stale_range;
pub(crate) mod stale_tlb;
pub(crate) mod tables;
pub(crate) mod trees;
pub(crate) mod walk;
