//! QEMU's machine protocol, as little of it as reading guest memory takes: JSON
//! objects, one a line, on a unix socket on which we listen and QEMU calls.
//!
//! A thread of its own reads the boot record a few times a second and reports
//! it; it ends when QEMU hangs up or when it is told to stop.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bootrec::{self, BootRecord};

/// A parked kernel waits; nobody notices a quarter of a second.
const INTERVAL: Duration = Duration::from_millis(250);

/// A connection whose greeting was answered.
struct Qmp {
    lines: BufReader<UnixStream>,
}

impl Qmp {
    fn new(stream: UnixStream) -> io::Result<Self> {
        let mut qmp = Self {
            lines: BufReader::new(stream),
        };
        qmp.next()?;
        qmp.run("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// The next object QEMU sends.
    fn next(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Runs a command to its answer; events that come in between are not for us.
    fn run(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.lines.get_mut().write_all(line.as_bytes())?;
        loop {
            let mut answer = self.next()?;
            if let Some(error) = answer.get("error") {
                return Err(io::Error::other(format!("QMP {command}: {error}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }
}

/// What to read, and where to put it.
pub(crate) struct Watch {
    /// Guest-physical address of the boot record.
    pub(crate) address: u64,
    /// A file of our own through which QEMU hands the bytes over.
    pub(crate) scratch: PathBuf,
}

/// Waits for QEMU's call, then reports the boot record until QEMU hangs up or
/// `stop` is dropped.
pub(crate) fn watch(
    listener: &UnixListener,
    watch: &Watch,
    stop: &Receiver<()>,
    mut report: impl FnMut(Result<BootRecord, String>),
) {
    let Some(stream) = accept(listener, stop) else {
        return;
    };
    let Ok(mut qmp) = Qmp::new(stream) else {
        return;
    };
    loop {
        match read(&mut qmp, watch) {
            Ok(bytes) => report(BootRecord::decode(&bytes)),
            // QEMU has ended: how, its exit status says.
            Err(_) => return,
        }
        if stopped(stop, INTERVAL) {
            return;
        }
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

fn read(qmp: &mut Qmp, watch: &Watch) -> io::Result<Vec<u8>> {
    let file = utf8(&watch.scratch)?;
    qmp.run(
        "pmemsave",
        json!({ "val": watch.address, "size": bootrec::BYTES, "filename": file }),
    )?;
    fs::read(&watch.scratch)
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
    /// told to `count` times before it hangs up.
    fn fake_qemu(socket: &Path, memory: Vec<u8>, count: usize) -> thread::JoinHandle<Vec<Value>> {
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
        let qemu = fake_qemu(&socket, memory, 2);
        let (_stop, stopped) = mpsc::channel();
        let place = Watch {
            address: 0x1_4000_0000,
            scratch: dir.path().join("record"),
        };
        let mut records = Vec::new();
        watch(&listener, &place, &stopped, |record| {
            records.push(record.unwrap())
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
