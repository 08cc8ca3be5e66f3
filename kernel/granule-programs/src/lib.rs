//! Code that the programs share: system calls by number, and the way from the first instruction to
//! the program's function. No C library, and nothing about one program.

#![cfg_attr(target_os = "none", no_std)]

#[cfg(target_os = "none")]
pub mod calls;
#[cfg(target_os = "none")]
pub mod start;
