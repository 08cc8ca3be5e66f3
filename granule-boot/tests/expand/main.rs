//! Trees that are made of firmware's tables, against what the tables were built to say. The trees are read
//! with another crate, and what is RAM is decided a second time, page by page.

// What is tested here has no unsafe code, and Miri has nothing to find.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used)]

mod acpi;
mod efi;
mod machine;
mod memory;
mod tree;
