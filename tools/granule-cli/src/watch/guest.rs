//! The watched QEMU process: starts it, waits for its plugin, hands the plugin's stream on with an eye on everything
//! else that may end the run, and leaves no process behind. The content of the stream is for `mod.rs`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::Outcome;
use super::progress::Progress;
use crate::boot::clock::{ProcessClock, TICK};
use crate::boot::guest::end_with_us;
use crate::boot::qemu;

/// The time that QEMU has to end after a request to end, on its own clock.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Starts QEMU, whose options load the plugin, and waits until the plugin connects.
pub(crate) fn start(
    mut process: Command,
    plugin: &Path,
    listener: &UnixListener,
    limit: Option<Duration>,
    interrupt: &AtomicBool,
) -> Result<(Guest, UnixStream), String> {
    process.stderr(Stdio::piped());
    end_with_us(&mut process);
    let child = process
        .spawn()
        .map_err(|error| qemu::cannot_start(Path::new(process.get_program()), &error))?;
    let mut guest = Guest::new(child, limit);
    let complaints = guest.complaints();
    let Some(stream) = guest.accept(listener, interrupt)? else {
        let (status, printed) = (guest.wait(), complaints.held());
        let why = qemu::first_error(&printed)
            .or_else(|| {
                printed
                    .lines()
                    .find(|it| !it.trim().is_empty())
                    .map(str::to_owned)
            })
            .unwrap_or_else(|| ended(status));
        // A folder from which nothing may run.
        let hint = match why.contains("failed to map segment") {
            true => "; set TMPDIR to a folder from which programs may run",
            false => "",
        };
        return Err(format!(
            "QEMU did not come to load {}: {why}{hint}",
            plugin.display()
        ));
    };
    complaints.release();
    Ok((guest, stream))
}

/// Describes how a process ended.
pub(crate) fn ended(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "it was ended".into(), |status| status.to_string())
}

/// QEMU, which does not outlive the run, unless a program between started it and leaves it behind.
pub(crate) struct Guest {
    pub(super) child: Child,
    clock: ProcessClock,
    timeout: Option<Duration>,
}

impl Guest {
    fn new(child: Child, timeout: Option<Duration>) -> Self {
        let clock = ProcessClock::start(child.id());
        Self {
            child,
            clock,
            timeout,
        }
    }

    /// Passes QEMU's standard error on. Until it is released it is held, so that a failure can be
    /// reported in one line.
    fn complaints(&mut self) -> Complaints {
        let held = Arc::new(Mutex::new(Some(String::new())));
        let complaints = Complaints(Arc::clone(&held));
        if let Some(stderr) = self.child.stderr.take() {
            thread::spawn(move || {
                let mut stderr = BufReader::new(stderr);
                let mut line = Vec::new();
                while stderr
                    .read_until(b'\n', &mut line)
                    .is_ok_and(|read| read > 0)
                {
                    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
                    match &mut *held {
                        Some(held) if held.len() < 1 << 16 => {
                            held.push_str(&String::from_utf8_lossy(&line));
                        }
                        Some(_) => (),
                        // If standard error is closed, no message can be printed.
                        None => drop(io::stderr().write_all(&line)),
                    }
                    line.clear();
                }
            });
        }
        complaints
    }

    /// The plugin's end of the socket, or `None` if QEMU ended before it connected.
    fn accept(
        &mut self,
        listener: &UnixListener,
        interrupt: &AtomicBool,
    ) -> Result<Option<UnixStream>, String> {
        let failed = |error: io::Error| format!("the plugin's socket: {error}");
        listener.set_nonblocking(true).map_err(failed)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(failed)?;
                    stream.set_read_timeout(Some(TICK)).map_err(failed)?;
                    return Ok(Some(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                Err(error) => return Err(failed(error)),
            }
            if interrupt.load(Ordering::Relaxed) {
                return Err(
                    "interrupted before QEMU loaded the plugin: nothing was watched".into(),
                );
            }
            if self.timeout.is_some_and(|limit| self.clock.look() >= limit) {
                return Err("the time of --timeout was over before QEMU loaded the plugin".into());
            }
            if self.child.try_wait().map_err(failed)?.is_some() {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Requests that QEMU end, which ends the plugin too.
    pub(crate) fn request_end(&self) {
        if let Some(pid) = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            // A process that has ended needs no signal.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Waits for QEMU, for a while; `None` if it had to be killed.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        let until = self.clock.look() + LAST_WORDS;
        while self.clock.look() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // An error means that QEMU has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The standard error of QEMU while it is held back; `None` once it is passed on.
struct Complaints(Arc<Mutex<Option<String>>>);

impl Complaints {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> String {
        // QEMU has ended: its last line may still be on the way.
        thread::sleep(TICK);
        self.lock().clone().unwrap_or_default()
    }

    fn release(&self) {
        if let Some(held) = self.lock().take() {
            // If standard error is closed, no message can be printed.
            let _ = io::stderr().write_all(held.as_bytes());
        }
    }
}

/// The plugin's stream, with an eye on everything else that may end the run.
pub(crate) struct Patient<'a> {
    pub(crate) stream: UnixStream,
    pub(crate) guest: &'a mut Guest,
    pub(crate) interrupt: &'a AtomicBool,
    /// The reason why the guest was requested to end, if it was.
    pub(crate) stopped: Option<Outcome>,
    /// The line that a person at a terminal sees meanwhile.
    pub(crate) progress: Option<&'a Progress>,
}

impl Read for Patient<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut until = None;
        loop {
            let over = self
                .guest
                .timeout
                .is_some_and(|limit| self.guest.clock.look() >= limit);
            let why = if self.interrupt.load(Ordering::Relaxed) {
                Some(Outcome::Interrupted)
            } else if over {
                Some(Outcome::TimedOut)
            } else {
                None
            };
            if let Some(why) = why
                && self.stopped.is_none()
            {
                self.stopped = Some(why);
                self.guest.request_end();
            }
            if let Some(progress) = self.progress {
                let left = self.guest.timeout;
                let clock = self.guest.clock.elapsed();
                progress.tick(left.map(|limit| limit.saturating_sub(clock)));
            }
            match self.stream.read(to) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                // A QEMU that was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
                done => return done,
            }
            // A guest that does not end on request is left behind.
            if self.stopped.is_some() {
                let now = self.guest.clock.look();
                if now >= *until.get_or_insert(now + LAST_WORDS) {
                    return Ok(0);
                }
            }
        }
    }
}
