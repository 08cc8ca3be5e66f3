//! The tools of cargo that tests use, in the versions that `tools/xtask/tools.txt` pins: wheels with built programs where
//! pip has them for this machine, else built by cargo. They lie under the target folder and are installed nowhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use xtask::workspace::{cargo, package_dir, run, show, target_dir};

const PINNED: &str = include_str!("../tools.txt");
/// Before the tool's name in the name of its wheel.
const WHEEL: &str = "astral-dev-toolchain-";

/// The names and versions of the tools.
fn pinned() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = PINNED.lines().filter_map(|line| line.strip_prefix(WHEEL));
    lines.filter_map(|line| line.split_ascii_whitespace().next()?.split_once("=="))
}

fn folder() -> PathBuf {
    let hash = Sha256::digest(PINNED);
    let name: String = hash[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    target_dir().join("tools").join(name)
}

/// The folder with the tools, for `PATH`; installs what is missing.
pub(crate) fn bin() -> Result<PathBuf> {
    let folder = folder();
    let bin = folder.join("bin");
    if pinned().all(|(name, _)| bin.join(name).is_file()) {
        return Ok(bin);
    }
    let parent = folder.parent().context("the tools need a folder")?;
    std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    // Moved when it is whole, so that what was cut off begins anew.
    let new = tempfile::tempdir_in(parent)?;
    install(new.path())?;
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::rename(new.keep(), &folder).context("cannot move the tools to their place")?;
    Ok(bin)
}

fn install(to: &Path) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args([
            "--disable-pip-version-check",
            "--require-hashes",
            "--target",
        ])
        .arg(to)
        .arg("-r")
        .arg(package_dir("xtask").join("tools.txt"));
    eprintln!(
        "granule: tests need tools of cargo; about to run: {}",
        show(&pip)
    );
    match run(pip) {
        Ok(()) => return Ok(()),
        Err(error) => eprintln!(
            "granule: no wheels, so cargo builds the tools, which takes a while: {error:#}"
        ),
    }
    for (name, version) in pinned() {
        let mut build = cargo(&["install", "--locked", "--version", version, "--root"]);
        build.arg(to).arg(name);
        if name == "cargo-nextest" {
            // Without its way to replace itself by a newer version, and the TLS library for that.
            build.args(["--no-default-features", "--features", "default-no-update"]);
        }
        eprintln!("granule: about to run: {}", show(&build));
        run(build)?;
    }
    Ok(())
}

/// A call of one of the tools in the workspace, by its name without `cargo-`.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> Result<Command> {
    let mut command = cargo(&[]);
    command.env("PATH", path()?).arg(name).args(arguments);
    Ok(command)
}

/// `PATH` with the tools first.
pub(crate) fn path() -> Result<std::ffi::OsString> {
    let others = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(bin()?).chain(std::env::split_paths(&others));
    std::env::join_paths(all).context("PATH cannot hold the folder of the tools")
}

#[cfg(test)]
mod tests {
    use super::pinned;

    #[test]
    fn every_tool_has_its_version() {
        let names: Vec<_> = pinned().map(|(name, _)| name).collect();
        assert_eq!(names, ["cargo-nextest", "cargo-deny", "cargo-hack"]);
        assert!(pinned().all(|(_, version)| version.split('.').count() == 3));
    }
}
