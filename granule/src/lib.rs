//! The memory-mapping core of an arm64 kernel.
#![no_std]
#![deny(missing_docs)]
