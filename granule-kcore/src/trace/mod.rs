//! Where a trace's records go ([`area`]), and what the assembly does that a trace has to tell
//! ([`entry_code`]). Recording itself is the kernel's; the records' format is the library's.

pub mod area;
pub mod entry_code;
