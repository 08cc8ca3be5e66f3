//! One run of QEMU: starts it, streams the console, watches the boot record and the guest's clock,
//! and leaves no process behind in any case.
//!
//! All time limits use QEMU's own [`ProcessClock`]: the guest's time advances while it runs or
//! sleeps, and stands still while the host has no core for it. `outcome` decides the meaning of a
//! run.

#![allow(unsafe_code, reason = "a system call between fork and exec")]

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::clock::{ProcessClock, TICK};
use super::console::{Splitter, Tail};
use super::prompt::Typist;
use super::qmp::{self, RecordPlace, Sight, Watch};
use crate::bootrec::BootRecord;
use crate::result::chain::Records;
use crate::result::{left, number};
use granule_trace::BufferHeader;

/// A unix socket's name has to fit into 108 bytes.
const LONGEST_SOCKET_DIR: usize = 90;
/// A parked kernel that has found a console also prints its reason there and powers off: this is
/// the time for that.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// QEMU ends at once at the command to quit; up to some version its `monitor_cleanup` may wait for
/// ever.
const POWER_OFF: Duration = Duration::from_secs(1);
/// More than the time to read a boot record once more.
const LAST_LOOK: Duration = Duration::from_secs(1);
/// More than the time to write a gigabyte: a QEMU that has not written the trace by then hangs.
const TRACE: Duration = Duration::from_secs(60);
/// The limit for QEMU's standard error: a broken QEMU must not fill our memory.
const LONGEST_STDERR: u64 = 1 << 20;

/// The reason why the run ended.
#[derive(Debug)]
pub(crate) enum End {
    /// QEMU ended by itself.
    Exited(ExitStatus),
    /// The guest reached its time limit.
    TimedOut,
    /// The prompt appeared again after the last line that was typed, which this is.
    CameBack(String),
    /// The kernel parked for good, by its boot record.
    Parked(BootRecord),
    /// The user interrupted the run.
    Interrupted,
}

/// The result of a run.
pub(crate) struct Run {
    pub(crate) end: End,
    pub(crate) records: Records,
    pub(crate) console: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) boot_record: Option<BootRecord>,
    /// The head of the saved trace, or why none was saved; `None` if QEMU ended before.
    pub(crate) trace: Option<Result<BufferHeader, String>>,
    pub(crate) peak_resident_bytes: Option<u64>,
}

/// The QEMU to run and how to watch it.
pub(crate) struct Plan<'a> {
    pub(crate) qemu: &'a Path,
    pub(crate) options: Vec<OsString>,
    /// The socket that QEMU connects to, and what to read from the guest.
    pub(crate) watch: Option<(UnixListener, Watch)>,
    /// Offset of the boot record in the next kernel's image, if there is such a kernel and record.
    pub(crate) next_boot_record: Option<u64>,
    /// The lines to type at the firmware's prompt.
    pub(crate) lines: Vec<String>,
    /// The time limit on the guest's own clock.
    pub(crate) timeout: Duration,
}

/// A temporary directory for the socket, the flash and the tree, removed with its owner.
pub(crate) fn temp_dir() -> Result<TempDir, String> {
    let make = |dir: &Path| tempfile::Builder::new().prefix("granule-").tempdir_in(dir);
    let usual = std::env::temp_dir();
    let dir = match make(&usual) {
        Ok(dir) if dir.path().as_os_str().len() <= LONGEST_SOCKET_DIR => Ok(dir),
        Ok(_) => make(Path::new("/tmp")),
        Err(error) => Err(error),
    };
    dir.map_err(|error| {
        format!(
            "no temporary directory can be made in {}: {error}; set TMPDIR",
            usual.display()
        )
    })
}

enum Event {
    Console(Vec<u8>),
    ConsoleEnded,
    Sight(Sight),
}

/// Runs QEMU to its end. The console is written to `sink` as it arrives; after an error of the sink
/// nothing more is written, and the run goes on.
pub(crate) fn run(plan: Plan<'_>, sink: &mut dyn Write, interrupt: &AtomicBool) -> io::Result<Run> {
    let mut guest = Guest(spawn(&plan)?);
    let child = &mut guest.0;
    let (events, inbox) = mpsc::channel();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let console_events = events.clone();
    let console = thread::spawn(move || {
        if let Some(stdout) = stdout {
            forward(stdout, |bytes| {
                console_events.send(Event::Console(bytes)).is_ok()
            });
        }
        // After the run nobody receives any more.
        let _ = console_events.send(Event::ConsoleEnded);
    });
    let complaints = thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut stderr) = stderr {
            // The text read before a failure is still shown.
            let _ = stderr.by_ref().take(LONGEST_STDERR).read_to_end(&mut text);
            let _ = io::copy(&mut stderr, &mut io::sink());
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let (stop, stopped) = mpsc::channel();
    let Plan {
        watch,
        next_boot_record,
        lines,
        timeout,
        ..
    } = plan;
    let place = match &watch {
        Some((_, watch)) => watch.boot_record.clone(),
        None => RecordPlace::default(),
    };
    let last_look = match &watch {
        Some((_, watch)) if watch.trace.is_some() => TRACE,
        _ => LAST_LOOK,
    };
    let watcher = watch.map(|(listener, place)| {
        thread::spawn(move || {
            qmp::watch(&listener, &place, &stopped, |sight| {
                let _ = events.send(Event::Sight(sight));
            });
        })
    });

    let mut keyboard = Keyboard {
        typist: Typist::new(lines),
        stdin: child.stdin.take(),
    };
    let mut seen = Seen::new(sink, place, next_boot_record);
    let mut memory = PeakMemory::new(child.id());
    let mut clock = ProcessClock::start(child.id());
    let mut parked: Option<Duration> = None;
    let mut powered_off: Option<Duration> = None;
    let end = loop {
        match inbox.recv_timeout(TICK) {
            Ok(event) => {
                if let Event::Console(bytes) = &event {
                    keyboard.hear(bytes);
                }
                if seen.event(event) {
                    // The guest is about to power off: the last chance to sample its memory.
                    memory.look();
                }
            }
            Err(RecvTimeoutError::Timeout) => (),
            // All senders are gone: only QEMU's exit is left to wait for.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
        }
        memory.look_now_and_then();
        let now = clock.look();
        if let Some(status) = child.try_wait()? {
            break End::Exited(status);
        }
        if seen.powered_off && now - *powered_off.get_or_insert(now) >= POWER_OFF {
            // The guest's result is there; do not wait for QEMU's own exit.
            break End::Exited(ExitStatus::default());
        }
        if let Some(record) = seen.parked()
            && now - *parked.get_or_insert(now) >= LAST_WORDS
        {
            break End::Parked(record.clone());
        }
        if let Some(line) = keyboard.typist.came_back() {
            break End::CameBack(line.to_owned());
        }
        if interrupt.load(Ordering::Relaxed) {
            break End::Interrupted;
        }
        if now >= timeout {
            break End::TimedOut;
        }
    };
    memory.look();
    drop(stop);
    if let Some(watcher) = &watcher {
        // A guest that did not reach its end leaves a record and a trace too.
        let until = clock.elapsed() + last_look;
        while !watcher.is_finished() && clock.look() < until {
            thread::sleep(TICK);
        }
    }
    // This ends QEMU and closes the other ends of pipes and socket, so that every thread ends.
    drop(guest);
    let stderr = complaints.join().unwrap_or_default();
    let _ = console.join();
    if let Some(watcher) = watcher {
        let _ = watcher.join();
    }
    for event in inbox.try_iter() {
        seen.event(event);
    }
    let end = match (end, seen.parked()) {
        // We or QEMU ended the run, but the kernel had parked before.
        (End::TimedOut | End::Exited(_), Some(record)) if !seen.has_ended() => {
            End::Parked(record.clone())
        }
        (end, _) => end,
    };
    Ok(seen.finish(end, stderr, memory.bytes))
}

fn spawn(plan: &Plan<'_>) -> io::Result<Child> {
    let mut command = Command::new(plan.qemu);
    command
        .args(&plan.options)
        .stdin(match plan.lines.is_empty() {
            true => Stdio::null(),
            false => Stdio::piped(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C must not reach QEMU: we end it and still report the result.
        .process_group(0);
    end_with_us(&mut command);
    command.spawn()
}

/// Has the process end with this one, and take no huge pages.
pub(crate) fn end_with_us(command: &mut Command) {
    #[cfg(not(target_os = "linux"))]
    let _ = command;
    #[cfg(target_os = "linux")]
    // SAFETY: the closure runs between fork and exec, where only calls that are
    // async-signal-safe are allowed: it makes two prctl system calls and returns
    // an error as a number, without allocating or locking.
    unsafe {
        command.pre_exec(|| {
            // QEMU requests huge pages for the guest's RAM, and a host that grants them gives 2 MiB
            // for each page that the guest touches: a guest that touches a few thousand pages of
            // half a terabyte would take gigabytes. A host without the call has no such pages.
            let _ = rustix::thread::disable_transparent_huge_pages(true);
            // Even a SIGKILL to us must not leave a QEMU behind. The signal fires when the thread
            // that forked ends; that is the thread in `run`, which waits for QEMU.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
                .map_err(|errno| io::Error::from_raw_os_error(errno.raw_os_error()))
        });
    }
}

/// A QEMU process that is killed when the run ends, even with an error.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        // An error means that QEMU has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The input to the guest's console.
struct Keyboard {
    typist: Typist,
    stdin: Option<ChildStdin>,
}

impl Keyboard {
    fn hear(&mut self, bytes: &[u8]) {
        let Some(stdin) = &mut self.stdin else { return };
        let typed = self.typist.hear(bytes);
        // A QEMU that has ended takes nothing more, and its end is seen elsewhere.
        let _ = stdin.write_all(&typed).and_then(|()| stdin.flush());
    }
}

fn forward(mut from: impl Read, mut to: impl FnMut(Vec<u8>) -> bool) {
    let mut buffer = [0; 8192];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) if !to(buffer[..length].to_vec()) => return,
            Ok(_) => (),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(_) => return,
        }
    }
}

/// The guest's output so far.
struct Seen<'a> {
    sink: &'a mut dyn Write,
    sink_works: bool,
    splitter: Splitter,
    tail: Tail,
    records: Records,
    boot_record: Option<BootRecord>,
    /// The address of the running kernel's boot record, for the watcher.
    place: RecordPlace,
    /// Offset of the record in the image of the first next kernel, until that runs.
    next_boot_record: Option<u64>,
    trace: Option<Result<BufferHeader, String>>,
    powered_off: bool,
}

impl<'a> Seen<'a> {
    fn new(sink: &'a mut dyn Write, place: RecordPlace, next_boot_record: Option<u64>) -> Self {
        Self {
            sink,
            sink_works: true,
            splitter: Splitter::new(),
            tail: Tail::default(),
            records: Records::default(),
            boot_record: None,
            place,
            next_boot_record,
            trace: None,
            powered_off: false,
        }
    }

    /// Takes an event; returns whether a console record ended in it.
    fn event(&mut self, event: Event) -> bool {
        match event {
            Event::Console(bytes) => {
                let ended = self.take(&bytes);
                if ended && let Some(start) = self.next_kernel() {
                    let offset = self.next_boot_record.take();
                    self.place
                        .set(offset.and_then(|offset| start.checked_add(offset)));
                    self.boot_record = None;
                }
                return ended;
            }
            // A record that was read at the previous kernel's address is not about this one.
            Event::Sight(Sight::Record(at, record)) if self.place.get() == Some(at) => {
                self.boot_record = record.ok().or(self.boot_record.take());
            }
            Event::Sight(Sight::Record(..)) | Event::ConsoleEnded => (),
            Event::Sight(Sight::Trace(trace)) => self.trace = Some(trace),
            Event::Sight(Sight::PoweredOff) => self.powered_off = true,
        }
        false
    }

    /// The boot record of a kernel that parked.
    fn parked(&self) -> Option<&BootRecord> {
        self.boot_record.as_ref().filter(|it| it.is_parked())
    }

    /// Takes console bytes; returns whether a record ended among them.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let mut ended = false;
        let visible = self
            .splitter
            .feed(bytes, |line| ended |= self.records.line(line));
        self.show(&visible);
        ended
    }

    /// Whether the output is complete: the last kernel reached its end and left for no other.
    fn has_ended(&self) -> bool {
        let last = self.records.last();
        last.has_ended() && !left(last)
    }

    /// The image address of the next kernel, if the last kernel has left for one.
    fn next_kernel(&self) -> Option<u64> {
        let last = self.records.last();
        let start = last.get("kexec.leaving.segment.kernel.start")?;
        last.has_ended().then(|| number(start))?
    }

    fn show(&mut self, visible: &[u8]) {
        self.tail.push(visible);
        if self.sink_works && !visible.is_empty() {
            let written = self
                .sink
                .write_all(visible)
                .and_then(|()| self.sink.flush());
            self.sink_works = written.is_ok();
        }
    }

    fn finish(mut self, end: End, stderr: String, peak_resident_bytes: Option<u64>) -> Run {
        let splitter = std::mem::replace(&mut self.splitter, Splitter::new());
        self.show(&splitter.finish());
        Run {
            end,
            records: self.records,
            console: self.tail.into_bytes(),
            stderr,
            boot_record: self.boot_record,
            trace: self.trace,
            peak_resident_bytes,
        }
    }
}

/// The peak of QEMU's resident memory as Linux counts it; nothing on other systems.
struct PeakMemory {
    status: String,
    looked: Option<Instant>,
    bytes: Option<u64>,
}

impl PeakMemory {
    fn new(pid: u32) -> Self {
        Self {
            status: format!("/proc/{pid}/status"),
            looked: None,
            bytes: None,
        }
    }

    fn look_now_and_then(&mut self) {
        if self.looked.is_none_or(|at| at.elapsed() >= TICK) {
            self.look();
        }
    }

    fn look(&mut self) {
        self.looked = Some(Instant::now());
        let Ok(status) = std::fs::read_to_string(&self.status) else {
            return;
        };
        // The line disappears once the process has released its memory.
        if let Some(bytes) = high_water(&status) {
            self.bytes = Some(bytes);
        }
    }
}

fn high_water(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_read_from_the_kernels_line() {
        assert_eq!(
            high_water("Name:\tq\nVmHWM:\t   20480 kB\nVmRSS:\t 1 kB\n"),
            Some(20 << 20)
        );
        assert_eq!(high_water("Name:\tq\n"), None);
        assert_eq!(high_water("VmHWM:\tmany kB\n"), None);
    }

    #[test]
    fn a_sink_that_fails_does_not_end_the_run() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = Broken;
        let mut seen = Seen::new(&mut sink, RecordPlace::default(), None);
        assert!(!seen.take(b"a\n"));
        assert!(seen.take(b"@granule end\nb"));
        let run = seen.finish(End::TimedOut, String::new(), None);
        assert_eq!(run.console, b"a\nb");
    }
}
