//! Trees that are made of firmware's tables, against the machine for which the tables were built.
//! The trees are read with another crate, and what is RAM is decided a second time, page by page.

mod acpi;
mod efi;
mod machine;
mod memory;
mod tree;
