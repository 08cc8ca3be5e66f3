//! The arm64 Linux interface of Granule's kernel: system calls, files, pipes, signals, the process
//! table, and the formats of programs.
//!
//! Everything here is pure. A kernel implements [`env::Env`] (the caller's memory and registers, the
//! clock and the console) and gets the system calls that need nothing more. System calls that change
//! address spaces or tasks stay in the kernel. The interface covers the needs of the programs run here:
//! the kernel's memory tests and benchmark, `kexec`, static Rust programs and Debian's static busybox.
//! There is no terminal, no job control and no writable file.
//!
//! The modules, from the lowest up; no module imports one below it in this list:
//!
//! | module | what lives there |
//! | --- | --- |
//! | [`abi`] | numbers, error codes and structures, with their sizes checked |
//! | [`owned`] | values in frames, which come from a kernel by [`owned::Frames`] |
//! | [`program`], [`script`], [`start_stack`] | ELF files, first lines of scripts, the stack of a new program |
//! | [`files`] | the initramfs as a read-only tree, paths, open files, pipes |
//! | [`signals`] | the signals of one process, and the stack frame of a handler |
//! | [`processes`] | the process table and the rules among relatives |
//! | [`env`](mod@env) | the trait that a kernel implements |
//! | [`syscall`], [`execve`] | the system calls |

#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]
// Miri runs the module that allows unsafe code, and only that (`tools/xtask/src/packages.rs`).

#[allow(missing_docs, reason = "constants and fields have C's names")]
pub mod abi;
pub mod env;
pub mod execve;
pub mod files;
pub mod owned;
pub mod processes;
pub mod program;
pub mod script;
pub mod signals;
pub mod start_stack;
pub mod syscall;
