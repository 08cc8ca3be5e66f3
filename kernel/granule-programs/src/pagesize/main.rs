//! `pagesize`: runs a program with a page size of its own, on Granule.
//!
//! ```text
//! pagesize SIZE PROGRAM [ARGUMENTS...]
//! pagesize
//! ```
//!
//! SIZE is `4k`, `16k` or `64k`, or `default` for the kernel's choice; PROGRAM is a path. The
//! program and the children that it makes run with that size as far as their files allow it; the
//! kernel reports where they do not. Without words it prints the bytes of its own page.
//!
//! It ends with 125 if there is no such size here, with 126 if the program cannot be run, with 127 if there is
//! none, each with one line on standard error; else it is the program.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod run;

granule_programs::program!(run::run);
