//! Builds the user programs and puts them into the folder where tests look for them. They are static
//! executables: without a C library for the kernel's own target, and one with musl and Rust's standard
//! library.

use std::path::Path;

use anyhow::{Context, Result};

use crate::packages::USER;
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, MUSL_TARGET, build_executable, target_dir};

/// A program, its target, and its profile.
type Program = (&'static str, &'static str, &'static str);

/// The test program, the benchmark, work on memory, leaving Linux, `kexec`, `pagesize`, and the
/// program with a standard library, which unwinds.
const PROGRAMS: [Program; 7] = [
    ("granule-user", KERNEL_TARGET, "kernel"),
    ("granule-user-bench", KERNEL_TARGET, "kernel"),
    ("granule-user-memory", KERNEL_TARGET, "kernel"),
    ("granule-user-leave", KERNEL_TARGET, "kernel"),
    ("granule-kexec", KERNEL_TARGET, "kernel"),
    ("granule-pagesize", KERNEL_TARGET, "kernel"),
    ("granule-user-std", MUSL_TARGET, "release"),
];

/// Builds the programs. A failure leaves no program, so that no test runs, and passes with, the old one.
pub(crate) fn build() -> Result<()> {
    for program in PROGRAMS {
        let to = target_dir().join("granule").join(program.0);
        make(program, &to).inspect_err(|_| drop(std::fs::remove_file(&to)))?;
        eprintln!("{}", to.display());
    }
    Ok(())
}

fn make((name, target, profile): Program, to: &Path) -> Result<()> {
    let (target, profile) = (format!("--target={target}"), format!("--profile={profile}"));
    let made = build_executable(&["-p", USER, "--bin", name, &target, &profile])?;
    files::replace(to, |to| {
        let copied = std::fs::copy(&made, to).map(drop);
        copied.with_context(|| format!("cannot copy {}", made.display()))
    })
}
