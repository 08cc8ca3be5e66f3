//! Works on memory as programs do, for a kernel that is watched: `granule-user-memory [huge KIB | thp BYTES]`.
//!
//! Memory is mapped, written, shared with a child by `fork` and copied on its write, made read-only and writable
//! again, moved, discarded and unmapped. What must be there is read, and what must not be reached is accessed by a
//! child, which must die of it. With `huge` the memory is of explicit huge pages of that size, with `thp` of
//! transparent ones. It prints one line and ends with 0 if all was right, and with 1 at the first mistake.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod steps;

granule_programs::program!(steps::run);
