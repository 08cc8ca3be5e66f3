//! Trees that are made of firmware's tables, against what the tables were built to say. The trees are read
//! with another crate, and what is RAM is decided a second time, page by page.

mod acpi;
mod efi;
mod machine;
mod memory;
mod tree;
