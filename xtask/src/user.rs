//! The user programs: static executables without a C library, for the kernel's own target, put where
//! tests look for them.

use std::path::Path;

use anyhow::{Context, Result};

use crate::workspace::{KERNEL_TARGET, build_executable, target_dir};

/// Their package.
pub(crate) const PACKAGE: &str = "granule-user";

/// The programs: what tests run, and the benchmark.
const PROGRAMS: [&str; 2] = ["granule-user", "granule-user-bench"];

/// Builds the programs. A failure leaves none, so that nothing runs, and passes with, the one
/// before.
pub(crate) fn build() -> Result<()> {
    for program in PROGRAMS {
        let to = target_dir().join("granule").join(program);
        make(program, &to).inspect_err(|_| drop(std::fs::remove_file(&to)))?;
        eprintln!("{}", to.display());
    }
    Ok(())
}

fn make(program: &str, to: &Path) -> Result<()> {
    let made = build_executable(&[
        "-p",
        PACKAGE,
        "--bin",
        program,
        "--target",
        KERNEL_TARGET,
        "--profile",
        "kernel",
    ])?;
    let folder = to.parent().context("the program needs a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Written aside and moved, so that a test that reads it now sees one or the other.
    let file = tempfile::NamedTempFile::new_in(folder)?;
    std::fs::copy(&made, file.path()).with_context(|| format!("cannot copy {}", made.display()))?;
    file.persist(to)
        .with_context(|| format!("cannot write {}", to.display()))?;
    Ok(())
}
