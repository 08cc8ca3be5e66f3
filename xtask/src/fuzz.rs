//! `cargo xtask fuzz`: builds the fuzz targets as cargo-fuzz does, with the pinned nightly, sanitizer and
//! coverage counters, and runs each for a moment. It shows that the targets can be fuzzed; finding bugs
//! takes longer runs.
//!
//! cargo-fuzz itself is not used, because it only calls cargo; nothing here has to install it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tools;
use xtask::workspace::{capture, root, run, show, target_dir};

/// The flags that cargo-fuzz (0.13) passes to rustc.
const RUSTFLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions";
/// The words that libFuzzer prints for a program with these counters.
const COUNTERS: &str = "inline 8-bit counters";

/// Inputs for each target.
const RUNS: u32 = 5000;

/// Builds all targets and runs each.
pub(crate) fn fuzz() -> Result<()> {
    ensure!(
        tools::find_program("c++").is_some(),
        "no C++ compiler (c++) in PATH, which libFuzzer is built with; install g++ or clang"
    );
    let nightly = tools::nightly()?;
    let host = host(&nightly)?;
    let folder = target_dir().join("granule").join("fuzz");
    let mut build = on(&nightly, &["cargo", "build", "--release", "--locked"]);
    build
        .args(["--target", &host, "--manifest-path"])
        .arg(root().join("granule-fuzz/fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", RUSTFLAGS);
    println!("$ RUSTFLAGS='{RUSTFLAGS}' {}", show(&build));
    run(build)?;
    let built = folder.join(&host).join("release");
    let targets = targets()?;
    for target in &targets {
        try_out(&built, target)?;
    }
    println!(
        "{} targets, {RUNS} inputs each; cargo-fuzz goes on with one: cd granule-fuzz && \
         cargo +{nightly} fuzz run NAME",
        targets.len()
    );
    Ok(())
}

/// Runs one target on the first inputs that libFuzzer makes.
fn try_out(built: &Path, target: &str) -> Result<()> {
    let mut command = Command::new(built.join(target));
    command
        .args([format!("-runs={RUNS}"), "-seed=1".into()])
        .args(["-max_len=1024", "-timeout=60"])
        // Leak detection finds no Rust bugs here, and fails where tracing is not permitted.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .arg(format!("-artifact_prefix={}/{target}-", built.display()))
        .stdin(Stdio::null());
    let text = show(&command);
    let output = command
        .output()
        .with_context(|| format!("cannot start `{text}`"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`{text}` failed ({})\n{told}",
        output.status
    );
    ensure!(
        told.contains(COUNTERS),
        "`{text}` has no coverage counters\n{told}"
    );
    println!("{target}: {}", told.lines().next_back().unwrap_or_default());
    Ok(())
}

/// A command of a toolchain, with the toolchain's own compiler.
fn on(toolchain: &str, words: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", toolchain])
        .args(words)
        .current_dir(root())
        .stdin(Stdio::null())
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}

/// The toolchain's default target; a sanitizer needs it spelled out.
fn host(toolchain: &str) -> Result<String> {
    let told = capture(on(toolchain, &["rustc", "-vV"]))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .with_context(|| format!("`rustc -vV` of {toolchain} names no host"))
}

/// The fuzz targets as cargo-fuzz finds them. granule-fuzz's tests compare this list with the code's.
pub(crate) fn targets() -> Result<Vec<String>> {
    let folder = root().join("granule-fuzz/fuzz/fuzz_targets");
    let read = || format!("cannot read {}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(read)? {
        let path = entry.with_context(read)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(
                path.file_stem()
                    .map(|stem| stem.to_string_lossy().into_owned()),
            );
        }
    }
    ensure!(!names.is_empty(), "{} has no target", folder.display());
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_by_their_files() {
        let names = targets().unwrap();
        assert!(names.contains(&"walker".to_owned()) && names.is_sorted());
    }
}
