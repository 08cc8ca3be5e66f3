//! The core that a crash kernel saved: the object `crash` of the JSON object.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::inspect::json::TotalsObject;

/// A kernel that crashed, and the core that its crash kernel saved.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Crashed {
    /// Reason of the kernel that crashed.
    pub reason: String,
    /// The core; null if none was saved that is whole.
    pub core: Option<Core>,
}

/// An ELF core, read as `granule dump FILE` reads it. The sums are about the kernel's tables.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Core {
    /// The file.
    pub output: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of memory in it.
    pub ram_bytes: u64,
    /// Page size of the kernel that crashed.
    pub page_size: u64,
    /// Bits of its addresses.
    pub va_bits: u32,
    /// Ranges that `granule dump FILE` lists.
    pub ranges: u64,
    pub totals: TotalsObject,
    /// Lines for people: what the core reports of itself, and what was guessed.
    pub notes: Vec<String>,
}
