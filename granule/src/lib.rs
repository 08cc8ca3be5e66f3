//! The memory-mapping core of an arm64 kernel.
#![no_std]
#![deny(missing_docs)]

pub mod arch;
pub mod boot;
pub mod linear;
pub mod memblock;
pub mod table;
