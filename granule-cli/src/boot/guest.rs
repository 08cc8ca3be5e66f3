//! One run of QEMU: start it, stream the console, watch the boot record and the
//! guest's clock, and leave no process behind, whichever way it goes.
//!
//! All time limits are of QEMU's own [`ProcessClock`]: the guest's time goes on while it
//! runs or sleeps, and stands still while the host has no core for it. What the run
//! means is decided in `outcome`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::clock::{ProcessClock, TICK};
use super::console::{Splitter, Tail};
use super::qmp::{self, Place, Sight, Watch};
use crate::bootrec::BootRecord;
use crate::result::records::Records;
use crate::result::{left, number};
use granule_trace::Header;

/// A unix socket's name has to fit into 108 bytes.
const LONGEST_SOCKET_DIR: usize = 90;
/// A parked kernel that found a console on the way tells its reason there as
/// well and powers off: it gets the time to finish its sentence.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// QEMU ends at once when the guest has powered off, unless it meets a request of
/// ours just then: up to some version its `monitor_cleanup` then waits for ever.
const POWER_OFF: Duration = Duration::from_secs(1);
/// Longer than it takes to write a gigabyte: a QEMU that is asked for a trace and
/// has not written it after so long hangs.
const TRACE: Duration = Duration::from_secs(60);
/// QEMU says little on standard error; a broken one must not fill our memory.
const LONGEST_STDERR: u64 = 1 << 20;

/// Why the run came to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// QEMU ended by itself.
    Exited(ExitStatus),
    /// The guest used up the time it had.
    TimedOut,
    /// The boot record says that the kernel stopped for good.
    Parked(BootRecord),
    /// The person at the keyboard had enough.
    Interrupted,
}

/// All there is to say about a run.
pub(crate) struct Run {
    pub(crate) end: End,
    pub(crate) records: Records,
    pub(crate) console: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) boot_record: Option<BootRecord>,
    /// The head of the trace that was saved, or why none was; nothing if QEMU
    /// ended before.
    pub(crate) trace: Option<Result<Header, String>>,
    pub(crate) peak_resident_bytes: Option<u64>,
}

/// What to run.
pub(crate) struct Plan<'a> {
    pub(crate) qemu: &'a Path,
    pub(crate) options: Vec<OsString>,
    /// Where QEMU calls, and what to read when it does.
    pub(crate) watch: Option<(UnixListener, Watch)>,
    /// Where in the next kernel's image its boot record lies, if there is one and it has one.
    pub(crate) next_boot_record: Option<u64>,
    /// Time of the guest's own clock.
    pub(crate) timeout: Duration,
}

/// A directory for the socket, the flash and the tree, gone with its owner.
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

/// Runs QEMU to its end. The console goes to `sink` as it comes; a sink that
/// fails is written to no more, which changes nothing about the run.
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
        // Nobody listens any more when the run is over.
        let _ = console_events.send(Event::ConsoleEnded);
    });
    let complaints = thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut stderr) = stderr {
            // What was read before a failure is still worth showing.
            let _ = stderr.by_ref().take(LONGEST_STDERR).read_to_end(&mut text);
            let _ = io::copy(&mut stderr, &mut io::sink());
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let (stop, stopped) = mpsc::channel();
    let Plan {
        watch,
        next_boot_record,
        timeout,
        ..
    } = plan;
    let place = match &watch {
        Some((_, watch)) => watch.boot_record.clone(),
        None => Place::default(),
    };
    let saves_trace = watch
        .as_ref()
        .is_some_and(|(_, watch)| watch.trace.is_some());
    let watcher = watch.map(|(listener, place)| {
        thread::spawn(move || {
            qmp::watch(&listener, &place, &stopped, |sight| {
                let _ = events.send(Event::Sight(sight));
            });
        })
    });

    let mut seen = Seen::new(sink);
    let mut hops = 0;
    let mut memory = PeakMemory::new(child.id());
    let mut clock = ProcessClock::start(child.id());
    let mut parked: Option<(BootRecord, Duration)> = None;
    let mut powered_off: Option<Duration> = None;
    let end = loop {
        match inbox.recv_timeout(TICK) {
            Ok(Event::Console(bytes)) => {
                if seen.take(&bytes) {
                    // The guest is about to power off: last chance to look.
                    memory.look();
                    if let Some(start) = seen.next_kernel() {
                        hops += 1;
                        // What is known of the next kernel is known of the first one that is left for.
                        let offset = next_boot_record.filter(|_| hops == 1);
                        place.set(offset.and_then(|offset| start.checked_add(offset)));
                        seen.boot_record = None;
                    }
                }
            }
            // What was read where the one before had it is nothing that this one said.
            Ok(Event::Sight(Sight::Record(at, _))) if place.get() != Some(at) => (),
            Ok(Event::Sight(Sight::Record(_, Ok(record)))) if record.is_parked() => {
                seen.boot_record = Some(record.clone());
                parked.get_or_insert_with(|| (record, clock.elapsed()));
            }
            Ok(Event::Sight(Sight::Record(_, record))) => {
                seen.boot_record = record.ok().or(seen.boot_record);
            }
            Ok(Event::Sight(Sight::Trace(trace))) => seen.trace = Some(trace),
            Ok(Event::Sight(Sight::PoweredOff)) => {
                powered_off.get_or_insert(clock.elapsed());
            }
            Ok(Event::ConsoleEnded) | Err(RecvTimeoutError::Timeout) => (),
            // All senders gone: only QEMU's exit is left to wait for.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
        }
        memory.look_now_and_then();
        let now = clock.look();
        if let Some(status) = child.try_wait()? {
            break End::Exited(status);
        }
        if powered_off.is_some_and(|since| now - since >= POWER_OFF) {
            // What the guest did is known; what QEMU would have said is not waited for.
            break End::Exited(ExitStatus::default());
        }
        if let Some((record, _)) = parked.take_if(|(_, since)| now - *since >= LAST_WORDS) {
            break End::Parked(record);
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
    if saves_trace && let Some(watcher) = &watcher {
        // What a guest recorded that did not come to its end is told as well.
        let until = clock.elapsed() + TRACE;
        while !watcher.is_finished() && clock.look() < until {
            thread::sleep(TICK);
        }
    }
    // QEMU is gone after this, and with it the other ends of pipes and socket,
    // so that every thread comes to its end.
    drop(guest);
    let stderr = complaints.join().unwrap_or_default();
    let _ = console.join();
    if let Some(watcher) = watcher {
        let _ = watcher.join();
    }
    for event in inbox.try_iter() {
        match event {
            Event::Console(bytes) => {
                seen.take(&bytes);
            }
            Event::Sight(Sight::Trace(trace)) => seen.trace = Some(trace),
            _ => (),
        }
    }
    let end = match (end, parked) {
        // Ended by us or by QEMU's end, but parked it was.
        (End::TimedOut | End::Exited(_), Some((record, _))) if !seen.has_ended() => {
            End::Parked(record)
        }
        (end, _) => end,
    };
    Ok(seen.finish(end, stderr, memory.bytes))
}

fn spawn(plan: &Plan<'_>) -> io::Result<Child> {
    let mut command = Command::new(plan.qemu);
    command
        .args(&plan.options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for us; we end QEMU and still say how it went.
        .process_group(0);
    #[cfg(target_os = "linux")]
    // SAFETY: the closure runs between fork and exec, where only calls that are
    // async-signal-safe are allowed: it makes two prctl system calls and returns
    // an error as a number, without allocating or locking.
    unsafe {
        command.pre_exec(|| {
            // QEMU asks for huge pages for the guest's RAM, and a host that
            // grants them gives 2 MiB for each page a guest looks at: a guest
            // that looks at a few thousand of half a terabyte's pages would
            // take gigabytes. A host without the call has no such pages.
            let _ = rustix::thread::disable_transparent_huge_pages(true);
            // So that not even a SIGKILL to us leaves a QEMU behind. It fires
            // when the thread that forked ends; that is the thread in `run`,
            // which waits for QEMU.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
                .map_err(|errno| io::Error::from_raw_os_error(errno.raw_os_error()))
        });
    }
    command.spawn()
}

/// A QEMU that does not outlive the run, even one that ends with an error.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        // An error means that it has ended by itself in the meantime.
        let _ = self.0.kill();
        let _ = self.0.wait();
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

/// What has come out of the guest so far.
struct Seen<'a> {
    sink: &'a mut dyn Write,
    sink_works: bool,
    splitter: Splitter,
    tail: Tail,
    records: Records,
    boot_record: Option<BootRecord>,
    trace: Option<Result<Header, String>>,
}

impl<'a> Seen<'a> {
    fn new(sink: &'a mut dyn Write) -> Self {
        Self {
            sink,
            sink_works: true,
            splitter: Splitter::new(),
            tail: Tail::default(),
            records: Records::default(),
            boot_record: None,
            trace: None,
        }
    }

    /// Takes console bytes; true if a record's end was among them.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let mut ended = false;
        let visible = self
            .splitter
            .feed(bytes, |line| ended |= self.records.line(line));
        self.show(&visible);
        ended
    }

    /// Whether all is said: the kernel that spoke last came to its end, and none is to follow.
    fn has_ended(&self) -> bool {
        let last = self.records.last();
        last.has_ended() && !left(last)
    }

    /// Where the kernel that spoke last put the image of the one that it has left for.
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

/// The most memory QEMU had resident, as Linux counts it; nothing elsewhere.
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
        // The line is gone once the process has given its memory back.
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
        let mut seen = Seen::new(&mut sink);
        assert!(!seen.take(b"a\n"));
        assert!(seen.take(b"@granule end\nb"));
        let run = seen.finish(End::TimedOut, String::new(), None);
        assert_eq!(run.console, b"a\nb");
    }
}
