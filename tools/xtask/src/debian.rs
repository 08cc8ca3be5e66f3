//! Debian's packages for tools that tests need: apt downloads those that the machine lacks, and they are
//! unpacked beside the build and installed nowhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask::files;
use xtask::workspace::run;

/// Unpacks packages (`NAME` or `NAME=VERSION`), with those that they need and the machine lacks, into a
/// folder in `folder`, and returns it.
pub(crate) fn unpack(folder: &Path, packages: &[String]) -> Result<PathBuf> {
    let archives = folder.join("archives");
    files::folder(&archives.join("partial"))?;
    let folder = folder
        .canonicalize()
        .with_context(|| format!("{} is not reached", folder.display()))?;
    let archives = folder.join("archives");
    let mut download = Command::new("apt-get");
    download.args(["-y", "-q", "--no-install-recommends", "--reinstall"]);
    // Without the machine's locks, so that it takes no root user.
    download.args(["--download-only", "-o", "Debug::NoLocking=true", "-o"]);
    download.arg(format!("Dir::Cache::archives={}/", archives.display()));
    download.arg("install").args(packages);
    run(download)?;
    let root = folder.join("root");
    for file in fs::read_dir(&archives)?.filter_map(|file| Some(file.ok()?.path())) {
        if file.extension().is_some_and(|extension| extension == "deb") {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(&file).arg(&root);
            run(unpack)?;
        }
    }
    fs::remove_dir_all(&archives)
        .with_context(|| format!("cannot remove {}", archives.display()))?;
    Ok(root)
}

/// The folder of libraries in an unpacked package.
pub(crate) fn libraries(root: &Path) -> PathBuf {
    root.join("usr/lib")
        .join(format!("{}-linux-gnu", std::env::consts::ARCH))
}

/// Writes a script that can be run.
pub(crate) fn script(path: &Path, text: &str) -> Result<()> {
    files::write(path, text)?;
    let mut command = Command::new("chmod");
    command.arg("755").arg(path);
    run(command)
}
