//! The area for a trace's records ([`area`]), and the traced instructions of the assembly
//! ([`entry_code`]). The kernel records; the library defines the record format.

pub mod area;
pub mod entry_code;
