//! The user programs: static executables without a C library, for the kernel's own target, put where
//! tests look for them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace::{KERNEL_TARGET, build_executable, target_dir};

/// The package, and the name that the program has.
pub(crate) const PACKAGE: &str = "granule-user";

/// Where the program goes.
pub(crate) fn path() -> PathBuf {
    target_dir().join("granule").join(PACKAGE)
}

/// Builds the program. A failure leaves none, so that nothing runs, and passes with, the one before.
pub(crate) fn build() -> Result<PathBuf> {
    let to = path();
    make(&to).inspect_err(|_| drop(std::fs::remove_file(&to)))?;
    println!("{}", to.display());
    Ok(to)
}

fn make(to: &Path) -> Result<()> {
    let made = build_executable(&[
        "-p",
        PACKAGE,
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
