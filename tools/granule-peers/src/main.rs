//! `make test-peers`: Debian's arm64 kernels and shell, fetched by apt, beside this kernel.
//!
//! The benchmark of user memory runs on each kernel, and our kernel must need fewer instructions.
//! Debian's unmodified busybox runs a script on our kernel with every page size and must print the
//! same as on Linux. Our kernel leaves for each of Debian's, which must reach its first process, and
//! crashes into each of them, which must save its memory.
//! Debian's boot loaders start Debian's Linux from our boot disk. Our readers and another reader
//! must find the same in the device trees of Debian's kernel packages. Our kernel boots on QEMU's
//! boards with these trees, and through firmware and boot loaders. Debian's page tables, as
//! `granule dump` reads them, must be the same as for QEMU and for Debian's kernels. Files of
//! Debian's makedumpfile must have the contents of the original core. Debian's kernels and other
//! systems run under `granule watch` with the QEMUs of two suites. No file of Debian's is part of
//! the repository.
//!
//! This file has the command; `parts` has the order, `summary` the report, and each part has a file
//! of its own.

mod apt;
mod bench;
mod boards;
mod deb;
mod disk;
mod emulator;
mod faults;
mod figures;
mod firmware;
mod index;
mod inspect;
mod kexec;
mod loaders;
mod machine;
mod parts;
mod peers;
mod report;
mod sensitivity;
mod shell;
mod store;
mod summary;
mod tlb;
mod together;
mod trees;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::parts::Part;
use crate::summary::Summary;

/// Debian's arm64 kernels and shell beside this kernel
#[derive(Debug, Parser)]
#[command(name = "granule-peers")]
struct PeersOptions {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Look for newer packages instead of using those that were fetched before
    #[arg(long)]
    fresh: bool,
    /// Leave out all kernels of Debian's but the oldest, and what is slow
    #[arg(long)]
    few: bool,
    /// Run only this part; may be given several times
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
}

fn main() -> ExitCode {
    let options = PeersOptions::parse();
    let summary = Summary::new(options.json);
    match parts::run(&options.only, options.few, options.fresh, &summary) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
