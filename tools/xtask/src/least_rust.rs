//! Compiles the libraries with the oldest Rust that their manifests declare: Debian 12's
//! `rustc-web`, which apt downloads. It is unpacked beside the build and installed nowhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::debian;
use crate::packages::{LIBRARY, package_named, packages};
use xtask::workspace::{capture, cargo, metadata, program, run, target_dir};

/// The compiler's package, and those with its libraries. All have one version.
const PACKAGES: [&str; 3] = ["rustc-web", "libstd-rust-web-dev", "libstd-rust-web-1.85"];
pub(crate) fn check() -> Result<()> {
    let metadata = metadata()?;
    let least = package_named(&metadata, LIBRARY)?["rust_version"]
        .as_str()
        .context("granule declares no rust-version")?;
    let folder = target_dir().join("least-rust");
    let compiler = compiler(&folder, least)?;
    let version = capture({
        let mut command = Command::new(&compiler);
        command.arg("--version");
        command
    })?;
    ensure!(
        version.starts_with(&format!("rustc {least}.")),
        "{} is `{}`, expected Rust {least}: remove {}",
        compiler.display(),
        version.trim(),
        folder.display()
    );
    println!("{}", version.trim());
    let with = |words: &[&str], crates: &[&str]| {
        let mut command = cargo(words);
        command.args(crates.iter().flat_map(|name| ["-p", name]));
        // Some dependencies of tests declare a newer Rust than they need.
        command.arg("--ignore-rust-version");
        command.env("RUSTC", &compiler);
        command.env("CARGO_TARGET_DIR", folder.join("target"));
        command.env_remove("RUSTC_WRAPPER");
        command
    };
    let declare = packages(&metadata)?
        .iter()
        .filter(|package| package["rust_version"] == least)
        .filter_map(|package| package["name"].as_str());
    run(with(&["check", "--lib"], &declare.collect::<Vec<_>>()))
}

/// The path of the compiler, which is downloaded the first time.
fn compiler(folder: &Path, least: &str) -> Result<PathBuf> {
    let wrapper = folder.join("rustc");
    if wrapper.is_file() {
        return Ok(wrapper);
    }
    let versions = capture(program("apt-cache", &["madison", PACKAGES[0]]))
        .context("the least Rust comes from Debian: apt-cache is needed")?;
    let version = version(&versions, least).with_context(|| {
        format!(
            "apt has no {} {least}: run `apt-get update`, with Debian 12 among the sources",
            PACKAGES[0]
        )
    })?;
    let packages = PACKAGES.map(|package| format!("{package}={version}"));
    let root = debian::unpack(folder, &packages)?;
    // The last step, so that a download that was cut off begins again.
    write_wrapper(&wrapper, &root)?;
    Ok(wrapper)
}

/// The newest of apt's versions of one release of Rust.
fn version<'a>(madison: &'a str, least: &str) -> Option<&'a str> {
    let versions = madison.lines().filter_map(|line| line.split('|').nth(1));
    let prefix = format!("{least}.");
    versions
        .map(str::trim)
        .find(|version| version.starts_with(&prefix))
}

/// A script that runs the compiler with the libraries beside it.
fn write_wrapper(path: &Path, root: &Path) -> Result<()> {
    let text = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{}' exec '{}' \"$@\"\n",
        debian::libraries(root).display(),
        root.join("usr/bin/rustc").display()
    );
    debian::script(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_of_the_least_rust() {
        let madison =
            " rustc-web | 1.96.0+x | http://a b Packages\n rustc-web | 1.85.0+y | http://c d\n";
        assert_eq!(version(madison, "1.85"), Some("1.85.0+y"));
        assert_eq!(version(madison, "1.8"), None);
        assert_eq!(version("", "1.85"), None);
    }
}
