//! `granule bench`: series of boots that differ in one property, and the cost of each.
//!
//! Each benchmark has a module: [`linear_map`] boots every strategy for building the map,
//! [`permissions`] one machine for each page size, [`user`] programs on every build, [`kexec`]
//! pairs of kernels. [`series`] is the skeleton that each fills: it makes the boots and keeps finished ones
//! even after a failure. The `report` of each turns rows into tables and into JSON. [`args`] holds the common
//! options, [`progress`] shows progress bars, and `text` is shared by the reports. [`tlb`] is above `watch`: it
//! makes one run with the plugin, and no series.

pub mod args;
pub mod kexec;
pub mod linear_map;
pub mod permissions;
pub mod progress;
pub mod series;
pub(crate) mod text;
pub mod tlb;
pub mod user;
