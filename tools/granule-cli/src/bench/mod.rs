//! `granule bench`: series of boots that differ in one property, and the cost of each.
//!
//! Each benchmark has a module: [`linear_map`] boots every strategy for building the map,
//! [`permissions`] one machine for each page size, [`user`] programs on every build, [`kexec`]
//! pairs of kernels. Each runs all boots that were requested and keeps finished ones even after a
//! failure; its `report` turns rows into a table and into JSON. [`args`] holds the options,
//! [`progress`] shows progress bars, and `text` is shared by the reports. `granule bench tlb` has its options here and is
//! in [`tlb`](crate::tlb), above `watch`.

pub mod args;
pub mod kexec;
pub mod linear_map;
pub mod permissions;
pub mod progress;
pub(crate) mod text;
pub mod user;
