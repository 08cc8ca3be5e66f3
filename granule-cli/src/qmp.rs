//! QEMU's machine protocol, as little of it as reading guest memory takes: JSON
//! objects, one a line, on a unix socket on which we listen and QEMU calls.
//!
//! A thread of its own reads the boot record a few times a second and reports
//! it, and hears when the guest powers off; it ends then, when QEMU hangs up or
//! when it is told to stop.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bootrec::{self, BootRecord};

/// A parked kernel waits; nobody notices a quarter of a second.
const INTERVAL: Duration = Duration::from_millis(250);

/// How often a thread that waits for QEMU looks whether it is to stop.
const TICK: Duration = Duration::from_millis(50);

/// What ends a conversation.
enum Hangup {
    /// The guest has powered off. QEMU is about to end, and says no more.
    PoweredOff,
    /// QEMU has gone or is not understood, or we are to stop.
    Gone,
}

impl From<io::Error> for Hangup {
    fn from(_: io::Error) -> Self {
        // QEMU has ended: how, its exit status says.
        Self::Gone
    }
}

/// A connection whose greeting was answered.
struct Qmp<'a> {
    lines: BufReader<UnixStream>,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    stop: &'a Receiver<()>,
}

impl<'a> Qmp<'a> {
    fn new(stream: UnixStream, stop: &'a Receiver<()>) -> Result<Self, Hangup> {
        stream.set_read_timeout(Some(TICK))?;
        let mut qmp = Self {
            lines: BufReader::new(stream),
            partial: Vec::new(),
            stop,
        };
        qmp.next(None)?;
        qmp.run("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// The next object QEMU sends, or none by the deadline.
    fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Value>, Hangup> {
        loop {
            match self.lines.read_until(b'\n', &mut self.partial) {
                Ok(0) => return Err(Hangup::Gone),
                Ok(_) => {
                    let object = serde_json::from_slice::<Value>(&self.partial);
                    self.partial.clear();
                    let object = object.map_err(|_| Hangup::Gone)?;
                    if object["event"] == "SHUTDOWN" && object["data"]["guest"] == true {
                        return Err(Hangup::PoweredOff);
                    }
                    return Ok(Some(object));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if stopped(self.stop, Duration::ZERO) {
                        return Err(Hangup::Gone);
                    }
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs a command to its answer; most events that come in between are not for us.
    fn run(&mut self, command: &str, arguments: Value) -> Result<(), Hangup> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.lines.get_mut().write_all(line.as_bytes())?;
        while let Some(answer) = self.next(None)? {
            if answer.get("error").is_some() {
                return Err(Hangup::Gone);
            }
            if answer.get("return").is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Lets time pass, hearing what QEMU says meanwhile.
    fn listen(&mut self, time: Duration) -> Result<(), Hangup> {
        let deadline = Instant::now() + time;
        while self.next(Some(deadline))?.is_some() {}
        Ok(())
    }
}

/// What the watcher has to tell.
#[derive(Debug)]
pub(crate) enum Sight {
    /// The boot record, or why it cannot be read as one.
    Record(Result<BootRecord, String>),
    /// The guest has powered off.
    PoweredOff,
}

/// What to read, and where to put it.
pub(crate) struct Watch {
    /// Guest-physical address of the boot record.
    pub(crate) address: u64,
    /// A file of our own through which QEMU hands the bytes over.
    pub(crate) scratch: PathBuf,
}

/// Waits for QEMU's call, then reports the boot record until the guest powers
/// off, which is reported too, QEMU hangs up or `stop` is dropped.
pub(crate) fn watch(
    listener: &UnixListener,
    watch: &Watch,
    stop: &Receiver<()>,
    mut report: impl FnMut(Sight),
) {
    let Some(stream) = accept(listener, stop) else {
        return;
    };
    let hangup = Qmp::new(stream, stop).and_then(|mut qmp| {
        loop {
            let bytes = read(&mut qmp, watch)?;
            report(Sight::Record(BootRecord::decode(&bytes)));
            qmp.listen(INTERVAL)?;
        }
    });
    match hangup {
        Err(Hangup::PoweredOff) => report(Sight::PoweredOff),
        Err(Hangup::Gone) | Ok(()) => {}
    }
}

fn stopped(stop: &Receiver<()>, wait: Duration) -> bool {
    !matches!(stop.recv_timeout(wait), Err(RecvTimeoutError::Timeout))
}

fn accept(listener: &UnixListener, stop: &Receiver<()>) -> Option<UnixStream> {
    // Without waiting, because a QEMU that refuses its options never calls.
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

fn read(qmp: &mut Qmp<'_>, watch: &Watch) -> Result<Vec<u8>, Hangup> {
    let file = utf8(&watch.scratch)?;
    qmp.run(
        "pmemsave",
        json!({ "val": watch.address, "size": bootrec::BYTES, "filename": file }),
    )?;
    Ok(fs::read(&watch.scratch)?)
}

fn utf8(path: &Path) -> io::Result<&str> {
    path.to_str()
        .ok_or_else(|| io::Error::other("the temporary directory's name is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    /// A QEMU that says hello, interrupts with an event, and saves what it is
    /// told to `count` times before it hangs up or powers off.
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
                r#"{{"QMP": {{"version": {{}}, "capabilities": []}}}}"#
            )
            .unwrap();
            for line in BufReader::new(stream).lines() {
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
                // As QEMU does, without an answer to what was asked last, and staying on
                // the line.
                let event = json!({ "event": "SHUTDOWN", "data": { "guest": true } });
                writeln!(output, "{event}").unwrap();
                let mut rest = String::new();
                let _ = BufReader::new(output).read_line(&mut rest);
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
        let qemu = fake_qemu(&socket, memory, 2, false);
        let (_stop, stopped) = mpsc::channel();
        let place = Watch {
            address: 0x1_4000_0000,
            scratch: dir.path().join("record"),
        };
        let mut records = Vec::new();
        watch(&listener, &place, &stopped, |sight| match sight {
            Sight::Record(record) => records.push(record.unwrap()),
            Sight::PoweredOff => panic!("it only hung up"),
        });
        assert_eq!(records.len(), 2);
        assert!(records[0].is_parked() && records[0].message() == "no");
        let heard = qemu.join().unwrap();
        assert_eq!(heard[0]["execute"], "qmp_capabilities");
        assert_eq!(heard[1]["execute"], "pmemsave");
        assert_eq!(heard[1]["arguments"]["val"], 0x1_4000_0000_u64);
        assert_eq!(heard[1]["arguments"]["size"], 256);
    }

    #[test]
    fn hears_the_guest_power_off_although_qemu_stays_on_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        let qemu = fake_qemu(&socket, vec![0; bootrec::BYTES], 1, true);
        let (_stop, stopped) = mpsc::channel();
        let place = Watch {
            address: 0,
            scratch: dir.path().join("record"),
        };
        let mut sights = Vec::new();
        watch(&listener, &place, &stopped, |sight| sights.push(sight));
        assert!(
            matches!(
                sights.as_slice(),
                [Sight::Record(Err(_)), Sight::PoweredOff]
            ),
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
            address: 0,
            scratch: dir.path().join("record"),
        };
        watch(&listener, &place, &stopped, |_| panic!("nothing to report"));
    }
}
