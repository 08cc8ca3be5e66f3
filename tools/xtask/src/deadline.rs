//! Runs programs to their end or to a deadline, because a network may never answer and a page never end. A program has
//! a clock of its own, which stands still while it waits for a core.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::workspace::show;
use anyhow::{Context, Result};
use granule_cli::boot::clock::ProcessClock;

/// The result of a child process.
#[derive(Debug)]
pub struct Finished {
    /// `None`: it was killed at the deadline.
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command, killing it (and only it) once it and its children have taken the time `limit` by their own
/// clock. Fails if it cannot be started or waited for.
pub fn run_for(mut command: Command, limit: Duration) -> Result<Finished> {
    let text = show(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{text}`"))?;
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status = wait(&mut child, limit, || false)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let text_of = |thread: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&thread.join().unwrap_or_default()).into_owned()
    };
    Ok(Finished {
        status,
        stdout: text_of(out),
        stderr: text_of(err),
    })
}

/// A program in a process group of its own. If the value is dropped before the program has ended, the program and its
/// children end too.
#[derive(Debug)]
pub struct Group(Child);

impl Group {
    pub fn start(command: &mut Command) -> std::io::Result<Self> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        command.spawn().map(Self)
    }

    /// Waits for the program and returns its status, or `None` once it `is_over` or has taken the time `limit` by its
    /// own clock.
    pub fn wait(
        &mut self,
        limit: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<ExitStatus>> {
        wait(&mut self.0, limit, is_over)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        // A request first, so that `granule` ends its guest and removes its files.
        #[cfg(unix)]
        {
            use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
            if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
                // An error means that the program has ended by itself meanwhile.
                let _ = kill_process_group(group, Signal::TERM);
                let began = Instant::now();
                // The children may take longer than the program. While one is left, the group's number is its own.
                while began.elapsed() < Duration::from_secs(3)
                    && !(matches!(self.0.try_wait(), Ok(Some(_)) | Err(_))
                        && test_kill_process_group(group).is_err())
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if test_kill_process_group(group).is_ok() {
                    let _ = kill_process_group(group, Signal::KILL);
                }
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(
    child: &mut Child,
    limit: Duration,
    is_over: impl Fn() -> bool,
) -> Result<Option<ExitStatus>> {
    let mut clock = ProcessClock::start_family(child.id());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if is_over() || clock.look() > limit {
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
            // A read error ends the text early; the exit status still has the outcome.
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
}
