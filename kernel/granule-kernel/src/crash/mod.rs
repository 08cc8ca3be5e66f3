//! The crash kernel's view of the kernel that crashed.

pub(crate) mod vmcore;
