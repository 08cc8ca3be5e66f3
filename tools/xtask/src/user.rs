//! Builds the user programs and puts them into the folder where tests look for them. They are static
//! executables: without a C library for the kernel's own target, and one with musl and Rust's standard
//! library. The kernel's modules too: one relocatable file each, for every page size.

use std::path::Path;

use anyhow::{Context, Result};

use crate::packages::{MODULE, USER};
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, MUSL_TARGET, build_executable, cargo, run, target_dir};

/// A program, its target, and its profile.
type Program = (&'static str, &'static str, &'static str);

/// The test program, the benchmark, work on memory, leaving Linux, `kexec`, `pagesize`, and the
/// program with a standard library, which unwinds.
const PROGRAMS: [Program; 8] = [
    ("granule-user", KERNEL_TARGET, "kernel"),
    ("granule-user-bench", KERNEL_TARGET, "kernel"),
    ("granule-user-memory", KERNEL_TARGET, "kernel"),
    ("granule-user-module", KERNEL_TARGET, "kernel"),
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
    for module in MODULES {
        let to = target_dir()
            .join("granule")
            .join(module)
            .with_extension("o");
        make_module(module, &to).inspect_err(|_| drop(std::fs::remove_file(&to)))?;
        eprintln!("{}", to.display());
    }
    Ok(())
}

/// The modules, examples of their package. The code is not position independent: the kernel relocates it.
const MODULES: [&str; 3] = ["ram-disk", "guard-report", "out-of-bounds"];

fn make_module(name: &str, to: &Path) -> Result<()> {
    let made = target_dir().join(KERNEL_TARGET).join("kernel").join(name);
    let made = made.with_extension("o");
    // Cargo does not know this file, so it would not make it again.
    let fresh = if made.is_file() { "made" } else { "missing" };
    let emit = format!("--emit=obj={}", made.display());
    let cfg = format!("--cfg=granule_module_file=\"{fresh}\"");
    let (target, example) = (format!("--target={KERNEL_TARGET}"), ["--example", name]);
    let mut build = cargo(&["rustc", "-p", MODULE, &target, "--profile=kernel"]);
    build.args(example).args([
        "--",
        &emit,
        &cfg,
        "--check-cfg=cfg(granule_module_file, values(any()))",
    ]);
    build.args([
        "-Crelocation-model=static",
        "-Ccode-model=small",
        "-Cdebuginfo=0",
    ]);
    run(build)?;
    files::replace(to, |to| {
        let copied = std::fs::copy(&made, to).map(drop);
        copied.with_context(|| format!("cannot copy {}", made.display()))
    })
}

fn make((name, target, profile): Program, to: &Path) -> Result<()> {
    let (target, profile) = (format!("--target={target}"), format!("--profile={profile}"));
    let made = build_executable(&["-p", USER, "--bin", name, &target, &profile])?;
    files::replace(to, |to| {
        let copied = std::fs::copy(&made, to).map(drop);
        copied.with_context(|| format!("cannot copy {}", made.display()))
    })
}
