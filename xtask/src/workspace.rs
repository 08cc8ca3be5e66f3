//! Where things are, and how other programs are run: the workspace's folders, `cargo`
//! calls and child processes with a deadline.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The target that the kernel is built for: no FPU use, strict alignment.
pub(crate) const KERNEL_TARGET: &str = "aarch64-unknown-none-softfloat";

/// The target of the user program that has a standard library, with musl.
pub(crate) const MUSL_TARGET: &str = "aarch64-unknown-linux-musl";

/// The workspace's root: where xtask's manifest lies, one level up.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Cargo's target folder.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Where the flat image goes; `granule boot` looks there too.
pub(crate) fn image_path() -> PathBuf {
    target_dir().join("granule").join("Image")
}

/// A `cargo` call in the workspace, without standard input.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// The command as a person would type it.
pub(crate) fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|w| w.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command to its end, its output going where ours goes.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let text = show(&command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{text}`"))?;
    ensure!(status.success(), "`{text}` failed ({status})");
    Ok(())
}

/// Runs a command and returns what it printed to standard output.
pub(crate) fn capture(mut command: Command) -> Result<String> {
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

/// Builds and returns the path of the one executable that cargo made.
pub(crate) fn build_executable<A: AsRef<std::ffi::OsStr>>(args: &[A]) -> Result<PathBuf> {
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

/// The workspace as `cargo metadata` tells it.
pub(crate) fn metadata() -> Result<serde_json::Value> {
    let text = capture(cargo(&["metadata", "--format-version=1", "--no-deps"]))?;
    serde_json::from_str(&text).context("`cargo metadata` printed no JSON")
}

/// What a child process left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    /// `None`: it was killed at the deadline.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command, killing it (and only it) at the deadline.
pub(crate) fn run_for(mut command: Command, limit: Duration) -> Result<Finished> {
    let text = show(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{text}`"))?;
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status = wait(&mut child, limit)?;
    let text_of = |thread: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&thread.join().unwrap_or_default()).into_owned()
    };
    Ok(Finished {
        status,
        stdout: text_of(out),
        stderr: text_of(err),
    })
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads a pipe in a thread of its own, so that a full pipe never stops the child.
fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // A read error ends the text early; the exit status still tells the outcome.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_past_its_deadline_is_killed() {
        let mut sleep = Command::new("sleep");
        sleep.arg("30");
        let start = Instant::now();
        let finished = run_for(sleep, Duration::from_millis(100)).unwrap();
        assert!(finished.status.is_none());
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn output_and_failure_are_kept() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo out; echo err >&2; exit 3"]);
        let finished = run_for(shell, Duration::from_secs(20)).unwrap();
        assert_eq!(finished.status.and_then(|s| s.code()), Some(3));
        assert_eq!(
            (finished.stdout.as_str(), finished.stderr.as_str()),
            ("out\n", "err\n")
        );
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = run(Command::new("false")).unwrap_err().to_string();
        assert!(error.contains("`false` failed"), "{error}");
    }
}
