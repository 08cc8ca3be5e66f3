//! The workspace's folders, `cargo` calls, and running other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The target that the kernel is built for: no FPU use, strict alignment.
pub const KERNEL_TARGET: &str = "aarch64-unknown-none-softfloat";

/// The target of the user program that has a standard library, with musl.
pub const MUSL_TARGET: &str = "aarch64-unknown-linux-musl";

/// The workspace's root: two levels above the manifest of xtask, or of the package that calls it.
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .ancestors()
        .nth(2)
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The folder of a package of the workspace.
pub fn package_dir(package: &str) -> PathBuf {
    let places = ["crates", "kernel", "tools"].map(|group| root().join(group).join(package));
    let [crates, ..] = &places;
    let found = places.iter().find(|place| place.is_dir());
    found.unwrap_or(crates).clone()
}

/// Cargo's target folder.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The path of the flat image; `granule boot` looks there too.
pub fn image_path() -> PathBuf {
    target_dir().join("granule").join("Image")
}

/// A call of a program in the workspace.
pub fn program(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(root());
    command
}

/// A `cargo` call in the workspace, without standard input.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = program("cargo", args);
    command.stdin(Stdio::null());
    command
}

/// The command as a person would type it.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|w| w.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command to its end, with our output as its output.
pub fn run(mut command: Command) -> Result<()> {
    let text = show(&command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{text}`"))?;
    ensure!(status.success(), "`{text}` failed ({status})");
    Ok(())
}

/// Runs a command and returns its standard output.
pub fn capture(mut command: Command) -> Result<String> {
    let text = show(&command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{text}`"))?;
    ensure!(
        output.status.success(),
        "`{text}` failed ({})",
        output.status
    );
    String::from_utf8(output.stdout).with_context(|| format!("`{text}` printed no UTF-8"))
}

/// Runs git in a folder and returns its standard output.
pub fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = program("git", arguments);
    command.current_dir(folder);
    capture(command)
}

/// The commit, marked if the work tree has changes in files that `counts` accepts.
pub fn commit(counts: impl Fn(&str) -> bool) -> Result<String> {
    let mut commit = git(&root(), &["rev-parse", "--short=12", "HEAD"])?;
    commit.truncate(commit.trim_end().len());
    let changed = git(&root(), &["status", "--porcelain"])?;
    if changed.lines().any(counts) {
        commit += " with changes";
    }
    Ok(commit)
}

/// The name of the host's CPU, or of its architecture.
pub fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = text.lines();
    let name = lines.find_map(|line| Some(line.strip_prefix("model name")?.split_once(": ")?.1));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

/// Builds and returns the path of the one resulting executable.
pub fn build_executable<A: AsRef<std::ffi::OsStr>>(args: &[A]) -> Result<PathBuf> {
    let mut command = cargo(&["build", "--message-format=json-render-diagnostics"]);
    command.args(args);
    let text = show(&command);
    let messages = capture(command)?;
    let mut executables = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    match executables.next_back() {
        Some(path) => Ok(path),
        None => bail!("`{text}` made no executable"),
    }
}

/// Whether images and programs are built already: a run of tests, whose steps share them, sets
/// this.
pub fn is_built() -> bool {
    std::env::var_os("GRANULE_BUILT").is_some()
}

/// The workspace in the form of `cargo metadata`.
pub fn metadata() -> Result<serde_json::Value> {
    let text = capture(cargo(&["metadata", "--format-version=1", "--no-deps"]))?;
    serde_json::from_str(&text).context("`cargo metadata` printed no JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = run(Command::new("false")).unwrap_err().to_string();
        assert!(error.contains("`false` failed"), "{error}");
    }
}
