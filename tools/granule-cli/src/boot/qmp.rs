//! Watching a guest through QEMU's machine protocol (`granule_inspect::source::qmp`), on a unix
//! socket on which we listen and QEMU connects.
//!
//! A separate thread reads the boot record a few times a second and reports it, and receives the
//! guest's power-off. QEMU keeps the machine after that, so the thread reads the record's last state
//! and the trace, and then sends QEMU the command to end. It does the same when `stop` is dropped. The
//! thread ends then, or when QEMU disconnects.
//!
//! A next kernel that parks with its MMU off has only its boot record, which lies in its image. So once a
//! kernel leaves, the thread looks there (`RecordPlace`).

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use granule_inspect::source::qmp::{self, accepted};
use serde_json::{Value, json};

use crate::bootrec::{self, BootRecord};
use crate::trace_area::TraceArea;
use granule_trace::{BufferHeader, RECORD_WORDS};

/// The interval of reading the boot record. A parked kernel waits, and nobody notices a quarter of
/// a second.
const INTERVAL: Duration = Duration::from_millis(250);

/// The reason why a conversation ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hangup {
    /// The guest has powered off. QEMU keeps its memory.
    PoweredOff,
    /// QEMU refused the command. The guest runs on.
    Refused,
    /// QEMU has gone or sent an object that cannot be parsed, or we are to stop.
    Gone,
}

impl From<io::Error> for Hangup {
    fn from(_: io::Error) -> Self {
        // QEMU has ended; its exit status gives the reason.
        Self::Gone
    }
}

/// A connection after the greeting.
struct Qmp<'a> {
    connection: qmp::Qmp,
    stop: &'a Receiver<()>,
    /// Whether to wait for answers although we are to stop. If no answer comes, `guest` ends QEMU,
    /// and with it the wait.
    last_orders: bool,
}

impl<'a> Qmp<'a> {
    fn new(stream: UnixStream, stop: &'a Receiver<()>) -> io::Result<Self> {
        Ok(Self {
            connection: qmp::Qmp::new(stream)?,
            stop,
            last_orders: false,
        })
    }

    /// Answers QEMU's greeting. QEMU sends no event before that, so a power-off may have passed.
    fn greet(&mut self) -> Result<(), Hangup> {
        let greeting = self.next(None)?.unwrap_or_default();
        self.run("qmp_capabilities", accepted(&greeting))?;
        let answer = self.run("query-status", json!({}))?;
        if answer["status"] == "shutdown" {
            return Err(Hangup::PoweredOff);
        }
        Ok(())
    }

    /// The next object QEMU sends, or `None` at the deadline.
    fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Value>, Hangup> {
        loop {
            if let Some(object) = self.connection.poll()? {
                if object["event"] == "SHUTDOWN" && object["data"]["guest"] == true {
                    return Err(Hangup::PoweredOff);
                }
                return Ok(Some(object));
            }
            if !self.last_orders && stopped(self.stop, Duration::ZERO) {
                return Err(Hangup::Gone);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// Runs a command and returns its answer; events in between are ignored.
    fn run(&mut self, command: &str, arguments: Value) -> Result<Value, Hangup> {
        let id = self.connection.send(command, arguments)?;
        while let Some(mut answer) = self.next(None)? {
            // The answer of an earlier command that the guest's power-off interrupted.
            if answer["id"].as_u64().is_some_and(|other| other != id) {
                continue;
            }
            if answer.get("error").is_some() {
                return Err(Hangup::Refused);
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
        Ok(Value::Null)
    }

    /// Waits, and receives QEMU's events meanwhile.
    fn listen(&mut self, time: Duration) -> Result<(), Hangup> {
        let deadline = Instant::now() + time;
        while self.next(Some(deadline))?.is_some() {}
        Ok(())
    }
}

/// A report of the watcher.
#[derive(Debug)]
pub(crate) enum Sight {
    /// The boot record at that address, or why its bytes are not a record.
    Record(u64, Result<BootRecord, String>),
    /// The head of the trace, whose file is written; or why there is no trace.
    Trace(Result<BufferHeader, String>),
    /// The guest has powered off.
    PoweredOff,
}

/// Guest-physical address of the boot record to watch; after a hop, the next kernel's.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordPlace(Arc<Mutex<Option<u64>>>);

impl RecordPlace {
    pub(crate) fn new(address: Option<u64>) -> Self {
        Self(Arc::new(Mutex::new(address)))
    }

    pub(crate) fn get(&self) -> Option<u64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, address: Option<u64>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}

/// The data to read from the guest.
pub(crate) struct Watch {
    /// The address of the boot record.
    pub(crate) boot_record: RecordPlace,
    /// The trace to save at the end of the guest.
    pub(crate) trace: Option<Trace>,
    /// A file of ours through which QEMU passes the bytes.
    pub(crate) scratch: PathBuf,
}

/// The place of a trace in RAM, and its file.
pub(crate) struct Trace {
    /// The RAM where the guest records it.
    pub(crate) area: TraceArea,
    /// The file for its head and records.
    pub(crate) file: PathBuf,
}

/// Waits for QEMU to connect, then reports the boot record until the guest powers off (which is
/// reported too), QEMU disconnects or `stop` is dropped. The last report is the record's last state.
pub(crate) fn watch(
    listener: &UnixListener,
    watch: &Watch,
    stop: &Receiver<()>,
    mut report: impl FnMut(Sight),
) {
    let Some(stream) = accept(listener, stop) else {
        return;
    };
    let Ok(mut qmp) = Qmp::new(stream, stop) else {
        return;
    };
    let hangup = match qmp.greet() {
        Ok(()) => watch_record(&mut qmp, watch, &mut report),
        Err(hangup) => hangup,
    };
    qmp.last_orders = true;
    // QEMU still has the guest's memory: the state in which the kernel ended.
    look(&mut qmp, watch, &mut report).ok();
    if let Some(trace) = &watch.trace {
        report(Sight::Trace(save(&mut qmp, trace, &watch.scratch)));
    }
    // QEMU would keep the machine for ever. An answer is not needed: `guest` waits for QEMU's end.
    let _ = qmp.run("quit", json!({}));
    if hangup == Hangup::PoweredOff {
        report(Sight::PoweredOff);
    }
}

fn watch_record(qmp: &mut Qmp<'_>, watch: &Watch, report: &mut impl FnMut(Sight)) -> Hangup {
    loop {
        let looked = look(qmp, watch, report).and_then(|()| qmp.listen(INTERVAL));
        if let Err(hangup) = looked {
            return hangup;
        }
    }
}

fn look(qmp: &mut Qmp<'_>, watch: &Watch, report: &mut impl FnMut(Sight)) -> Result<(), Hangup> {
    if let Some(address) = watch.boot_record.get() {
        let record = match read(qmp, &watch.scratch, address, bootrec::BYTES as u64) {
            Ok(bytes) => BootRecord::decode(&bytes),
            Err(Hangup::Refused) => Err("QEMU would not save the boot record".into()),
            Err(hangup) => return Err(hangup),
        };
        report(Sight::Record(address, record));
    }
    Ok(())
}

/// Saves a trace: reads its head, and then the number of records that the head gives.
fn save(qmp: &mut Qmp<'_>, trace: &Trace, scratch: &Path) -> Result<BufferHeader, String> {
    let gone = |_| "QEMU ended, or did not answer, before the trace could be read out".to_owned();
    // Stop the guest, so that the data is consistent: a guest that did not reach its end runs on.
    qmp.run("stop", json!({})).map_err(gone)?;
    let (start, head_bytes) = (trace.area.start, 8 * BufferHeader::WORDS as u64);
    let bytes = read(qmp, scratch, start, head_bytes).map_err(gone)?;
    let mut words = [0; BufferHeader::WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let header = BufferHeader::new(words).map_err(|error| error.to_string())?;
    if header.room > BufferHeader::room_in(trace.area.bytes) {
        return Err("the trace's head gives more room than the trace's area has".into());
    }
    let bytes = head_bytes + header.records * 8 * RECORD_WORDS as u64;
    save_memory(qmp, &trace.file, start, bytes).map_err(gone)?;
    Ok(header)
}

fn stopped(stop: &Receiver<()>, wait: Duration) -> bool {
    !matches!(stop.recv_timeout(wait), Err(RecvTimeoutError::Timeout))
}

fn accept(listener: &UnixListener, stop: &Receiver<()>) -> Option<UnixStream> {
    // Non-blocking, because a QEMU that refuses its options never connects.
    listener.set_nonblocking(true).ok()?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).ok()?;
                return Some(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if stopped(stop, Duration::from_millis(10)) {
                    return None;
                }
            }
            Err(_) => return None,
        }
    }
}

fn read(qmp: &mut Qmp<'_>, scratch: &Path, address: u64, bytes: u64) -> Result<Vec<u8>, Hangup> {
    save_memory(qmp, scratch, address, bytes)?;
    Ok(fs::read(scratch)?)
}

fn save_memory(qmp: &mut Qmp<'_>, file: &Path, address: u64, bytes: u64) -> Result<(), Hangup> {
    let file = utf8(file)?;
    qmp.run(
        "pmemsave",
        json!({ "val": address, "size": bytes, "filename": file }),
    )?;
    Ok(())
}

fn utf8(path: &Path) -> io::Result<&str> {
    path.to_str()
        .ok_or_else(|| io::Error::other("the temporary directory's name is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::sync::mpsc;
    use std::thread;

    /// A QEMU that greets, interrupts with an event, and executes `count` commands before it
    /// disconnects or powers off. After the power-off the state in memory is that of a kernel that finished.
    fn fake_qemu(
        socket: &Path,
        memory: Vec<u8>,
        count: usize,
        powers_off: bool,
    ) -> thread::JoinHandle<Vec<Value>> {
        let stream = UnixStream::connect(socket).unwrap();
        thread::spawn(move || {
            let mut heard = Vec::new();
            let mut output = stream.try_clone().unwrap();
            writeln!(
                output,
                r#"{{"QMP": {{"version": {{}}, "capabilities": ["oob"]}}}}"#
            )
            .unwrap();
            let mut after = memory.clone();
            after[20] = 4;
            let mut lines = BufReader::new(stream).lines();
            for line in lines.by_ref() {
                let command: Value = serde_json::from_str(&line.unwrap()).unwrap();
                if let Some(file) = command["arguments"]["filename"].as_str() {
                    fs::write(file, &memory).unwrap();
                    writeln!(output, r#"{{"event": "RTC_CHANGE", "data": {{}}}}"#).unwrap();
                }
                writeln!(output, r#"{{"return": {{}}}}"#).unwrap();
                heard.push(command);
                if heard.len() > count {
                    break;
                }
            }
            if powers_off {
                // As QEMU does: the connection stays open, and the memory stays.
                let event = json!({ "event": "SHUTDOWN", "data": { "guest": true } });
                writeln!(output, "{event}").unwrap();
                for line in lines {
                    let command: Value = serde_json::from_str(&line.unwrap()).unwrap();
                    if let Some(file) = command["arguments"]["filename"].as_str() {
                        fs::write(file, &after).unwrap();
                    }
                    writeln!(output, r#"{{"return": {{}}}}"#).unwrap();
                    heard.push(command);
                    if heard.last().unwrap()["execute"] == "quit" {
                        break;
                    }
                }
            }
            heard
        })
    }

    #[test]
    fn reads_the_record_until_qemu_hangs_up() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut memory = b"GRANULE-BOOTREC\0\x01\0\0\0\x03\0\0\0\x05\0\0\0\x02\0\0\0no".to_vec();
        memory.resize(bootrec::BYTES, 0);
        let qemu = fake_qemu(&socket, memory, 3, false);
        let (_stop, stopped) = mpsc::channel();
        let place = Watch {
            boot_record: RecordPlace::new(Some(0x1_4000_0000)),
            trace: None,
            scratch: dir.path().join("record"),
        };
        let mut records = Vec::new();
        watch(&listener, &place, &stopped, |sight| match sight {
            Sight::Record(_, record) => records.push(record.unwrap()),
            Sight::Trace(_) => panic!("no trace was requested"),
            Sight::PoweredOff => panic!("it only hung up"),
        });
        assert_eq!(records.len(), 2, "it hung up before the last look");
        assert!(records[0].is_parked() && records[0].message() == "no");
        let heard = qemu.join().unwrap();
        assert_eq!(heard[0]["execute"], "qmp_capabilities");
        assert_eq!(heard[0]["arguments"], json!({ "enable": ["oob"] }));
        assert_eq!(heard[1]["execute"], "query-status");
        assert_eq!(heard[2]["execute"], "pmemsave");
        assert_eq!(heard[2]["arguments"]["val"], 0x1_4000_0000_u64);
        assert_eq!(heard[2]["arguments"]["size"], 256);
    }

    #[test]
    fn reads_the_record_once_more_after_the_power_off_and_ends_qemu() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut memory = b"GRANULE-BOOTREC\0\x01\0\0\0".to_vec();
        memory.resize(bootrec::BYTES, 0);
        let qemu = fake_qemu(&socket, memory, 2, true);
        let (_stop, stopped) = mpsc::channel();
        let place = Watch {
            boot_record: RecordPlace::new(Some(0)),
            trace: None,
            scratch: dir.path().join("record"),
        };
        let mut sights = Vec::new();
        watch(&listener, &place, &stopped, |sight| sights.push(sight));
        let [first, last, Sight::PoweredOff] = sights.as_slice() else {
            panic!("{sights:?}");
        };
        let progress = |sight: &Sight| match sight {
            Sight::Record(0, Ok(record)) => record.progress(),
            _ => panic!("{sight:?}"),
        };
        assert!(progress(first).contains("was not entered"), "{first:?}");
        assert!(progress(last).contains("finished"), "{last:?}");
        assert_eq!(qemu.join().unwrap().last().unwrap()["execute"], "quit");
    }

    /// QEMU sends no event before its greeting is answered.
    #[test]
    fn a_guest_that_powered_off_before_the_greeting_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut output = UnixStream::connect(&socket).unwrap();
        let qemu = thread::spawn(move || {
            writeln!(output, r#"{{"QMP": {{}}}}"#).unwrap();
            for line in BufReader::new(output.try_clone().unwrap()).lines() {
                let command: Value = serde_json::from_str(&line.unwrap()).unwrap();
                let answer = json!({ "return": { "status": "shutdown" }, "id": command["id"] });
                writeln!(output, "{answer}").unwrap();
                if command["execute"] == "quit" {
                    break;
                }
            }
        });
        let (_stop, stopped) = mpsc::channel();
        let place = Watch {
            boot_record: RecordPlace::default(),
            trace: None,
            scratch: dir.path().join("record"),
        };
        let mut sights = Vec::new();
        watch(&listener, &place, &stopped, |sight| sights.push(sight));
        assert!(
            matches!(sights.as_slice(), [Sight::PoweredOff]),
            "{sights:?}"
        );
        qemu.join().unwrap();
    }

    #[test]
    fn stops_when_qemu_never_calls() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("qmp")).unwrap();
        let (stop, stopped) = mpsc::channel();
        drop(stop);
        let place = Watch {
            boot_record: RecordPlace::new(Some(0)),
            trace: None,
            scratch: dir.path().join("record"),
        };
        watch(&listener, &place, &stopped, |_| panic!("nothing to report"));
    }
}
